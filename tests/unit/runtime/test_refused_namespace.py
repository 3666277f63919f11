"""The watches when the API server refuses one namespace, and when kopf does not end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from finetune_operator.reconcile import served_namespaces
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_streams import WatchStreams
from finetune_operator.runtime import kopf_adapter
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import watches
from tests.unit.runtime.test_kopf_adapter import until
from tests.unit.runtime.watched_api import Account, WatchedApi

SERVED = ("a", "b")


class OfTwoNamespaces(WatchedApi):
    """An API server that refuses everything with one of these texts in its path."""

    def __init__(self) -> None:
        super().__init__(lambda _begin, _end: (), 0)
        self.refused: tuple[str, ...] = ()
        self.watched: list[str] = []
        self.ends = asyncio.Event()
        """Every watch ends once this is set."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if any(text in request.path for text in self.refused):
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not in b"}
            return web.json_response(status, status=403)
        return await super()._answer(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched.append(request.path)
        stream = web.StreamResponse()
        await stream.prepare(request)
        await self.ends.wait()
        return stream


@asynccontextmanager
async def watching(api: OfTwoNamespaces, served: ServedNamespaces) -> AsyncIterator[WatchStreams]:
    async with TestServer(api.app()) as server:
        cache = WatchCache(watches(SERVED, kueue=False))
        host = WatchManager(
            Account(url=str(server.make_url("/"))),
            served,
            EventHandlers(lambda _key, _after: None, OperatorMetrics()),
            cache,
        )
        running = asyncio.create_task(host.run(lambda: None))
        try:
            yield cache.streams
            assert not running.done(), running.result()
        finally:
            running.cancel()
            api.ends.set()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_adapter, "REFUSED_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(served_namespaces, "LOST_SECONDS", 0.2)


@pytest.mark.parametrize("refused", ["/namespaces/b/", "/namespaces/b/pods"])
async def test_a_refused_namespace_ends_no_watch_of_others_and_is_watched_again(refused: str) -> None:
    api, served = OfTwoNamespaces(), ServedNamespaces(SERVED)
    async with watching(api, served) as streams:
        await until(lambda: len(api.watched) == 7)
        api.refused = (refused,)
        before, api.ends = api.ends, asyncio.Event()
        before.set()
        await until(lambda: served.lost() == {"b": 0})
        assert (served.serves("a"), streams.dead()) == (True, ())
        api.refused = ()
        await until(lambda: not served.lost())
        assert served.serves("b")
        assert served.unobserved_until("b") is not None


async def test_a_namespace_that_is_refused_from_the_start_is_watched_when_it_may_be() -> None:
    api, served = OfTwoNamespaces(), ServedNamespaces(SERVED)
    api.refused = ("/namespaces/b/",)
    async with watching(api, served):
        await until(lambda: served.lost() == {"b": 0})
        assert all("/namespaces/b/" not in path for path in api.watched)
        api.refused = ()
        await until(lambda: any("/namespaces/b/" in path for path in api.watched))


async def test_the_watches_end_although_a_task_of_kopf_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kopf_adapter, "_END_SECONDS", 0.05)
    may_end = asyncio.Event()

    async def stuck() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async def failed() -> None:
        raise PermissionError("profiles are forbidden")

    async def spawn(**_: Any) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(stuck()), asyncio.create_task(failed())]

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    host = WatchManager(
        Account(url="http://127.0.0.1:1"),
        ServedNamespaces(SERVED),
        EventHandlers(lambda _key, _after: None, OperatorMetrics()),
        WatchCache(watches(SERVED, kueue=False)),
    )
    async with asyncio.timeout(5):
        with pytest.raises(PermissionError):
            await host.run(lambda: None)
    assert "1 tasks of kopf do not end" in caplog.text
    may_end.set()
