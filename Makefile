# Everything that is installed or built goes to .venv and to the project's own cache; no root, no Docker.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export FINETUNE_CACHE ?= $(HOME)/.cache/finetune-tpu
UV := $(FINETUNE_CACHE)/tools/bin/uv
PYTHON := .venv/bin/python
export UV_LINK_MODE ?= copy
# Compiled once at installation, also where the shell forbids Python to write byte code.
export UV_COMPILE_BYTECODE ?= 1

##@ First steps
.PHONY: help demo demo-real up down
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install trainer cluster-programs ## Fine-tune a tiny Qwen3 for real on this machine: cluster, job, tuned model
	@$(PYTHON) -m devcluster.demo quickstart

demo-real: install trainer cluster-programs ## The same with SmolLM2-135M and GSM8K (about 10 minutes)
	@$(PYTHON) -m devcluster.demo real

up: install trainer cluster-programs ## Start the local cluster with the operator; the last line is an export KUBECONFIG=…
	@$(PYTHON) -m devcluster up

down: ## Stop the local cluster
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m devcluster down; fi

##@ Set-up (the targets above do it themselves)
.PHONY: install tools trainer reference serving templates tpu-compiler cluster-programs test-programs
tools: $(UV)
$(UV):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))' \
	  || { echo "python3 is $$(python3 --version 2>&1); Python 3.12 or later must come first on PATH" >&2; exit 1; }
	@echo "installing uv into $(FINETUNE_CACHE)/tools"
	@python3 -m venv $(FINETUNE_CACHE)/tools
	@$(FINETUNE_CACHE)/tools/bin/python -m pip install --quiet --require-hashes -r requirements/tools.txt

install: .venv/.installed ## Make .venv with the operator and the finetune command
.venv/.installed: requirements/dev.txt pyproject.toml | $(UV)
	@test -x $(PYTHON) || $(UV) venv --quiet --python "$$(command -v python3)" .venv
	@$(UV) pip sync --quiet --python $(PYTHON) --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python $(PYTHON) --no-deps -e .
	@touch $@

trainer: $(UV) ## Make the trainer's environment in the cache
	@trainer_image/install.sh

reference: $(UV) ## Make the environment with transformers and torch that judges our numbers
	@trainer_image/reference/install.sh

serving: $(UV) ## Make the environment with vLLM on CPU, which serves our exports (6 GB)
	@trainer_image/serving/install.sh

templates: $(UV) ## Fetch published chat templates, which the tests render (1 MB)
	@trainer_image/install.sh templates

tpu-compiler: $(UV) ## Install libtpu, which compiles for TPUs on any machine (677 MB)
	@trainer_image/install.sh tpu

cluster-programs: install ## Build the pinned control plane programs
	@$(PYTHON) -m devcluster build

test-programs: install ## The same with Kueue and kwok, which tests start
	@$(PYTHON) -m devcluster build --with kueue,kwok

##@ Checks
.PHONY: test test-unit test-pages test-integration test-e2e test-trainer test-thorough test-serving test-matrix e2e-images lint
test: lint install trainer reference templates tpu-compiler test-programs ## Everything: lint, unit, pages, trainer, integration, end to end
	@tests/run

test-unit: install ## Unit tests, a few minutes; without those marked slow
	@tests/run unit

test-pages: install ## Pages in a headless browser (needs Debian's chromium and npm; `make test` skips it without)
	@tests/pages/install.sh >/dev/null
	@tests/run pages

test-trainer: install trainer reference templates tpu-compiler ## The trainer's own tests, in its environment
	@tests/run trainer

test-thorough: install trainer reference test-programs ## What `make test` leaves out: more of the same kind, more families and methods, parity with bare MaxText
	@.venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile ci -m thorough tests/unit tests/integration tests/e2e
	@"$$(trainer_image/install.sh)"/bin/python -m pytest -c trainer_image/pytest.ini --rootdir . -q -m "thorough or reference" tests/trainer

