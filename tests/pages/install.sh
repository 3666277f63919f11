#!/usr/bin/env bash
# Installs into the cache what the tests of pages need beside .venv, and prints that folder, alone, on standard output:
# python/ with playwright, node_modules/ with axe-core. Chromium itself is the system's: apt-get install chromium.
#
# The folder's name holds a hash of the locks, so a changed lock makes a new folder and a finished one is never touched
# again. Safe to run several times at once; an interrupted installation is begun anew.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(dirname "$(dirname "$here")")"
cache="${FINETUNE_CACHE:-$HOME/.cache/finetune-tpu}"
python="$root/.venv/bin/python"

missing() { echo "tests of pages: no $1 ($2)" >&2; exit 69; }
[[ -x "$python" ]] || missing .venv "make install"
command -v npm >/dev/null || missing npm "apt-get install npm"
[[ -n "$(cd "$root" && "$python" -m tests.pages.chromium)" ]] || missing Chromium "apt-get install chromium"

version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
digest="$( { cat "$here/requirements.txt" "$here/package-lock.json"; echo "$version"; } | sha256sum | cut -c1-12)"
folder="$cache/browser-$digest"
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
if [[ ! -e "$folder/.complete" ]]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  {
    echo "installing playwright and axe-core into $folder"
    "$cache/tools/bin/uv" pip install -q --python "$python" --target "$folder/python" --require-hashes --no-deps \
      -r "$here/requirements.txt"
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$folder/"
    (cd "$folder" && npm ci --silent)
  } >&2
  touch "$folder/.complete"
fi
echo "$folder"
