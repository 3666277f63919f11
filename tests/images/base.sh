#!/usr/bin/env bash
# Makes a base image from Debian packages and this machine's Python 3.12, without any image registry.
# usage: tests/images/base.sh PYTHON IMAGE   (PYTHON: an interpreter with a prefix of its own, such as pyenv's; needs root)
set -euo pipefail
python="$1" image="$2"
prefix="$("$python" -c 'import sys; print(sys.base_prefix)')"
version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
if [ "$prefix" = /usr ]; then
  echo "$python belongs to the system's /usr; the image needs a Python with a prefix of its own, such as pyenv's" >&2
  exit 1
fi
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
# The libraries that Python's extension modules link to, and git's certificates; nothing else.
debootstrap --variant=minbase --include=ca-certificates,libssl3,libffi8,libsqlite3-0,libbz2-1.0,liblzma5,libreadline8,libncursesw6,libuuid1,zlib1g \
  bookworm "$root" >"$root.log" || { tail -n 20 "$root.log" >&2; exit 1; }
rm -f "$root.log"
# As in Docker's slim images: no package lists, no documentation, no tests of Python, no static library.
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{doc,man,info,locale}/*
mkdir -p "$root/usr/local/lib" "$root/usr/local/bin"
cp -a "$prefix/lib/python$version" "$root/usr/local/lib/"
cp -a "$prefix"/lib/libpython3*.so* "$root/usr/local/lib/" 2>/dev/null || true
cp -a "$prefix/bin/python$version" "$root/usr/local/bin/"
ln -s "python$version" "$root/usr/local/bin/python3"
rm -rf "$root/usr/local/lib/python$version"/{test,idlelib,turtledemo,tkinter,lib2to3,site-packages} \
  "$root/usr/local/lib/python$version"/config-* "$root/usr/local/lib/python$version"/lib-dynload/_test*
find "$root/usr/local/lib" -depth \( -name test -o -name tests -o -name __pycache__ \) -exec rm -rf {} +
chown -R root:root "$root/usr/local"
chroot "$root" ldconfig
chroot "$root" python3 -c 'import bz2, ctypes, lzma, readline, sqlite3, ssl, uuid, venv, zlib'
find "$root/usr/local/lib" -depth -name __pycache__ -exec rm -rf {} +
container="$(buildah from scratch)"
buildah add --quiet "$container" "$root" / >/dev/null
buildah config --env PATH=/usr/local/bin:/usr/bin:/bin "$container"
buildah commit --quiet --rm "$container" "$image"
