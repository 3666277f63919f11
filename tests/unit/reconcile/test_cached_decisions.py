"""What the reconciler reads live, beside what the watches have delivered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from finetune_contract import Failure, FailureClass
from finetune_operator.api import FineTuneJobStatus, Phase
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    PROFILES,
    WORKLOADS,
    Conflict,
    ResponseTooLarge,
)
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Admit, Create, Decision, Delete, Deletion, Finish, Wait
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.cache_check import distrust_outdated
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import ReconcileError, Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from tests.unit.reconcile.fakes import NOW, OWN, FakeCluster, FakeStore, child, job, plan, workload
from tests.unit.reconcile.test_reconciler import record_calls
from tests.unit.reconcile.watched import Watched

KEY = JobKey("team", "demo")
RUNNING = FineTuneJobStatus(observed_generation=1, phase=Phase.RUNNING)
FAILURE = Failure(failure_class=FailureClass.INFRASTRUCTURE, reason="Lost", message="it was lost", code=1)


class Setup:
    """An admitted job whose preflight has a JobSet. The cache has all of it."""

    def __init__(
        self, action: Callable[[], Any], phase: Phase = Phase.RUNNING, *, kueue: bool = False
    ) -> None:
        self.cluster, self.watched = FakeCluster(), Watched(kueue=kueue)
        self.cluster.put(JOBS, job(observedGeneration=1, phase="Running"))
        self.cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))
        self.observed: list[Observation] = []
        self.action, self.phase = action, phase
        self.plans = Plans(self.cluster, OWN)

    async def reconcile(self) -> list[str]:
        """Reconciles once and returns the calls."""
        calls = record_calls(self.cluster)
        store = FakeStore()
        await Reconciler(
            Observer(
                self.cluster,
                self.plans,
                RunFolderReader(store),
                self.watched.cache,
                utc_now=lambda: NOW,
                live_jobs=lambda: 1,
            ),
            self.decide,
            Applier(self.cluster, self.plans, store, self.watched.cache),
            utc_now=lambda: NOW,
        ).reconcile(KEY, retry_in=1)
        return calls

    async def begin(self) -> None:
        """Stores the plan and delivers the objects."""
        await self.plans.create(plan())
        self.deliver()

    def deliver(self) -> None:
        version = max(int(each["metadata"]["resourceVersion"]) for each in self.cluster.objects.values())
        for stream in self.watched.streams:
            self.watched.listed(stream.kind, *self.cluster.of(stream.kind), version=version)

    def decide(self, observation: Observation) -> Decision:
        self.observed.append(observation)
        status = FineTuneJobStatus(observed_generation=1, phase=self.phase)
        return Decision(action=self.action(), status=status, requeue_after=5)

    @property
    def lives(self) -> list[bool]:
        """Whether each observation was live."""
        return [not each.cached for each in self.observed]


def creation(name: str) -> Callable[[], Create]:
    return lambda: Create(jobset=child("JobSet", name))


def reads(calls: list[str]) -> list[str]:
    return sorted(call for call in calls if call.split()[0] in ("get", "list"))


LIVE = ["get finetunejobs", "list jobsets", "list pods"]


@pytest.mark.parametrize(
    ("action", "phase", "expected"),
    [
        pytest.param(Wait, Phase.RUNNING, [], id="waits"),
        pytest.param(creation("demo-conv-1"), Phase.RUNNING, [], id="creates a first JobSet on CPU nodes"),
        pytest.param(
            creation("demo-train-1"), Phase.RUNNING, ["get finetunejobs"], id="creates the first slice"
        ),
        pytest.param(creation("demo-conv-2"), Phase.RUNNING, LIVE, id="repeats a stage"),
        pytest.param(creation("demo-train-2"), Phase.RUNNING, LIVE, id="repeats training"),
        pytest.param(Finish, Phase.SUCCEEDED, ["get finetunejobs"], id="succeeds"),
        pytest.param(Finish, Phase.FAILED, LIVE, id="fails"),
        pytest.param(
            lambda: Wait(records=((AttemptKey.of(child("JobSet", "demo-prep-1")), FAILURE),)),
            Phase.RUNNING,
            LIVE,
            id="charges an attempt",
        ),
        pytest.param(
            lambda: Delete(jobsets=(Deletion(name="demo-prep-1", uid="uid-2"),)),
            Phase.RUNNING,
            LIVE,
            id="stops",
        ),
        pytest.param(lambda: Admit(write=plan()), Phase.RUNNING, LIVE, id="stores a lost plan"),
    ],
)
async def test_live_reads_before(action: Callable[[], Any], phase: Phase, expected: list[str]) -> None:
    setup = Setup(action, phase)
    await setup.begin()
    if action().__class__ is Admit:
        with pytest.raises(ReconcileError):
            await setup.reconcile()
        assert setup.lives == [False, True]
        return
    assert reads(await setup.reconcile()) == expected
    assert setup.lives == ([False, True] if expected == LIVE else [False])


@pytest.mark.parametrize("action", [creation("demo-train-1"), Finish])
async def test_a_job_that_has_changed_is_observed_again_before(action: Callable[[], Any]) -> None:
    setup = Setup(action, Phase.SUCCEEDED)
    await setup.begin()
    setup.cluster.put(JOBS, {**setup.cluster.of(JOBS)[0], "spec": {"suspend": True}})
    await setup.reconcile()
    assert setup.lives == [False, True]
    assert setup.observed[-1].job.control.suspend


@pytest.mark.parametrize(("topology", "lists"), [("2x4", 1), ("4x4", 3)])
async def test_nodes_are_listed_again_only_if_pods_of_other_kinds_have_failed(
    topology: str, lists: int
) -> None:
    setup = Setup(creation("demo-prep-2"))

    def fail(pod: str, topology: str) -> None:
        kind = {"cloud.google.com/gke-tpu-topology": topology}
        found = child("Pod", pod) | {"spec": {"nodeSelector": kind}, "status": {"phase": "Failed"}}
        setup.cluster.put(PODS, found)
        setup.cluster.put(NODES, {"metadata": {"name": f"node-{topology}", "labels": kind}})

    fail("demo-prep-1-cpu-0-0-abcde", "2x4")
    await setup.begin()
    # The watches are behind.
    setup.cluster.put(JOBSETS, setup.cluster.of(JOBSETS)[0])
    fail("demo-prep-1-cpu-0-1-abcde", topology)
    assert reads(await setup.reconcile()) == sorted([*LIVE, *["list nodes"] * lists])
    assert setup.lives == [False, True]
    assert set(setup.observed[-1].nodes or ()) == {"node-2x4", f"node-{topology}"}


async def test_the_next_decision_knows_what_this_one_has_written() -> None:
    setup = Setup(creation("demo-conv-1"))
    await setup.begin()
    await setup.reconcile()
    setup.action = Wait
    assert await setup.reconcile() == []
    seen = setup.observed[-1]
    assert seen.cached
    assert {each.name for each in seen.jobsets} == {"demo-prep-1", "demo-conv-1"}
    assert seen.job.resource_version == setup.cluster.of(JOBS)[0]["metadata"]["resourceVersion"]


async def test_a_job_that_was_deleted_while_its_plan_was_stored_leaves_no_plan() -> None:
    setup = Setup(Wait)
    await setup.begin()
    # Its deletion was handled before the plan was stored.
    del setup.cluster.objects[JOBS, "team", "demo"]
    setup.phase = Phase.FAILED
    with pytest.raises(ReconcileError):
        await setup.reconcile()
    assert setup.cluster.of(CONFIG_MAPS) == []


async def test_after_a_conflict_the_job_is_read_live() -> None:
    setup = Setup(creation("demo-prep-1"))
    await setup.begin()
    with pytest.raises(ReconcileError):
        await setup.reconcile()
    setup.action = Wait
    assert reads(await setup.reconcile()) == LIVE
    assert await setup.reconcile() == []
    assert setup.lives == [False, True, False]


async def test_after_a_reconcile_that_took_too_long_the_job_is_read_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JobSet may have been created although the response has not arrived."""
    setup = Setup(creation("demo-conv-1"))
    await setup.begin()
    begun, create = asyncio.Event(), setup.cluster.create

    async def created(*args: Any) -> Any:
        await create(*args)
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(setup.cluster, "create", created)
        reconciling = asyncio.create_task(setup.reconcile())
        await begun.wait()
        reconciling.cancel()
        await asyncio.gather(reconciling, return_exceptions=True)
    setup.action = Wait
    await setup.reconcile()
    assert setup.lives == [False, True]


