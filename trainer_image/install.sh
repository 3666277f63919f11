#!/usr/bin/env bash
# Creates one of the project's hashed environments in the cache and prints its path, alone, on standard output.
#
#   trainer_image/install.sh            the trainer: its locks, then contract, storage and the trainer itself, editable
#   trainer_image/install.sh reference  transformers on torch, the tests' independent judge
#   trainer_image/install.sh serving    vLLM on CPU, which serves what we export
#   trainer_image/install.sh templates  published chat templates, which the tests render
#   trainer_image/install.sh tpu        libtpu alone, the TPU compiler: TPU_LIBRARY_PATH names its library
#   trainer_image/install.sh --path [NAME]  only says where that environment lies or would lie
#
# The folder's name holds a hash of the locks (and, for the trainer, of this checkout's path and of the folders that the
# editable installs point at), so a changed lock makes a new environment and a finished one is never touched again.
# Safe to run several times at once; an interrupted installation is begun anew.
set -euo pipefail

only_path=false
if [[ "${1:-}" == --path ]]; then only_path=true; shift; fi
name="${1:-trainer}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(dirname "$here")"
cache="${FINETUNE_CACHE:-$HOME/.cache/finetune-tpu}"
uv="${UV:-$cache/tools/bin/uv}"
# The engine's line, whatever the operator runs on; where the machine has none, uv fetches one into the cache.
python="${FINETUNE_PYTHON:-3.12}"
export UV_PYTHON_INSTALL_DIR="${UV_PYTHON_INSTALL_DIR:-$cache/python}"

case "$name" in
  trainer) locks=("$here/requirements.txt" "$here/requirements-nodeps.txt" "$here/requirements-test.txt"); salt="$root contract storage" ;;
  reference) locks=("$here/reference/requirements.txt"); salt="" ;;
  serving) locks=("$here/serving/requirements.txt"); salt="" ;;
  templates) locks=("$here/templates/requirements.txt"); salt="" ;;
  tpu) locks=("$here/requirements-tpu.txt"); salt="" ;;
  *) echo "install.sh: unknown environment '$name'; expected trainer, reference, serving, templates or tpu" >&2; exit 64 ;;
esac
digest="$( { cat "${locks[@]}"; printf '%s' "$salt"; } | sha256sum | cut -c1-12)"
venv="$cache/$name-$digest"
complete="$venv/.complete"

if $only_path; then echo "$venv"; exit 0; fi
if [[ ! -x "$uv" ]]; then echo "install.sh: no uv at $uv; run 'make tools' first" >&2; exit 69; fi
mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [[ ! -e "$complete" ]]; then
  rm -rf "$venv"
  {
    echo "installing the $name environment into $venv"
    "$uv" venv -q --python "$python" "$venv" || {
      echo "install.sh: no Python $python; install Python 3.12, or name yours: FINETUNE_PYTHON=/path/to/python3.12 $0"; exit 69
    }
    export VIRTUAL_ENV="$venv"
    # once here: where the shell forbids writing byte code, each start of a stage would compile JAX and MaxText anew
    export UV_COMPILE_BYTECODE=1
    if [[ "$name" == trainer ]]; then
      "$uv" pip install -q --require-hashes -r "$here/requirements.txt" -r "$here/requirements-test.txt"
      "$uv" pip install -q --require-hashes --no-deps --build-constraints "$root/requirements/build.txt" \
        -r "$here/requirements-nodeps.txt"
      "$uv" pip install -q --no-deps -e "$root/contract" -e "$root/storage" -e "$here"
    else
      "$uv" pip install -q --require-hashes --no-deps -r "${locks[0]}"
    fi
  } >&2
  touch "$complete"
fi
echo "$venv"
