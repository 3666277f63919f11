"""A read that callers share is as fresh for each of them as a read of its own."""

import asyncio

import pytest

from finetune_operator.cluster.port import PROFILES
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.reconcile.other_objects import FRESH_SECONDS, OtherObjects, SharedRead
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from tests.unit.reconcile.fakes import NOW, FakeCluster
from tests.unit.reconcile.watched import Watched, at


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


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


NEVER_BEFORE = float("-inf")
#: Later than any read that has begun.
NOW_KNOWN = float("inf")


async def test_calls_that_wait_for_the_same_read_share_it() -> None:
    source = Source()
    shared = SharedRead(source.read, clock=Time())
    first = asyncio.create_task(shared(NOW_KNOWN))
    await source.begins(1)
    rest = [asyncio.create_task(shared(NOW_KNOWN)) for _ in range(100)]
    await asyncio.sleep(0)
    source.answer(0)
    await source.begins(2)
    source.answer(1)
    assert await asyncio.gather(first, *rest) == [0] * 101
    assert len(source.pending) == 2


async def test_a_call_does_not_get_what_was_read_before_it() -> None:
    source = Source()
    shared = SharedRead(source.read, clock=Time())
    early = asyncio.create_task(shared(NOW_KNOWN))
    await source.begins(1)
    source.value = 1
    late = asyncio.create_task(shared(NOW_KNOWN))
    await asyncio.sleep(0)
    source.answer(0)
    await source.begins(2)
    source.answer(1)
    assert (await early, await late) == (0, 1)


@pytest.mark.parametrize(
    ("known_since", "passed", "changed", "reads"),
    [
        (99.0, 0.5, False, 1),
        (99.0, FRESH_SECONDS + 0.1, False, 2),  # too long ago
        (99.0, 0.5, True, 2),  # a watch has reported a change since
        (100.0, 0.5, False, 2),  # the job may be newer than the read
    ],
)
async def test_a_read_serves_later_calls_for_what_was_known_before_while_it_is_fresh(
    known_since: float, passed: float, changed: bool, reads: int
) -> None:
    begun, versions = list[int](), [1]
    time = Time()

    async def read() -> int:
        begun.append(0)
        return len(begun)

    shared = SharedRead(read, clock=time, version=lambda: versions[-1])
    assert await shared(99.0) == 1
    time.now += passed
    if changed:
        versions.append(2)
    assert await shared(known_since) == reads


async def test_a_call_that_is_cancelled_does_not_cancel_the_read_of_others() -> None:
    source = Source()
    shared = SharedRead(source.read, clock=Time())
    cancelled, other = asyncio.create_task(shared(NEVER_BEFORE)), asyncio.create_task(shared(NEVER_BEFORE))
    await source.begins(1)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    source.answer(0)
    assert await other == 0


async def test_an_error_reaches_the_callers_of_that_read_alone() -> None:
    source = Source()
    shared = SharedRead(source.read, clock=Time())
    failing = [asyncio.create_task(shared(NEVER_BEFORE)) for _ in range(2)]
    await source.begins(1)
    source.pending[0].set_exception(OSError("refused"))
    for each in failing:
        with pytest.raises(OSError, match="refused"):
            await each
    later = asyncio.create_task(shared(NEVER_BEFORE))
    await source.begins(2)
    source.answer(1)
    assert await later == 0


def observation(namespace: str, number: int) -> Observation:
    """Returns that of a job that is not admitted yet."""
    return Observation(
        now=NOW,
        job=Job.parse({"metadata": {"namespace": namespace, "name": f"job-{number}"}, "spec": {}}),
        profiles=(),
        stored=None,
        jobsets=(),
        pods=(),
        folder=RunFolderView(),
    )


class Burst:
    """Jobs of two namespaces that are admitted."""

    def __init__(self) -> None:
        self.cluster, self.watched = FakeCluster(), Watched()
        self.watched.all_listed()
        self.others = OtherObjects(self.cluster, ServedNamespaces(), self.watched.cache.streams)

    async def admit(self, number: int, known_since: float | None) -> None:
        for namespace in ("a", "b"):
            await self.others.admitting(observation(namespace, number), known_since=known_since)

    @property
    def lists(self) -> tuple[int, int]:
        """Number of lists of profiles, and of quotas."""
        calls = self.cluster.calls
        return calls.count("list finetuneprofiles"), calls.count("list resourcequotas")


async def test_a_burst_of_jobs_costs_one_list_of_profiles_and_of_their_namespaces_quotas_each_second() -> (
    None
):
    burst = Burst()
    for number in range(100):
        burst.watched.now = number * FRESH_SECONDS / 40
        await burst.admit(number, known_since=-1.0)
    assert burst.lists == (3, 6)


async def test_each_job_that_was_created_after_a_list_of_profiles_is_admitted_by_another() -> None:
    burst = Burst()
    for number in range(10):
        burst.watched.now += 0.01
        await burst.admit(number, known_since=burst.watched.now - 0.001)
    assert burst.lists[0] >= 10


async def test_after_an_event_of_a_profile_no_job_is_admitted_by_an_earlier_list() -> None:
    burst = Burst()
    await burst.admit(0, known_since=-1.0)
    burst.watched.event(PROFILES, "MODIFIED", at(101, {"metadata": {"name": "local"}}))
    await burst.admit(1, known_since=-1.0)
    assert burst.lists == (2, 2)


async def test_a_job_that_was_read_live_is_admitted_by_a_list_of_its_own() -> None:
    burst = Burst()
    for number in range(2):
        await burst.others.admitting(observation("a", number), known_since=None)
    assert burst.lists == (2, 2)


async def test_jobs_that_are_admitted_at_once_share_lists_of_profiles_and_of_their_namespaces_quotas() -> (
    None
):
    burst = Burst()
    observations = [observation(namespace, number) for number in range(10) for namespace in ("a", "b")]
    await asyncio.gather(*(burst.others.admitting(each, known_since=None) for each in observations))
    profiles, quotas = burst.lists
    assert profiles <= 2
    assert quotas <= 4
