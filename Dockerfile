# The operator's image: `docker build -t REPOSITORY/finetune-operator:0.2.0 .` from the root of the repository.
#
# BASE is any Linux image with Python 3.12 or later as python3 and its venv module. Pin it by digest for production:
#   --build-arg BASE=python:3.12-slim-bookworm@sha256:…
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS dependencies
# A base may end with another user.
USER 0
# copy: the cache and the target may lie on different file systems. Byte code is compiled once here, because the
# final file system is read-only, and is valid whatever the times of its sources: layers round them to seconds. The
# certificates trusted are those of BASE, so that a company CA put there counts.
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1
WORKDIR /src
COPY requirements/tools.txt requirements/
RUN python3 -m venv /tools \
 && /tools/bin/python -m pip install --quiet --no-cache-dir --require-hashes -r requirements/tools.txt
COPY requirements/operator.txt requirements/
RUN /tools/bin/uv venv --quiet --python python3 /opt/finetune \
 && /tools/bin/uv pip sync --quiet --no-cache --python /opt/finetune/bin/python --require-hashes requirements/operator.txt

FROM dependencies AS code
COPY requirements/build.txt requirements/
COPY contract contract
COPY storage storage
COPY operator operator
COPY pyproject.toml README.md LICENSE ./
RUN /tools/bin/uv build --quiet --no-cache --wheel --python python3 --require-hashes \
      --build-constraints requirements/build.txt --out-dir /wheels \
 && /tools/bin/uv pip install --quiet --no-cache --python /opt/finetune/bin/python --prefix /code --no-deps /wheels/*.whl

FROM ${BASE}
USER 0
LABEL org.opencontainers.image.title="finetune-operator" org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE /licenses/LICENSE
# Python's own library, which many base images ship without byte code.
RUN PYTHONDONTWRITEBYTECODE=1 python3 -m compileall -q -f --invalidation-mode unchecked-hash -x '/(site-packages|tests?|lib2to3)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# Two layers: after a change of code, only the small second one is pushed and pulled anew.
COPY --from=dependencies /opt/finetune /opt/finetune
COPY --from=code /code /opt/finetune
ENV PATH=/opt/finetune/bin:$PATH PYTHONUNBUFFERED=1
# Numeric, so that runAsNonRoot can be judged without the image's passwd file.
USER 65532:65532
WORKDIR /
# -P keeps the working directory off sys.path.
ENTRYPOINT ["python", "-P", "-m", "finetune_operator"]
