import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from finetune_operator.cluster.port import CONFIG_MAPS, JOBS, Rejected, ResourceKind, Unavailable
from finetune_operator.objects import Object
from finetune_operator.planning.stored_plan import JOB_NAMESPACE_LABEL
from finetune_operator.reconcile.keys import JobKey, PlanKey
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import ReconcileError
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.rendering.labels import UID_LABEL
from finetune_operator.runtime import workers
from finetune_operator.runtime.logs import current_key
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.queue import Backoff, WorkQueue
from finetune_operator.runtime.workers import Workers, resync
from tests.unit.cluster.fake_time import FakeTime
from tests.unit.reconcile.fakes import OWN, FakeCluster, plan
from tests.unit.runtime.objects import job, key

AT_ONCE = Backoff(base=0, longest=0)


class Scripted:
    """A reconciler with prepared results; closes the queue after the last one."""

    def __init__(self, queue: WorkQueue[JobKey], *steps: float | Exception | None) -> None:
        self.queue = queue
        self.steps = list(steps)
        self.calls: list[tuple[JobKey, object]] = []

    async def __call__(self, key: JobKey, retry_in: float) -> float | None:
        self.calls.append((key, current_key.get()))
        step = self.steps.pop(0)
        if not self.steps:
            self.queue.close()
        if isinstance(step, Exception):
            raise step
        return step


def sample(metrics: OperatorMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_key_is_handled_again_when_the_decision_says_so() -> None:
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), OperatorMetrics()
    scripted = Scripted(queue, 0.0, 0.0, None)
    queue.add(key())
    await Workers(queue, scripted, metrics=metrics).run(2)
    assert scripted.calls == [(key(), key())] * 3
    assert sample(metrics, "finetune_reconcile_seconds_count", result="ok") == 3


async def test_a_failure_is_tried_again_and_counted_by_reason() -> None:
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), OperatorMetrics()
    scripted = Scripted(queue, ReconcileError("APIServerUnavailable", "503"), None)
    queue.add(key())
    await Workers(queue, scripted, metrics=metrics).run(1)
    assert len(scripted.calls) == 2
    assert sample(metrics, "finetune_reconcile_errors_total", reason="APIServerUnavailable") == 1


async def test_a_postponed_status_counts_once_when_it_is_written() -> None:
    queue, metrics = WorkQueue[JobKey](), OperatorMetrics()
    handled: list[str] = []

    async def reconcile(key: JobKey, retry_in: float) -> float | None:
        handled.append(key.name)
        if len(handled) == 1:
            assert queue.postpone(key)
        if len(handled) == 3:
            queue.close()
        return None

    queue.add(key(name="first"))
    queue.add(key(name="second"))
    await Workers(queue, reconcile, metrics=metrics).run(1)
    assert handled == ["first", "second", "first"]
    assert sample(metrics, "finetune_status_delay_seconds_count") == 2


async def test_what_is_in_hand_is_finished_when_the_queue_is_closed() -> None:
    queue = WorkQueue[JobKey]()
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_key: JobKey, retry_in: float) -> float | None:
        begun.set()
        await may_end.wait()
        ended.set()
        return None

    queue.add(key())
    working = asyncio.ensure_future(Workers(queue, slow, metrics=OperatorMetrics()).run(3))
    await begun.wait()
    queue.close()
    queue.add(key("later"))
    may_end.set()
    await working
    assert ended.is_set()


async def test_any_fault_stays_with_its_key(caplog: pytest.LogCaptureFixture) -> None:
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), OperatorMetrics()
    faults = iter([RuntimeError("odd"), asyncio.CancelledError(), TimeoutError(), KeyError("x")])
    good: list[JobKey] = []

    async def reconcile(handled: JobKey, retry_in: float) -> float | None:
        if handled == key("bad") and (fault := next(faults, None)):
            raise fault
        good.append(handled)
        if len(good) == 2:
            queue.close()
        return None

    queue.add(key("bad"))
    queue.add(key("good"))
    await Workers(queue, reconcile, metrics=metrics).run(3)
    assert sorted(good) == [key("bad"), key("good")]
    assert sample(metrics, "finetune_reconcile_errors_total", reason="InternalError") == 4
    assert "odd" in caplog.text


