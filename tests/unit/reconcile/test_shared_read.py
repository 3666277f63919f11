"""A read that callers share is as fresh for each of them as a read of its own."""

import asyncio

import pytest

from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.reconcile.other_objects import OtherObjects, SharedRead
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from tests.unit.reconcile.fakes import NOW, FakeCluster


class Source:
    """A value that changes; a read returns the one at its beginning once it is answered."""

    def __init__(self) -> None:
        self.value = 0
        self.pending: list[asyncio.Future[int]] = []
        self._values: list[int] = []
        self.begun = asyncio.Condition()

    async def read(self) -> int:
        answer = asyncio.get_running_loop().create_future()
        self.pending.append(answer)
        self._values.append(self.value)
        async with self.begun:
            self.begun.notify_all()
        return await answer

    async def begins(self, number: int) -> None:
        """Waits until so many reads have begun."""
        async with self.begun:
            await self.begun.wait_for(lambda: len(self.pending) >= number)

    def answer(self, number: int) -> None:
        self.pending[number].set_result(self._values[number])


async def test_calls_that_wait_for_the_same_read_share_it() -> None:
    source = Source()
    shared = SharedRead(source.read)
    first = asyncio.create_task(shared())
    await source.begins(1)
    rest = [asyncio.create_task(shared()) for _ in range(100)]
    await asyncio.sleep(0)
    source.answer(0)
    await source.begins(2)
    source.answer(1)
    assert await asyncio.gather(first, *rest) == [0] * 101
    assert len(source.pending) == 2


async def test_a_call_does_not_get_what_was_read_before_it() -> None:
    source = Source()
    shared = SharedRead(source.read)
    early = asyncio.create_task(shared())
    await source.begins(1)
    source.value = 1
    late = asyncio.create_task(shared())
    await asyncio.sleep(0)
    source.answer(0)
    await source.begins(2)
    source.answer(1)
    assert (await early, await late) == (0, 1)


async def test_a_call_that_is_cancelled_does_not_cancel_the_read_of_others() -> None:
    source = Source()
    shared = SharedRead(source.read)
    cancelled, other = asyncio.create_task(shared()), asyncio.create_task(shared())
    await source.begins(1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    source.answer(0)
    assert await other == 0


async def test_an_error_reaches_the_callers_of_that_read_alone() -> None:
    source = Source()
    shared = SharedRead(source.read)
    failing = [asyncio.create_task(shared()) for _ in range(2)]
    await source.begins(1)
    later = asyncio.create_task(shared())
    await asyncio.sleep(0)
    source.pending[0].set_exception(OSError("refused"))
    for each in failing:
        with pytest.raises(OSError, match="refused"):
            await each
    await source.begins(2)
    source.answer(1)
    assert await later == 0


async def test_jobs_that_are_admitted_at_once_share_lists_of_profiles_and_of_their_namespaces_quotas() -> (
    None
):
    cluster = FakeCluster()
    others = OtherObjects(cluster, ServedNamespaces())
    observations = [
        Observation(
            now=NOW,
            job=Job.parse({"metadata": {"namespace": namespace, "name": f"job-{number}"}, "spec": {}}),
            profiles=(),
            stored=None,
            jobsets=(),
            pods=(),
            folder=RunFolderView(),
        )
        for number in range(10)
        for namespace in ("a", "b")
    ]
    await asyncio.gather(*map(others.admitting, observations))
    assert cluster.calls.count("list finetuneprofiles") <= 2
    assert cluster.calls.count("list resourcequotas") <= 4
    assert len(others._quotas) == 0
