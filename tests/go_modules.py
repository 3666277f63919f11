"""Files and programs of Go modules that only tests use, kept in the cache."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from devcluster.build import BuildError, go_compiler, go_environment
from devcluster.layout import GO_MODULE, cache_dir


def module_folder(module: str, version: str, *, pins: Path = GO_MODULE) -> Path:
    """The files of a module, verified by go.sum in ``pins`` or, if that lacks it, by Go's checksum database."""
    shown = subprocess.run(
        [str(go_compiler()), "mod", "download", "-json", f"{module}@v{version}"],
        cwd=pins,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(json.loads(shown.stdout)["Dir"])


def module_program(module: Path, package: str = ".") -> Path:
    """A program of a Go module of its own, built once for each content of the module.

    Args:
        module: folder with go.mod, go.sum and, if the program is not one of another module, its code.
        package: what is built.
    """
    digest = hashlib.sha256(package.encode())
    for file in sorted([module / "go.mod", module / "go.sum", *module.glob("*.go")]):
        digest.update(file.read_bytes())
    target = cache_dir() / "go" / f"{module.name}-{digest.hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [str(go_compiler()), "build", "-trimpath", "-ldflags=-s -w", "-o", str(partial), package]
        done = subprocess.run(
            command, cwd=module, env=go_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(f"{module.name}: go build {package} failed:\n{done.stderr.strip()}")
        partial.replace(target)
    return target