async def test_a_reconcile_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "RECONCILE_SECONDS", 0)
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), OperatorMetrics()
    tries = 0

    async def reconcile(_key: JobKey, retry_in: float) -> float | None:
        nonlocal tries
        tries += 1
        if tries == 2:
            queue.close()
        await asyncio.Event().wait()
        return None

    queue.add(key())
    await Workers(queue, reconcile, metrics=metrics).run(1)
    assert sample(metrics, "finetune_reconcile_errors_total", reason="TooSlow") == 2


@pytest.mark.parametrize(("asked", "waited"), [(60, 60), (0.1, 0.25), (None, 0.25), (86_400, 600)])
async def test_a_server_that_asks_for_time_gets_it(asked: float | None, waited: float) -> None:
    time = FakeTime()
    queue = WorkQueue[JobKey](clock=time.clock)
    failed = asyncio.Event()

    async def reconcile(_key: JobKey, retry_in: float) -> float | None:
        failed.set()
        raise ReconcileError("APIServerUnavailable", "429", retry_after=asked)

    queue.add(key())
    working = asyncio.ensure_future(Workers(queue, reconcile, metrics=OperatorMetrics()).run(1))
    await failed.wait()
    queue.close()
    await working
    time.now = waited - 0.01
    assert queue.depth() == 0
    time.now = waited
    assert queue.depth() == 1


class Ears:
    """Records which jobs a resync lists and which it misses."""

    def __init__(self, known: frozenset[JobKey] = frozenset()) -> None:
        self.known = known
        self.heard: list[str] = []
        self.forgotten: asyncio.Queue[list[JobKey]] = asyncio.Queue()

    def keys(self) -> frozenset[JobKey]:
        return self.known

    def listing(self) -> None:
        """The jobs are about to be listed."""

    def listed(self, jobs: Sequence[Object]) -> None:
        self.heard += [each["metadata"]["namespace"] for each in jobs]

    def gone(self, keys: frozenset[JobKey], *, left_out: set[str]) -> None:
        self.left_out = left_out
        self.forgotten.put_nowait(sorted(keys))


def in_namespaces(*namespaces: str) -> FakeCluster:
    """Returns a cluster with one job in each namespace."""
    cluster = FakeCluster()
    for namespace in namespaces:
        manifest = job()
        manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-in-{namespace}"}
        cluster.put(JOBS, manifest)
    return cluster


async def resynced(
    cluster: FakeCluster, ears: Ears, namespaces: Sequence[str] = ()
) -> tuple[list[JobKey], list[PlanKey]]:
    """Returns the jobs and plans that the first complete resync regards as deleted."""
    plans: list[PlanKey] = []
    running = resync(
        cluster,
        namespaces,
        ears,  # type: ignore[arg-type]
        plans=Plans(cluster, OWN),
        cache=WatchCache(),
        add=plans.append,
        every=0,
    )
    task = asyncio.ensure_future(running)
    forgotten = await ears.forgotten.get()
    task.cancel()
    return forgotten, plans


def stored(cluster: FakeCluster, namespace: str, uid: str) -> None:
    """Stores the plan of a job with that uid."""
    made = plan()
    made["metadata"] |= {"name": f"finetune-plan-{uid}"}
    made["metadata"]["labels"] |= {JOB_NAMESPACE_LABEL: namespace, UID_LABEL: uid}
    cluster.put(CONFIG_MAPS, made)


async def test_a_resync_lists_each_namespace_and_outlives_a_lost_api() -> None:
    cluster = in_namespaces("team", "other", "foreign")
    faults = iter([Unavailable("away", status=503)])
    cluster.fault = lambda moment, _: next(faults, None) if moment == "before" else None
    ears = Ears()
    await resynced(cluster, ears, ["team", "other"])
    assert sorted(ears.heard) == ["other", "team"]


async def test_of_a_namespace_that_may_not_be_listed_nothing_is_taken_for_gone() -> None:
    """The operator's RoleBinding there is gone: its jobs may run on, and their plans are needed when it is back."""

    class Refusing(FakeCluster):
        def pages(self, kind: ResourceKind, namespace: str | None, **more: Any) -> Any:
            if (kind, namespace) == (JOBS, "b"):
                raise Rejected("forbidden", status=403)
            return super().pages(kind, namespace, **more)

    cluster = Refusing()
    for namespace in ("a", "b"):
        stored(cluster, namespace, f"uid-gone-from-{namespace}")
    ears = Ears(frozenset({JobKey("a", "gone"), JobKey("b", "there")}))
    gone, plans = await resynced(cluster, ears, ["b", "a"])
    assert (gone, [plan.namespace for plan in plans]) == ([JobKey("a", "gone")], ["a"])
    assert ears.left_out == {"b"}


