"""Webhook configurations of the controllers, called by URL, as there is no service network here."""

import base64
from collections.abc import Iterable

from devcluster.kube import Object
from devcluster.layout import State


def called_by_url(state: State, configurations: Iterable[Object], *, prefix: str, port: int) -> list[Object]:
    """The configurations for a controller that serves on ``port`` of this machine. Names get the prefix, since several
    controllers' manifests use the same ones. Apply them once it serves: their failurePolicy is Fail."""
    authority = base64.b64encode((state.pki / "ca.crt").read_bytes()).decode()
    made = []
    for configuration in configurations:
        name = f"{prefix}-{configuration['metadata']['name']}"
        hooks = [
            {
                **hook,
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}",
                    "caBundle": authority,
                },
            }
            for hook in configuration["webhooks"]
        ]
        made.append({**configuration, "metadata": {"name": name}, "webhooks": hooks})
    return made
