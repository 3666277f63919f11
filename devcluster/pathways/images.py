"""The images of Pathways' substitute: folders of programs whose entry points start it."""

import shlex
import sys
from pathlib import Path

from devcluster.agent.container import ENTRY_POINT
from devcluster.layout import ROOT

#: The JAX release in the images' tags: it must be the trainer's, or the images would be refused.
JAX = "0.11.0"
SERVER = f"localhost/pathways/server:jax-{JAX}"
PROXY = f"localhost/pathways/proxy_server:jax-{JAX}"


def install(folder: Path) -> dict[str, str]:
    """Creates the images below ``folder``. Returns image reference -> folder."""
    programs = {SERVER: "server", PROXY: "proxy_server"}
    return {image: str(_image(folder / program, program)) for image, program in programs.items()}


def _image(folder: Path, program: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / ENTRY_POINT
    entry.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} "
        f'exec {shlex.quote(sys.executable)} -P -m devcluster.pathways {program} "$@"\n'
    )
    entry.chmod(0o755)
    return folder