async def test_plans_of_jobs_that_are_gone_are_put_on_the_queue() -> None:
    cluster = in_namespaces("team")
    stored(cluster, "team", "uid-in-team")
    stored(cluster, "team", "uid-of-an-earlier-one")
    stored(cluster, "elsewhere", "uid-gone-too")
    _, plans = await resynced(cluster, Ears())
    assert sorted(each.uid for each in plans) == ["uid-gone-too", "uid-of-an-earlier-one"]


async def test_plans_of_namespaces_that_another_release_serves_are_left_alone() -> None:
    cluster = in_namespaces("team")
    stored(cluster, "team", "uid-gone")
    stored(cluster, "elsewhere", "uid-of-the-other-release")
    _, plans = await resynced(cluster, Ears(), ["team"])
    assert [each.uid for each in plans] == ["uid-gone"]


@pytest.mark.parametrize("at", range(1, 5))
async def test_nothing_is_taken_for_gone_while_a_listing_is_incomplete(at: int) -> None:
    """The first request for page number ``at`` of the listing of jobs fails."""
    cluster = in_namespaces("a", "b", "c", "d")
    for namespace in ("a", "b", "c", "d"):
        stored(cluster, namespace, f"uid-in-{namespace}")
    pages = iter(range(1, 100))
    cluster.fault = lambda moment, call: (
        Unavailable("away", status=503)
        if (moment, call) == ("before", "page finetunejobs") and next(pages) == at
        else None
    )
    ears = Ears(frozenset(JobKey(namespace, "demo") for namespace in ("a", "b", "c", "d")))
    assert await resynced(cluster, ears) == ([], [])


class Page(list[Object]):
    """A page that supports weak references."""


class Paged(FakeCluster):
    """Counts the pages that are still referenced when the next one is requested."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []

    async def pages(
        self, kind: ResourceKind, namespace: str | None, **more: Any
    ) -> AsyncIterator[Sequence[Object]]:
        before: list[weakref.ref[Page]] = []
        async for found in super().pages(kind, namespace, **more):
            self.held.append(sum(each() is not None for each in before))
            page = Page(found)
            before.append(weakref.ref(page))
            del found
            yield page
            del page
        self.held.append(sum(each() is not None for each in before))


async def test_a_resync_drops_cached_plans_that_are_not_stored() -> None:
    cluster = in_namespaces("team")
    stored(cluster, "team", "uid-in-team")
    plans, ears = Plans(cluster, OWN), Ears()
    for uid in ("uid-in-team", "uid-lost"):
        stored(cluster, "team", uid)
        await plans.find(uid)
    del cluster.objects[CONFIG_MAPS, OWN, "finetune-plan-uid-lost"]
    running = resync(
        cluster,
        (),
        ears,  # type: ignore[arg-type]
        plans=plans,
        cache=WatchCache(),
        add=lambda _: None,
        every=0,
    )
    task = asyncio.ensure_future(running)
    await ears.forgotten.get()
    task.cancel()
    assert [plans.cached(uid) is not None for uid in ("uid-in-team", "uid-lost")] == [True, False]


async def test_a_resync_holds_one_page_at_a_time() -> None:
    cluster = Paged()
    for number in range(5):
        manifest = job(f"demo-{number}")
        manifest["metadata"]["uid"] = f"uid-{number}"
        cluster.put(JOBS, manifest)
        stored(cluster, "team", f"uid-{number}")
    await resynced(cluster, Ears())
    assert len(cluster.held) == 12
    assert set(cluster.held) == {0}


async def test_a_job_created_while_the_resync_lists_keeps_its_plan() -> None:
    cluster = in_namespaces("team")

    def create(moment: str, call: str) -> None:
        if (moment, call) == ("after", "page finetunejobs"):
            stored(cluster, "team", "uid-of-a-new-job")

    cluster.fault = create
    assert await resynced(cluster, Ears()) == ([], [])
