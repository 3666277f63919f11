"""The threads of a store, their slots and their deadline."""

import asyncio
from threading import Event

import pytest

from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_storage.calls import CallEndedError, StoreCall
from tests.unit.artifacts.fakes import Scripted, Work


def storage(work: Work, *, threads: int = 64, seconds: float = 60) -> SharedStore:
    return SharedStore({"gs": Scripted(work)}, seconds=seconds, threads=threads)


async def test_the_wait_for_a_thread_is_not_the_stores_silence() -> None:
    may_end = Event()

    def deaf(_call: StoreCall, uri: str) -> bytes:
        if uri.endswith("/x"):
            may_end.wait()
        return b"answer"

    store = storage(deaf, threads=8, seconds=0.2)
    first = asyncio.ensure_future(store.read("gs://a/team/x"))
    second = asyncio.ensure_future(store.read("gs://a/team/y"))
    with pytest.raises(StorageUnavailable, match=r"no response within 0 s"):
        await first
    assert not second.done(), "the first call's thread is still busy"
    may_end.set()
    assert await second == b"answer"


class Hanging:
    """Hangs in one bucket until it may end."""

    def __init__(self) -> None:
        self.may_end = Event()
        self.begun: list[str] = []

    def __call__(self, _call: StoreCall, uri: str) -> bytes:
        if "/slow" in uri:
            self.begun.append(uri)
            self.may_end.wait()
        return b"answer"


async def test_threads_never_exceed_the_tenants_share() -> None:
    hanging = Hanging()
    store = storage(hanging, threads=24)
    with calls_for_tenant("team-a"):
        # The share does not depend on the number of buckets that the tenant names.
        asked = [asyncio.ensure_future(store.read(f"gs://bucket-{number}/slow")) for number in range(20)]
    with calls_for_tenant("team-b"):
        assert await store.read("gs://bucket-0/x") == b"answer"
    assert len(hanging.begun) <= 3
    hanging.may_end.set()
    assert await asyncio.gather(*asked) == [b"answer"] * 20
    assert len(hanging.begun) == 20


async def test_many_tenants_of_a_bucket_that_hangs_leave_threads_to_other_buckets() -> None:
    hanging = Hanging()
    store = storage(hanging, threads=16)
    asked = []
    for number in range(20):
        with calls_for_tenant(f"team-{number % 10}"):
            asked.append(asyncio.ensure_future(store.read(f"gs://dead/slow-{number}")))
    await asyncio.sleep(0)
    with calls_for_tenant("team-20"):
        assert await store.read("gs://other/x") == b"answer"
    assert len(hanging.begun) <= 8
    asked[-1].cancel()
    hanging.may_end.set()
    assert await asyncio.gather(*asked[:-1]) == [b"answer"] * 19
    assert len(hanging.begun) == 19, "the call that waited for a thread has left its place to others"
    with calls_for_tenant("team-9"):
        assert await store.read("gs://dead/x") == b"answer"


async def test_a_caller_that_gave_up_while_it_waited_takes_no_place() -> None:
    hanging = Hanging()
    store = storage(hanging, threads=2)
    held = asyncio.ensure_future(store.read("gs://a/team/slow"))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(store.read("gs://a/team/y")) for _ in range(5)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    hanging.may_end.set()
    assert await held
    assert await store.read("gs://a/team/z") == b"answer"


async def test_an_abandoned_call_is_stopped_whenever_it_says_by_what() -> None:
    begun, stopped, again = asyncio.Event(), Event(), Event()
    loop = asyncio.get_running_loop()

    def work(call: StoreCall, _uri: str) -> None:
        call.stop_by(stopped.set)
        loop.call_soon_threadsafe(begun.set)
        stopped.wait()
        call.stop_by(again.set)
        with pytest.raises(CallEndedError):
            call.left()

    store = storage(work)
    running = asyncio.ensure_future(store.read("gs://a/team/x"))
    await begun.wait()
    running.cancel()
    await store.ended()
    assert again.is_set()


async def test_what_the_work_raises_reaches_its_caller() -> None:
    def broken(_call: StoreCall, _uri: str) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await storage(broken).read("gs://a/team/x")
