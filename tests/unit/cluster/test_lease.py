import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from finetune_operator.cluster.lease import CannotLead, LeaderElection, LeadershipLost, LeaseSettings
from finetune_operator.cluster.port import LEASES, Unavailable
from tests.unit.cluster.fake_time import FakeTime, settle
from tests.unit.reconcile.fakes import FakeCluster

KEY = (LEASES, "system", "finetune-operator")


class Candidate:
    """One operator that takes part in the leader election."""

    def __init__(self, cluster: FakeCluster, time: FakeTime, identity: str, **options: Any) -> None:
        self.working = False
        self.end = asyncio.Event()
        self.error: Exception | None = None
        self.election = LeaderElection(
            cluster,
            LeaseSettings(namespace="system", name="finetune-operator", identity=identity),
            utc_now=time.utc_now,
            clock=time.clock,
            sleep=time.sleep,
            **options,
        )
        self.task = asyncio.ensure_future(self.election.run(self.work))

    async def work(self) -> None:
        self.working = True
        try:
            await self.end.wait()
            if self.error:
                raise self.error
        finally:
            self.working = False


@pytest.fixture
async def world() -> Any:
    """Yields a cluster, a clock and a function that adds candidates, which are cancelled at the end."""
    cluster, time = FakeCluster(), FakeTime()
    candidates: list[Candidate] = []

    def add(identity: str, **options: Any) -> Candidate:
        candidates.append(Candidate(cluster, time, identity, **options))
        return candidates[-1]

    yield cluster, time, add
    for candidate in candidates:
        candidate.task.cancel()
    await asyncio.gather(*(candidate.task for candidate in candidates), return_exceptions=True)


type World = tuple[FakeCluster, FakeTime, Callable[..., Candidate]]


def holder(cluster: FakeCluster) -> str:
    return str(cluster.objects[KEY]["spec"]["holderIdentity"])


