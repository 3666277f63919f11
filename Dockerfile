# The operator's image: `docker build -t REPOSITORY/finetune-operator:0.2.0 .` from the root of the repository.
#
# BASE is any Linux image with Python 3.12 or later as python3 and its venv module. Pin it by digest for production:
#   --build-arg BASE=python:3.12-slim-bookworm@sha256:…
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# copy: the cache and the target may lie on different file systems. Byte code is compiled once here, because the
# final file system is read-only. The certificates trusted are those of BASE, so that a company CA put there counts.
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1
WORKDIR /src
COPY requirements/tools.txt requirements/
RUN python3 -m venv /tools \
 && /tools/bin/python -m pip install --quiet --no-cache-dir --require-hashes -r requirements/tools.txt
# Dependencies before code: a change of code reuses this layer.
COPY requirements/operator.txt requirements/
RUN /tools/bin/uv venv --quiet --python python3 /opt/finetune \
 && /tools/bin/uv pip sync --quiet --no-cache --python /opt/finetune/bin/python --require-hashes requirements/operator.txt
COPY requirements/build.txt requirements/
COPY contract contract
COPY operator operator
COPY pyproject.toml README.md LICENSE ./
RUN /tools/bin/uv build --quiet --no-cache --wheel --python python3 --require-hashes \
      --build-constraints requirements/build.txt --out-dir /wheels \
 && /tools/bin/uv pip install --quiet --no-cache --python /opt/finetune/bin/python --no-deps /wheels/*.whl

FROM ${BASE}
LABEL org.opencontainers.image.title="finetune-operator" org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE /licenses/LICENSE
COPY --from=build /opt/finetune /opt/finetune
ENV PATH=/opt/finetune/bin:$PATH PYTHONUNBUFFERED=1
# Numeric, so that runAsNonRoot can be judged without the image's passwd file.
USER 65532:65532
WORKDIR /
# -P keeps the working directory off sys.path.
ENTRYPOINT ["python", "-P", "-m", "finetune_operator"]
