import asyncio

import pytest

from finetune_operator.cluster.port import JOBS, Unavailable
from finetune_operator.reconcile.observe import JobKey
from finetune_operator.reconcile.reconciler import ReconcileError
from finetune_operator.runtime.logs import current_job
from finetune_operator.runtime.metrics import Metrics
from finetune_operator.runtime.queue import Backoff, WorkQueue
from finetune_operator.runtime.workers import Workers, resync
from tests.unit.reconcile.fakes import FakeCluster
from tests.unit.runtime.objects import job, key

AT_ONCE = Backoff(base=0, longest=0)


class Scripted:
    """Reconciles as told; closes the queue after the last step."""

    def __init__(self, queue: WorkQueue[JobKey], *steps: float | Exception | None) -> None:
        self.queue = queue
        self.steps = list(steps)
        self.calls: list[tuple[JobKey, str | None]] = []

    async def __call__(self, key: JobKey, /, *, retry_in: float) -> float | None:
        self.calls.append((key, current_job.get()))
        step = self.steps.pop(0)
        if not self.steps:
            self.queue.close()
        if isinstance(step, Exception):
            raise step
        return step


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_key_is_handled_again_when_the_decision_says_so() -> None:
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), Metrics()
    scripted = Scripted(queue, 0.0, 0.0, None)
    queue.add(key())
    await Workers(queue, scripted, metrics=metrics).run(2)
    assert scripted.calls == [(key(), "team/demo")] * 3
    assert sample(metrics, "finetune_reconcile_seconds_count", result="ok") == 3


async def test_a_failure_is_tried_again_and_counted_by_reason() -> None:
    queue, metrics = WorkQueue[JobKey](backoff=AT_ONCE), Metrics()
    scripted = Scripted(queue, ReconcileError("APIServerUnavailable", "503"), None)
    queue.add(key())
    await Workers(queue, scripted, metrics=metrics).run(1)
    assert len(scripted.calls) == 2
    assert sample(metrics, "finetune_reconcile_errors_total", reason="APIServerUnavailable") == 1


async def test_what_is_in_hand_is_finished_when_the_queue_is_closed() -> None:
    queue = WorkQueue[JobKey]()
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_key: JobKey, /, *, retry_in: float) -> float | None:
        begun.set()
        await may_end.wait()
        ended.set()
        return None

    queue.add(key())
    working = asyncio.ensure_future(Workers(queue, slow, metrics=Metrics()).run(3))
    await begun.wait()
    queue.close()
    queue.add(key("later"))
    may_end.set()
    await working
    assert ended.is_set()


async def test_a_fault_of_a_worker_ends_them_all() -> None:
    queue = WorkQueue[JobKey]()

    async def broken(_key: JobKey, /, *, retry_in: float) -> float | None:
        raise RuntimeError("no reconcile may raise this")

    queue.add(key())
    with pytest.raises(ExceptionGroup):
        await Workers(queue, broken, metrics=Metrics()).run(3)


async def test_a_resync_lists_each_namespace_and_outlives_a_lost_api() -> None:
    cluster = FakeCluster()
    for namespace in ("team", "other", "foreign"):
        manifest = job()
        manifest["metadata"]["namespace"] = namespace
        cluster.put(JOBS, manifest)
    faults = iter([Unavailable("away", status=503)])
    cluster.fault = lambda moment, _: next(faults, None) if moment == "before" else None
    heard: asyncio.Queue[list[str]] = asyncio.Queue()

    class Ears:
        def resync(self, jobs: list[dict[str, dict[str, str]]]) -> None:
            heard.put_nowait(sorted(each["metadata"]["namespace"] for each in jobs))

    task = asyncio.ensure_future(resync(cluster, ["team", "other"], Ears(), every=0))  # type: ignore[arg-type]
    assert await heard.get() == ["other", "team"]
    task.cancel()
