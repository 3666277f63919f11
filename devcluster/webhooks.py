"""Webhook configurations of the controllers, called by URL, as there is no service network here."""

import asyncio
import base64
import ssl
from collections.abc import Iterable

import aiohttp

from devcluster.errors import LocalClusterError
from devcluster.layout import StateFolder
from finetune_operator.objects import Object

#: A controller reports readiness when its webhook server listens; the handlers are registered a moment later.
_TRIES, _PAUSE_SECONDS = 400, 0.05


def with_url_clients(
    state: StateFolder, configurations: Iterable[Object], *, prefix: str, port: int
) -> list[Object]:
    """Returns copies of the configurations that call the controller on ``port`` of this machine instead of a Service.

    Their names begin with ``prefix``, since manifests of several controllers use the same names; labels and annotations
    are dropped. Apply the copies only once the controller serves: their failurePolicy is Fail.
    """
    authority = base64.b64encode((state.pki / "ca.crt").read_bytes()).decode()
    local: list[Object] = []
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
        local.append({**configuration, "metadata": {"name": name}, "webhooks": hooks})
    return local


async def until_served(
    session: aiohttp.ClientSession, context: ssl.SSLContext, configurations: Iterable[Object]
) -> None:
    """Returns when every webhook has a handler: until then the server's 404 would fail every creation.

    Raises LocalClusterError.
    """
    for url in {hook["clientConfig"]["url"] for each in configurations for hook in each["webhooks"]}:
        for _ in range(_TRIES):
            if await _answers(session, context, url):
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            raise LocalClusterError(f"nothing serves the webhook {url}")


async def _answers(session: aiohttp.ClientSession, context: ssl.SSLContext, url: str) -> bool:
    try:
        async with session.post(url, ssl=context, json={}) as answer:
            return answer.status != 404
    except aiohttp.ClientError:
        return False