@pytest.mark.parametrize("complete", [True, False])
async def test_a_job_is_admitted_or_refused_by_live_profiles_alone(complete: bool) -> None:
    setup = Setup(Wait)
    setup.cluster.objects.clear()
    setup.cluster.put(JOBS, job())
    setup.deliver()
    if not complete:
        setup.watched.cache.distrust(job()["metadata"]["uid"])
    # The watch of profiles is behind.
    setup.cluster.put(PROFILES, {"metadata": {"name": "local"}, "spec": {}})
    await setup.reconcile()
    assert setup.lives == ([False, True] if complete else [True])
    assert {len(each.profiles) for each in setup.observed} == {1}


async def test_a_decision_on_cached_objects_never_follows_one_on_newer_ones() -> None:
    """Otherwise a condition that a live observation has set would be taken back, and its Event be created twice."""
    setup = Setup(creation("demo-conv-2"))
    setup.cluster.put(PODS, child("Pod", "demo-prep-1-cpu-0-0-abcde"))
    await setup.begin()
    # The watches are behind: the JobSet has changed, and the pod is gone.
    setup.cluster.put(JOBSETS, setup.cluster.of(JOBSETS)[0])
    setup.cluster.objects.pop((PODS, "team", "demo-prep-1-cpu-0-0-abcde"))
    await setup.reconcile()
    setup.action = Wait
    await setup.reconcile()
    first, live, cached = setup.observed
    assert setup.lives == [False, True, False]
    assert (len(first.pods), len(live.pods), len(cached.pods)) == (1, 0, 0)
    assert {each.name for each in cached.jobsets} == {"demo-prep-1", "demo-conv-2"}


