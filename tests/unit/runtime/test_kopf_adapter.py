import asyncio
import getpass
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from finetune_operator.cluster.connect import ServiceAccountFolder
from finetune_operator.cluster.port import JOBS
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_streams import OLDEST_SECONDS
from finetune_operator.runtime import kopf_adapter
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import ERROR_PAUSE_SECONDS, WatchManager
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import watches
from tests.unit.runtime.watched_api import Account, WatchedApi, large_job


async def test_watches_start_for_a_user_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pod's uid has no entry in the passwd file."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", nobody)
    host = WatchManager(
        ServiceAccountFolder(tmp_path),
        ServedNamespaces(),
        EventHandlers(lambda _key: None, OperatorMetrics()),
        WatchCache(watches((), kueue=False)),
    )
    started = asyncio.Event()
    running = asyncio.create_task(host.run(started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert started.is_set()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


@asynccontextmanager
async def watching(
    api: WatchedApi, added: list[str], cache: WatchCache | None = None
) -> AsyncIterator[EventHandlers]:
    """Runs the watches on that server; the keys of reported jobs are appended to ``added``."""
    async with TestServer(api.app()) as server:
        account = Account(url=str(server.make_url("/")))
        intake = EventHandlers(lambda key, _after: added.append(str(key)), OperatorMetrics())
        host = WatchManager(
            account,
            ServedNamespaces(),
            intake,
            cache or WatchCache(watches((), kueue=False)),
        )
        running = asyncio.create_task(host.run(lambda: None))
        try:
            yield intake
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  there is no event
            await asyncio.sleep(0.05)


async def test_neither_kopfs_finalizer_nor_its_annotations_count_where_a_tenant_has_written_them() -> None:
    """kopf would try to remove the finalizer forever, and would fail at the annotation before it calls a handler."""
    marked, deaf = (large_job(number, labels=1) for number in (0, 1))
    marked["metadata"]["finalizers"] = ["kopf.zalando.org/KopfFinalizerMarker"]
    deaf["metadata"]["annotations"] = {"kopf.zalando.org/last-handled-configuration": "{"}
    later = {**deaf, "metadata": {**deaf["metadata"], "generation": 2}}
    jobs = [json.dumps(each) for each in (marked, deaf)]
    event = json.dumps({"type": "MODIFIED", "object": later})
    api = WatchedApi(lambda begin, end: jobs[begin:end], 2, lambda: [event])
    added: list[str] = []
    async with watching(api, added):
        await until(lambda: len(added) == 3)
    assert sorted(added) == ["team-a/large-0", "team-a/large-1", "team-a/large-1"]
    assert api.writes == []


async def test_a_page_of_large_objects_is_asked_for_again_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page names the start of the next: no object is omitted or reported twice, and the watch has no gap."""
    gaps: list[EventHandlers] = []
    monkeypatch.setattr(EventHandlers, "missed", gaps.append)

    def jobs(begin: int, end: int) -> list[str]:
        # Four jobs are large; of the others, hundreds fit on a page.
        return [json.dumps(large_job(number, 40_000 if number < 4 else 1)) for number in range(begin, end)]

    api = WatchedApi(jobs, 30)
    added: list[str] = []
    async with watching(api, added):
        await until(lambda: len(added) >= 30)
    assert sorted(added) == sorted(f"team-a/large-{number}" for number in range(30))
    assert api.pages[:2] == [100, 25]
    assert api.pages[-1] > min(api.pages)
    assert gaps == []


async def test_a_listing_whose_continue_token_has_expired_begins_again() -> None:
    """The API server compacts what it has listed after five minutes. kopf would end, and with it the process."""

    def jobs(begin: int, end: int) -> list[str]:
        return [json.dumps(large_job(number, labels=1)) for number in range(begin, end)]

    api = WatchedApi(jobs, 101, expired=True)
    cache = WatchCache(watches((), kueue=False))
    async with watching(api, [], cache):
        await until(lambda: bool(api.watches))
        assert await cache.job("team-a", "large-100") is not None


async def test_the_cache_has_each_object_before_its_handler_is_called() -> None:
    first = large_job(0, labels=1)
    later = {**first, "metadata": {**first["metadata"], "resourceVersion": "7", "generation": 2}}
    api = WatchedApi(
        lambda _begin, _end: [json.dumps(first)],
        1,
        lambda: [json.dumps({"type": "MODIFIED", "object": later})],
    )
    cache, uid = WatchCache(watches((), kueue=False)), first["metadata"]["uid"]
    seen: list[int] = []

    class Handlers(list[str]):
        def append(self, key: str) -> None:
            super().append(key)
            seen.append(cache.version(JOBS, uid, uid) or 0)

    async with watching(api, added := Handlers(), cache):
        await until(lambda: len(added) == 2)
        found = await cache.job("team-a", "large-0")
    assert seen == [1, 7]
    assert found is not None
    assert (found.job.generation, found.jobsets, found.pods) == (2, [], [])


async def test_bookmarks_show_the_cache_that_a_quiet_watch_is_alive_and_kopf_continues_from_them() -> None:
    now = 0.0
    api = WatchedApi(lambda _begin, _end: [json.dumps(large_job(0, labels=1))], 1)
    cache = WatchCache(watches((), kueue=False), clock=lambda: now)
    async with watching(api, added := [], cache):
        await until(lambda: bool(added and api.watches))
        assert await cache.job("team-a", "large-0") is not None
        now = OLDEST_SECONDS + 1
        assert await cache.job("team-a", "large-0") is None
        api.bookmark.set()
        await until(lambda: len(api.watches) >= 2)
        async with asyncio.timeout(20):
            while await cache.job("team-a", "large-0") is None:  # noqa: ASYNC110  there is no event
                await asyncio.sleep(0.05)
    assert api.watches[0]["allowWatchBookmarks"] == "true"
    assert [each["resourceVersion"] for each in api.watches[:2]] == ["1", "12"]
    assert len(api.pages) == 1, "the watch continues without a listing"


async def test_kopf_continues_from_the_last_event_of_a_watch_that_was_cut() -> None:
    job = large_job(0, labels=1)
    later = {**job, "metadata": {**job["metadata"], "resourceVersion": "7", "generation": 2}}
    lines = iter([[json.dumps({"type": "MODIFIED", "object": later})], []])
    api = WatchedApi(lambda _begin, _end: [json.dumps(job)], 1, lambda: next(lines, []), cut=True)
    async with watching(api, added := []):
        await until(lambda: len(api.watches) >= 2)
    assert [each["resourceVersion"] for each in api.watches[:2]] == ["1", "7"]
    assert added == ["team-a/large-0", "team-a/large-0"]


async def test_an_error_of_a_handler_does_not_stop_the_events_of_other_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = EventHandlers.job

    def fails(self: EventHandlers, event_type: str | None, job: Any) -> None:
        if job["metadata"]["name"] == "large-0":
            raise KeyError("any")
        handle(self, event_type, job)

    monkeypatch.setattr(EventHandlers, "job", fails)
    jobs = [json.dumps(large_job(number, labels=1)) for number in range(2)]
    async with watching(WatchedApi(lambda begin, end: jobs[begin:end], 2), added := []):
        await until(lambda: bool(added))
    assert added == ["team-a/large-1"]


async def test_a_watch_whose_resource_version_decreases_is_listed_again() -> None:
    """The data of the API server were restored from a backup, and the watch continues as if nothing had happened."""
    job = large_job(0, labels=1)

    def event(version: int) -> str:
        return json.dumps(
            {
                "type": "MODIFIED",
                "object": {**job, "metadata": {**job["metadata"], "resourceVersion": str(version)}},
            }
        )

    lines = iter([[event(9), event(5)], []])
    api = WatchedApi(lambda _begin, _end: [json.dumps(job)], 1, lambda: next(lines, []))
    cache = WatchCache(watches((), kueue=False))
    async with watching(api, [], cache) as intake:
        missed: list[bool] = []
        intake.missed = lambda: missed.append(True)  # type: ignore[method-assign]
        await until(lambda: len(api.pages) == 2)
        await until(lambda: bool(missed))
        found = await cache.job("team-a", "large-0")
    assert found is not None
    assert found.job.resource_version == "1"


async def test_a_watch_is_not_continued_at_a_version_that_the_api_server_does_not_have() -> None:
    """It was restarted with data from a backup. It would answer such a watch with silence."""
    job = large_job(0, labels=1)
    later = {**job, "metadata": {**job["metadata"], "resourceVersion": "9", "generation": 2}}

    def lines() -> list[str]:
        if len(api.watches) > 1:
            return []
        api.restored = 1
        return [json.dumps({"type": "MODIFIED", "object": later})]

    api = WatchedApi(lambda _begin, _end: [json.dumps(job)], 1, lines, cut=True)
    cache = WatchCache(watches((), kueue=False))
    async with watching(api, [], cache):
        await until(lambda: len(api.watches) == 2)
        found = await cache.job("team-a", "large-0")
    assert found is not None
    assert [each["resourceVersion"] for each in api.watches] == ["1", "1"]
    assert (len(api.pages), found.job.generation) == (2, 1)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses of the adapter, in seconds, which take no time."""
    waited: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds >= ERROR_PAUSE_SECONDS:
            waited.append(seconds)
            seconds = 0
        await sleep(seconds)

    monkeypatch.setattr(f"{kopf_adapter.__name__}.asyncio.sleep", noted)
    return waited


def ends_with(code: int) -> list[str]:
    """The line that ends a watch with an error of the API server."""
    status = {"kind": "Status", "code": code, "reason": "Any", "message": "etcdserver: request timed out"}
    return [json.dumps({"type": "ERROR", "object": status})]


@pytest.mark.parametrize(("code", "expected"), [(410, []), (500, [5.0])])
async def test_a_watch_that_ends_with_an_error_is_listed_again(
    code: int, expected: list[float], pauses: list[float]
) -> None:
    """Not at once after an error other than an outdated version: the API server may be overloaded."""
    lines = iter([ends_with(code), []])
    api = WatchedApi(lambda _begin, _end: [json.dumps(large_job(0, labels=1))], 1, lambda: next(lines, []))
    async with watching(api, []):
        await until(lambda: len(api.watches) == 2)
    assert len(api.pages) == 2
    assert pauses == expected


async def test_a_listing_that_the_server_cannot_answer_yet_begins_again(pauses: list[float]) -> None:
    """Its own cache is behind etcd, for minutes after thousands of objects were stored: kopf would end."""
    api = WatchedApi(lambda _begin, _end: [json.dumps(large_job(0, labels=1))], 1, lags=True)
    async with watching(api, []):
        await until(lambda: len(api.watches) == 1)
    assert len(api.pages) == 1
    assert pauses == [5.0]


async def test_the_pause_grows_while_a_watch_delivers_nothing_but_errors(pauses: list[float]) -> None:
    changed = json.dumps({"type": "MODIFIED", "object": large_job(0, labels=1)})
    lines = iter([*[ends_with(500)] * 5, [changed, *ends_with(500)], []])
    api = WatchedApi(lambda _begin, _end: [json.dumps(large_job(0, labels=1))], 1, lambda: next(lines, []))
    async with watching(api, []):
        await until(lambda: len(api.watches) == 7)
    assert pauses == [5.0, 10.0, 20.0, 20.0, 20.0, 5.0]
