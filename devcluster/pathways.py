"""Images in place of Pathways' servers, which run only on Google's TPU machines: a program that waits to be ended.

It logs the flags that it gets. JAX on the local nodes computes on the head's CPU in place of the platform ``proxy``
(``agent/environment.py``), so a job under Pathways runs to its end here. It shows how Kubernetes, JobSet and the
operator treat such pods, and nothing of Pathways itself.
"""

from pathlib import Path

from devcluster.agent.container import ENTRY_POINT

#: The JAX release in the images' tags: it must be the trainer's, or the images would be refused.
JAX = "0.11.0"
SERVER = f"localhost/pathways/server:jax-{JAX}"
PROXY = f"localhost/pathways/proxy_server:jax-{JAX}"
_PROGRAM = '#!/bin/sh\necho "waits in place of a server of Pathways: $*"\nexec sleep infinity\n'


def install(folder: Path) -> dict[str, str]:
    """Creates the images' only folder. Returns image reference -> folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / ENTRY_POINT
    entry.write_text(_PROGRAM)
    entry.chmod(0o755)
    return dict.fromkeys((SERVER, PROXY), str(folder))