async def test_the_first_leads_and_the_second_waits(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    second = add("b")
    await time.advance(100)
    assert first.working
    assert not second.working
    assert second.election.holder == "a"
    assert holder(cluster) == "a"


async def test_the_second_takes_over_at_once_when_the_first_ends_in_order(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    second = add("b")
    await time.advance(5)
    first.end.set()
    await settle()
    assert holder(cluster) == ""
    await time.advance(2)
    assert second.working
    assert cluster.objects[KEY]["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_died_is_followed_after_its_lease_has_run_out(world: World) -> None:
    cluster, time, add = world
    # renewTime is of another machine's clock: a Lease has expired only if it was observed unchanged for 15 s.
    cluster.put(
        LEASES,
        {
            "metadata": {"namespace": "system", "name": "finetune-operator"},
            "spec": {
                "holderIdentity": "dead",
                "leaseDurationSeconds": 15,
                "renewTime": "1970-01-01T00:00:00.000000Z",
            },
        },
    )
    heir = add("heir")
    await time.advance(14)
    assert not heir.working
    await time.advance(4)
    assert heir.working
    assert cluster.objects[KEY]["spec"]["leaseTransitions"] == 1


async def test_a_restarted_operator_takes_its_own_lease_back_at_once(world: World) -> None:
    cluster, _, add = world
    cluster.put(
        LEASES,
        {
            "metadata": {"namespace": "system", "name": "finetune-operator"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 3},
        },
    )
    first = add("a")
    await settle()
    assert first.working
    assert cluster.objects[KEY]["spec"]["leaseTransitions"] == 3


async def test_work_ends_before_another_may_begin_when_the_api_is_lost(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(5)
    cluster.fault = lambda moment, call: Unavailable("away", status=503) if moment == "before" else None
    await time.advance(14)
    assert not first.working
    with pytest.raises(LeadershipLost, match="not renewed"):
        await first.task


async def test_a_short_outage_costs_nothing(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(5)
    cluster.fault = lambda moment, call: Unavailable("away", status=503) if moment == "before" else None
    await time.advance(5)
    cluster.fault = lambda *_: None
    await time.advance(60)
    assert first.working


async def test_a_renewal_whose_answer_was_lost_is_recognised(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    lost = iter([Unavailable("answer lost", status=None)])
    cluster.fault = lambda moment, call: (
        next(lost, None) if (moment, call) == ("after", "apply leases") else None
    )
    await time.advance(30)
    assert first.working


async def test_a_lease_in_other_hands_ends_the_work(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    stolen = cluster.objects[KEY]
    cluster.put(LEASES, {**stolen, "spec": {**stolen["spec"], "holderIdentity": "thief"}})
    await time.advance(5)
    assert not first.working
    with pytest.raises(LeadershipLost, match="another operator"):
        await first.task
    assert holder(cluster) == "thief"


async def test_an_error_of_the_work_is_raised_and_the_lease_is_free(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    first.error = ValueError("broken")
    first.end.set()
    with pytest.raises(ValueError, match="broken"):
        await first.task
    assert holder(cluster) == ""


def halted(time: FakeTime, seconds: float) -> None:
    """Lets the time pass as for a process that is stopped: no task runs."""
    time.now += seconds


async def test_a_leader_that_was_stopped_does_not_lead_when_it_continues(world: World) -> None:
    _, time, add = world
    first = add("a")
    await time.advance(5)
    assert first.election.leading
    halted(time, 25)
    assert not first.election.leading, "no task has run since"
    await time.advance(0)
    assert not first.working
    with pytest.raises(LeadershipLost, match="not renewed for 26 s"):
        await first.task


async def test_a_renewal_that_was_answered_before_a_stop_does_not_prolong_leadership(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(3)

    def stop(moment: str, call: str) -> None:
        if (moment, call) == ("after", "apply leases"):
            cluster.fault = lambda *_: None
            halted(time, 12)

    cluster.fault = stop
    await time.advance(1)
    assert not first.election.leading
    await time.advance(0)
    assert not first.working
    with pytest.raises(LeadershipLost):
        await first.task


async def test_a_candidate_that_was_stopped_while_it_was_elected_does_not_lead(world: World) -> None:
    cluster, time, add = world

    def stop(moment: str, call: str) -> None:
        if (moment, call) == ("after", "create leases"):
            halted(time, 12)

    cluster.fault = stop
    first = add("a")
    await settle()
    assert not first.election.leading
    await time.advance(0)
    with pytest.raises(LeadershipLost):
        await first.task


async def test_a_lost_leader_waits_for_no_retry(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(5)
    cluster.fault = lambda moment, call: Unavailable("away", status=503) if moment == "before" else None
    # Renewed last at 4 s. The renewals at 8, 10 and 12 s fail.
    await time.advance(8.9)
    assert first.working
    assert first.election.problem == "the Lease was not renewed: away"
    await time.advance(0.1)
    assert not first.working


async def test_a_candidate_knows_whether_it_can_reach_the_lease(world: World) -> None:
    cluster, time, add = world
    add("a")
    await time.advance(1)
    second = add("b")
    assert second.election.problem == "the Lease has not been read yet"
    await time.advance(1)
    assert second.election.problem is None
    cluster.fault = lambda moment, call: Unavailable("away", status=503) if moment == "before" else None
    await time.advance(2)
    assert second.election.problem == "cannot take the Lease finetune-operator: away"
    cluster.fault = lambda *_: None
    await time.advance(2)
    assert second.election.problem is None


async def test_two_candidates_for_a_lease_that_does_not_exist_make_one_leader(world: World) -> None:
    _, time, add = world
    candidates = [add("a"), add("b")]
    await time.advance(3)
    assert sum(candidate.working for candidate in candidates) == 1


async def test_who_could_not_work_leaves_the_lease(world: World) -> None:
    cluster, time, _ = world
    able = False

    async def is_able() -> bool:
        return able

    election = LeaderElection(
        cluster,
        LeaseSettings(namespace="system", name="finetune-operator", identity="a"),
        able=is_able,
        utc_now=time.utc_now,
        clock=time.clock,
        sleep=time.sleep,
    )
    with pytest.raises(CannotLead):
        await election.run(asyncio.Event().wait)
    assert KEY not in cluster.objects
    able = True
    leading = asyncio.ensure_future(election.run(asyncio.Event().wait))
    await settle()
    assert (holder(cluster), election.leading) == ("a", True)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_a_candidate_is_asked_whether_it_can_work_only_when_the_lease_is_free(world: World) -> None:
    cluster, time, add = world
    first = add("a")
    await time.advance(1)
    asked = 0

    async def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    second = add("b", able=count)
    await time.advance(60)
    assert (first.working, asked) == (True, 0)
    first.end.set()
    await time.advance(5)
    assert (asked, second.working, holder(cluster)) == (1, False, "")
    with pytest.raises(CannotLead):
        second.task.result()
