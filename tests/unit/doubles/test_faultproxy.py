"""The proxy between operator and API server while the API server is away."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from devcluster import pki
from devcluster.layout import StateFolder
from tests.doubles.faultproxy import FaultProxy

#: No server listens at it.
_PORT = 1


async def test_while_the_api_server_is_away_connections_end_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateFolder(tmp_path)
    pki.ensure(state.pki)
    context = ssl.create_default_context(cafile=str(state.pki / "ca.crt"))
    with FaultProxy(state, _PORT, lambda _: None) as proxy:
        async with aiohttp.ClientSession(f"https://127.0.0.1:{proxy.port}") as session:
            for request in ("/api/v1/pods", "/api/v1/pods?watch=true"):
                with pytest.raises(aiohttp.ServerDisconnectedError):
                    await asyncio.wait_for(session.get(request, ssl=context), 10)
    assert caplog.records == []