async def test_a_lost_event_is_found_by_comparison_with_metadata() -> None:
    setup = Setup(Wait)
    await setup.begin()
    uid = "uid-of-demo"
    assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == frozenset()
    # Created, changed, deleted: each time without an event.
    for change in (
        lambda: setup.cluster.put(PODS, child("Pod", "demo-prep-1-cpu-0-0-abcde")),
        lambda: setup.cluster.put(JOBSETS, setup.cluster.of(JOBSETS)[0]),
        lambda: setup.cluster.objects.pop((PODS, "team", "demo-prep-1-cpu-0-0-abcde")),
    ):
        change()
        assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == {uid}
        assert reads(await setup.reconcile()) == LIVE
        assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == frozenset()
    assert setup.observed[-1].pods == ()


async def test_a_comparison_ignores_objects_that_are_not_the_jobs() -> None:
    setup = Setup(Wait)
    await setup.begin()
    forged = child("Pod", "demo-prep-1-cpu-0-0-abcde")
    forged["metadata"]["ownerReferences"] = []
    setup.cluster.put(PODS, forged)
    setup.cluster.put(JOBSETS, child("JobSet", "other-prep-1", owner="other"))
    assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == frozenset()


async def test_a_plan_that_cannot_be_stored_twice_is_read_after_the_conflict() -> None:
    setup = Setup(lambda: Admit(write=plan()))
    setup.cluster.objects.clear()
    setup.cluster.put(JOBS, job())
    setup.deliver()
    # Another process has admitted the job; no status shows it yet.
    await Plans(setup.cluster, OWN).create(plan())
    with pytest.raises(ReconcileError) as caught:
        await setup.reconcile()
    assert isinstance(caught.value.__cause__, Conflict)
    setup.action = Wait
    await setup.reconcile()
    assert setup.observed[-1].stored is not None


def queued(setup: Setup) -> str:
    """Puts the JobSet into a queue; returns the name of its Workload."""
    jobset = setup.cluster.of(JOBSETS)[0]
    jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    made = setup.cluster.put(WORKLOADS, workload("demo-prep-1", jobset["metadata"]["uid"]))
    setup.cluster.put(WORKLOADS, workload("demo-prep-1", "uid-of-an-earlier-one"))
    name: str = made["metadata"]["name"]
    return name


