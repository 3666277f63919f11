"""Jobs with many children are observed whole, each with one of a few slots."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from finetune_operator.artifacts.tenant_shares import calls_deadline
from finetune_operator.cluster.port import CONFIG_MAPS, JOBS, JOBSETS, PODS, WORKLOADS
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.decision import Decision, Wait
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning import Refused, StoredPlan
from finetune_operator.reconcile import reconciler as reconciling
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.children import ManyChildren
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import ReconcileError, Reconciler
from finetune_operator.reconcile.watch_cache import ReadJob, WatchCache
from tests.unit.reconcile.fakes import NOW, OWN, FakeCluster, FakeStore, child, job, plan, workload
from tests.unit.reconcile.test_reconciler import KEY, RUNNING, make

TIME = "2026-11-21T12:00:00Z"


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.put(JOBS, job())
    made.put(CONFIG_MAPS, plan())
    return made


async def observed(cluster: FakeCluster, reconciler: Reconciler | None = None) -> Observation:
    seen: list[Observation] = []

    def decide(observation: Observation) -> Decision:
        seen.append(observation)
        return Decision(action=Wait(), status=RUNNING)

    reconciler = reconciler or make(cluster, decide)
    reconciler._decide = decide
    await reconciler.reconcile(KEY, retry_in=1)
    return seen[-1]


def failed_jobset(number: int) -> dict[str, Any]:
    jobset = child("JobSet", f"demo-train-{number}")
    jobset["metadata"] |= {"uid": f"0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d{number:04}", "creationTimestamp": TIME}
    message = "jobset failed due to one or more job failures (first failed job: demo-train-1-slice-0)" * 10
    failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": message}
    jobset["status"] = {"restarts": 0, "conditions": [{**failed, "lastTransitionTime": TIME}]}
    return jobset


async def test_every_attempt_of_a_job_is_observed(cluster: FakeCluster) -> None:
    for number in range(1, 600):
        cluster.put(JOBSETS, failed_jobset(number))
    observation = await observed(cluster)
    assert observation.folder.unreadable is None
    assert len(observation.jobsets) == 599


async def test_every_host_of_the_largest_slice_may_have_a_long_message(cluster: FakeCluster) -> None:
    for number in range(2304):
        pod = child("Pod", f"demo-train-1-slice-0-{number}-abcde")
        end = {
            "exitCode": 1,
            "reason": "Error",
            "message": "│" + "x" * 2040,
            "startedAt": TIME,
            "finishedAt": TIME,
        }
        pod["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}],
        }
        cluster.put(PODS, pod)
    observation = await observed(cluster)
    assert observation.folder.unreadable is None
    assert len(observation.pods) == 2304


async def test_large_workloads_of_a_cached_job_are_read_with_the_job(cluster: FakeCluster) -> None:
    jobset = cluster.put(JOBSETS, {**child("JobSet", "demo-prep-1"), "spec": {"suspend": True}})
    for number in range(300):
        made = workload("demo-prep-1", jobset["metadata"]["uid"])
        made["metadata"]["name"] += str(number)
        waits = {"type": "QuotaReserved", "status": "False", "message": "x" * 4096}
        made["status"] = {"conditions": [waits]}
        cluster.put(WORKLOADS, made)
    reconciler = make(cluster, lambda _: Decision(action=Wait(), status=RUNNING))

    async def cached(*_: str) -> ReadJob:
        return ReadJob(
            job=Job.parse(cluster.of(JOBS)[0]),
            jobsets=[JobSet.parse(jobset)],
            workloads=None,
            cached_since=0.0,
        )

    reconciler._observer._cache.job = cached  # type: ignore[method-assign]
    observation = await observed(cluster, reconciler)
    assert observation.workloads is not None
    assert len(observation.workloads) == 300


async def test_no_listing_continues_when_the_slot_for_it_is_free_again(cluster: FakeCluster) -> None:
    running = 0

    async def kept(kind: object, _namespace: str, **selected: Any) -> AsyncIterator[list[object]]:
        nonlocal running
        if kind == JOBSETS and selected.get("labels"):
            raise ManyChildren("jobsets take more")
        if kind == PODS:
            running += 1
            try:
                for _ in range(20):
                    await asyncio.sleep(0)
                    yield []
            finally:
                running -= 1

    cluster.kept = kept  # type: ignore[method-assign, assignment]
    await observed(cluster)
    assert running == 0


class Crowded(Observer):
    """Every job has many children, and takes a while."""

    def __init__(self) -> None:
        self.left: list[float] = []
        """Seconds for calls to the store at the beginning of each pass with a slot."""

    async def observe(self, key: JobKey, *, large: bool = False, earlier: object = None) -> None:
        if not large:
            raise ManyChildren("pods take more")
        self.left.append((calls_deadline() or 0.0) - asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)


def reconciler_of(observer: Observer) -> Reconciler:
    cluster = FakeCluster()
    applier = Applier(cluster, Plans(cluster, OWN), FakeStore(), WatchCache())
    return Reconciler(observer, lambda _: pytest.fail("decided"), applier, utc_now=lambda: NOW)


async def test_a_job_that_waited_for_its_slot_has_the_whole_time_for_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconciling, "STORE_SECONDS", 0.2)
    observer = Crowded()
    reconciler = reconciler_of(observer)
    await asyncio.gather(*(reconciler.reconcile(JobKey("team", name), retry_in=0) for name in "abcd"))
    assert min(observer.left) > 0.1


async def test_children_that_are_too_many_for_a_slot_are_an_error_of_the_reconcile() -> None:
    class Endless(Crowded):
        async def observe(self, key: JobKey, *, large: bool = False, earlier: object = None) -> None:
            raise ManyChildren("workloads take more")

        async def job(self, key: JobKey) -> None:
            return None

    with pytest.raises(ReconcileError, match="workloads take more"):
        await reconciler_of(Endless()).reconcile(KEY, retry_in=1)


async def test_a_damaged_plan_is_read_again_once_it_is_restored(cluster: FakeCluster) -> None:
    good = plan()
    cluster.put(CONFIG_MAPS, {**good, "data": {**good["data"], "spec.json": "{}"}})
    reconciler = make(cluster, lambda _: pytest.fail("replaced"))
    assert isinstance((await observed(cluster, reconciler)).stored, Refused)
    cluster.put(CONFIG_MAPS, good)
    assert isinstance((await observed(cluster, reconciler)).stored, StoredPlan)
