import asyncio
from threading import Event

import pytest

from finetune_operator.artifacts.calls import CallEndedError, StoreCall, StoreCalls
from finetune_operator.artifacts.tenant_shares import calls_for_tenant


async def test_the_wait_for_a_thread_is_not_the_stores_silence() -> None:
    calls = StoreCalls(seconds=0.2, total=8, per_tenant=1, per_bucket=8)
    may_end = Event()

    def deaf(_call: StoreCall) -> bool:
        return may_end.wait()

    first = asyncio.ensure_future(calls.run("gs://a/team/x", deaf))
    second = asyncio.ensure_future(calls.run("gs://a/team/y", lambda _: "answer"))
    with pytest.raises(TimeoutError):
        await first
    assert not second.done(), "the first call's thread is still busy"
    may_end.set()
    assert await second == "answer"


async def test_threads_never_exceed_the_tenants_share() -> None:
    calls = StoreCalls(seconds=60, total=64, per_tenant=3, per_bucket=64)
    may_end = Event()
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        may_end.wait()
        return number

    with calls_for_tenant("team-a"):
        # The share does not depend on the number of buckets that the tenant names.
        asked = [
            asyncio.ensure_future(calls.run(f"gs://bucket-{number}/x", lambda _, number=number: work(number)))
            for number in range(20)
        ]
    with calls_for_tenant("team-b"):
        assert await calls.run("gs://bucket-0/x", lambda _: "other") == "other"
    assert len(begun) <= 3
    may_end.set()
    assert await asyncio.gather(*asked) == list(range(20))
    assert sorted(begun) == list(range(20))


async def test_many_tenants_of_a_bucket_that_hangs_leave_threads_to_other_buckets() -> None:
    calls = StoreCalls(seconds=60, total=8, per_tenant=2, per_bucket=4)
    may_end = Event()
    begun: list[int] = []

    def hang(number: int) -> int:
        begun.append(number)
        may_end.wait()
        return number

    asked = []
    for number in range(20):
        with calls_for_tenant(f"team-{number % 10}"):
            asked.append(
                asyncio.ensure_future(calls.run("gs://dead/x", lambda _, number=number: hang(number)))
            )
    await asyncio.sleep(0)
    with calls_for_tenant("team-20"):
        assert await calls.run("gs://other/x", lambda _: "answer") == "answer"
    asked[-1].cancel()
    may_end.set()
    assert await asyncio.gather(*asked[:-1]) == list(range(19))
    assert sorted(begun) == list(range(19)), "the call that waited for a thread has left its place to others"
    with calls_for_tenant("team-9"):
        assert await calls.run("gs://dead/x", lambda _: "answer") == "answer"


async def test_a_caller_that_gave_up_while_it_waited_takes_no_place() -> None:
    calls = StoreCalls(seconds=60, total=2, per_tenant=1, per_bucket=2)
    may_end = Event()
    held = asyncio.ensure_future(calls.run("gs://a/team/x", lambda _: may_end.wait()))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(calls.run("gs://a/team/y", lambda _: None)) for _ in range(5)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    may_end.set()
    assert await held
    assert await calls.run("gs://a/team/z", lambda _: "answer") == "answer"


async def test_an_abandoned_call_is_stopped_whenever_it_says_by_what() -> None:
    calls = StoreCalls(seconds=60, total=2, per_tenant=1, per_bucket=2)
    begun, stopped, again = asyncio.Event(), Event(), Event()
    loop = asyncio.get_running_loop()

    def work(call: StoreCall) -> None:
        call.stop_by(stopped.set)
        loop.call_soon_threadsafe(begun.set)
        stopped.wait()
        call.stop_by(again.set)
        with pytest.raises(CallEndedError):
            call.left()

    running = asyncio.ensure_future(calls.run("gs://a/team/x", work))
    await begun.wait()
    running.cancel()
    await calls.ended()
    assert again.is_set()


async def test_what_the_work_raises_reaches_its_caller() -> None:
    def broken(_call: StoreCall) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await StoreCalls(seconds=60, total=1, per_tenant=1, per_bucket=1).run("gs://a/team/x", broken)