test-serving: install trainer serving ## Exports under real vLLM on CPU, over HTTP (not in `make test`: 6 GB, 3 minutes)
	@"$$(trainer_image/install.sh)"/bin/python -m pytest -c trainer_image/pytest.ini --rootdir . -q tests/serving

test-matrix: install trainer test-programs ## Placement, disruptions, queues and quickstart on other releases of Kubernetes, JobSet and Kueue (an hour or two)
	@$(PYTHON) -m tests.matrix $(ROWS)

test-integration: install test-programs ## On the real control plane, without training
	@tests/run integration

test-e2e: install trainer cluster-programs ## Whole jobs on the real control plane, training on CPU
	@tests/run e2e

e2e-images: install trainer cluster-programs ## The images in real containers: kubelet, containerd, registry (root, Debian; not in `make test`: 8 GB)
	@$(PYTHON) -m devcluster build --with kubelet,kube-proxy >/dev/null
	@$(PYTHON) -m pytest -q --durations=0 --timeout 900 tests/images

lint: install trainer ## ruff, mypy --strict on both sides, import-linter
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@"$$(trainer_image/install.sh)"/bin/mypy --config-file trainer_image/mypy.ini
	@.venv/bin/lint-imports --no-logo
	@cd trainer_image && ../.venv/bin/lint-imports --no-logo

##@ Upkeep
.PHONY: format generate lock bench bench-scale bench-trainer bench-conversion bench-fits bench-memory check-real check-sizes walkthrough clean
format: install ## Format and sort
	@.venv/bin/ruff check --fix --quiet . || true
	@.venv/bin/ruff format .

generate: install ## Write crds/ (and the chart's copy) from the API models, and deploy/grafana
	@$(PYTHON) -m tools.generate
	@$(PYTHON) -m deploy.grafana

lock: $(UV) ## Resolve the hashed requirement files anew
	@requirements/lock.sh

bench: install trainer cluster-programs ## Measure operator, preemptions and quickstart; prints what docs/benchmarks.md records
	@$(PYTHON) -m tests.bench
	@$(PYTHON) -m tests.bench.preemption
	@$(PYTHON) -m tests.bench.resume
	@$(PYTHON) -m tests.bench.quickstart

SCALE ?= --stages --latency --storm 1000 --faulty --hosts --kueue 200 --present 5000 10000 --idle
bench-scale: install cluster-programs ## Measure 1,000 jobs at once against Kubeflow Trainer, which it builds, and 10,000 in all
	@$(PYTHON) -m tests.bench.scale $(SCALE)

bench-trainer: install trainer ## Measure the trainer against the bare MaxText commands, in pairs
	@$(PYTHON) -m tests.bench.trainer --large-gb 1.0
	@$(PYTHON) -m tests.bench.imports
	@"$$(trainer_image/install.sh)"/bin/python -m tests.bench.data 100000 1000000
	@"$$(trainer_image/install.sh)"/bin/python -m tests.bench.generation

bench-conversion: install trainer ## Convert, prove and export models of 0.6, 1.2 and 2.5 billion parameters (25 GB of disk)
	@"$$(trainer_image/install.sh)"/bin/python -m tests.bench.conversion

bench-fits: install trainer tpu-compiler ## Compile whole models' programs for v6e-16 and v5p-32: what fits where (hours)
	@$(PYTHON) -m tests.bench.fits

bench-memory: install trainer tpu-compiler ## Compile train steps and compare their memory with the estimate of finetune plan
	@$(PYTHON) -m tests.bench.memory $(CASES)

check-real: install reference ## Ask the model that make demo-real exported the same questions under transformers
	@$(PYTHON) -m tests.bench.transformers_answers smollm2-gsm8k

check-sizes: install trainer ## Real models' shapes, some of their layers, through the stages: seconds and memory (an hour)
	@$(PYTHON) -m tests.bench.sizes $(MODELS)

walkthrough: install trainer cluster-programs ## Run the quickstart and write docs/walkthrough.md's captured blocks anew
	@$(PYTHON) -m tests.walkthrough

clean: down ## Remove .venv and this project's cluster state (not the built programs)
	@rm -rf .venv "$(FINETUNE_CACHE)/state"