@pytest.mark.parametrize("kueue", [True, False])
async def test_workloads_of_a_queued_job_are_listed_only_where_they_are_not_watched(kueue: bool) -> None:
    setup = Setup(Wait, kueue=kueue)
    name = queued(setup)
    await setup.begin()
    assert reads(await setup.reconcile()) == ([] if kueue else ["list workloads"])
    (seen,) = setup.observed
    assert seen.cached
    assert [each.name for each in seen.workloads or ()] == [name]


async def test_a_live_read_completes_the_cached_workloads() -> None:
    setup = Setup(Wait, kueue=True)
    name = queued(setup)
    await setup.begin()
    setup.watched.cache.distrust("uid-of-demo")
    assert reads(await setup.reconcile()) == [*LIVE, "list workloads"]
    assert reads(await setup.reconcile()) == []
    assert [[each.name for each in seen.workloads or ()] for seen in setup.observed] == [[name], [name]]


async def test_a_lost_event_of_a_workload_or_of_the_job_is_found_by_comparison() -> None:
    setup = Setup(Wait, kueue=True)
    queued(setup)
    await setup.begin()
    assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == frozenset()
    for kind in (WORKLOADS, JOBS):
        setup.cluster.put(kind, setup.cluster.of(kind)[0])
        assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == {"uid-of-demo"}
        await setup.reconcile()
        assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == frozenset()


async def test_a_lost_deletion_of_the_job_is_noticed_and_the_job_forgotten() -> None:
    setup = Setup(Wait)
    await setup.begin()
    del setup.cluster.objects[JOBS, "team", "demo"]
    assert await distrust_outdated(setup.cluster, setup.watched.cache, ()) == {"uid-of-demo"}
    await setup.reconcile()
    assert setup.observed == []
    assert setup.watched.bytes_of() == 0


def flood(setup: Setup, pods: int = 3500) -> None:
    """Adds what the tenant's own batch Job, whose name begins like that of the JobSet, may create."""
    for number in range(pods):
        pod = child("Pod", f"demo-prep-1-x-0-{number:05}")
        pod["metadata"] |= {"uid": f"forged-{number}"}
        pod["metadata"]["ownerReferences"][0]["name"] = "demo-prep-1-x"
        pod["spec"] = {"containers": [{"name": f"c{each:063}"} for each in range(32)]}
        pod["status"] = {"phase": "Pending"}
        setup.cluster.put(PODS, pod)


@pytest.mark.parametrize("delivered", [True, False])
async def test_any_number_of_pods_with_the_jobs_labels_does_not_keep_it_from_being_stopped(
    delivered: bool,
) -> None:
    setup = Setup(Wait, Phase.SUSPENDED)
    await setup.begin()
    uid = setup.cluster.of(JOBSETS)[0]["metadata"]["uid"]
    setup.action = lambda: Delete(jobsets=(Deletion(name="demo-prep-1", uid=uid),))
    flood(setup)
    if delivered:
        setup.deliver()
    await setup.reconcile()
    assert not setup.cluster.of(JOBSETS)
    observed = setup.observed[-1]
    assert [each.name for each in observed.jobsets] == ["demo-prep-1"]
    assert (observed.pods, observed.cached) == ((), False)
    why = observed.folder.unreadable
    assert why is not None
    assert why.reason == "TooManyObjects"
    assert "Delete those without a controller" in why.message


async def test_a_listing_that_is_too_large_is_replaced_by_jobsets_read_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(Wait)
    await setup.begin()
    setup.cluster.put(JOBSETS, child("JobSet", "demo-prep-2"))
    stages = [{"name": "Preflight", "jobSet": "demo-prep-1"}]
    setup.cluster.put(JOBS, job(observedGeneration=1, phase="Running", stages=stages))
    setup.watched.cache.distrust(job()["metadata"]["uid"])
    kept = setup.cluster.kept

    async def too_large(*kind: Any, labels: Any = None, **more: Any) -> AsyncIterator[Sequence[Any]]:
        if labels:
            raise ResponseTooLarge("jobsets: more than 20000 objects", status=413)
        async for page in kept(*kind, **more):
            yield page

    monkeypatch.setattr(setup.cluster, "kept", too_large)
    await setup.reconcile()
    observed = setup.observed[-1]
    # The second one was created, and the status that contains it was not written yet.
    assert sorted(each.name for each in observed.jobsets) == ["demo-prep-1", "demo-prep-2"]
    assert observed.folder.unreadable is not None
