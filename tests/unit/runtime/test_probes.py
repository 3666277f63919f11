import asyncio

import aiohttp

from finetune_operator.cluster.port import JOBS, JOBSETS, WORKLOADS, NotFound, Rejected
from finetune_operator.reconcile.apply import JobSetCreated
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import watches
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import serves, wait_for_prerequisites
from finetune_operator.runtime.probes import ProbeResult, ProbeServer
from finetune_operator.runtime.queue import WorkQueue
from tests.unit.reconcile.fakes import FakeCluster
from tests.unit.reconcile.watched import Watched
from tests.unit.runtime.objects import key


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_probes_say_why_not() -> None:
    server = ProbeServer(
        healthy=ProbeResult,
        ready=lambda: ProbeResult(("not leading; the Lease is held by b",)),
        metrics=OperatorMetrics(),
    )
    health, metrics = await server.start("127.0.0.1", 0, 0)
    try:
        assert await fetch(health, "/healthz") == (200, "ok\n")
        assert await fetch(health, "/readyz") == (503, "not leading; the Lease is held by b\n")
        code, text = await fetch(metrics, "/metrics")
        assert code == 200
        assert "finetune_leader 0.0" in text
        assert (await fetch(metrics, "/healthz"))[0] == 404
    finally:
        await server.stop()


def test_metrics_of_a_leader_show_queue_jobs_and_watches() -> None:
    metrics, queue = OperatorMetrics(), WorkQueue[object]()
    intake = EventHandlers(queue.add, metrics)
    metrics.leads(queue=queue, intake=intake, cache=WatchCache(watches([], kueue=False)))  # type: ignore[arg-type]
    queue.add(key())
    text = metrics.render().decode()
    assert "finetune_queue_depth 1.0" in text
    assert 'finetune_watch_age_seconds{watch="jobsets"}' in text
    assert "finetune_leader 1.0" in text


def test_the_age_of_a_watch_is_that_by_which_decisions_rely_on_it() -> None:
    """A quiet watch is opened again and again, which does not show that no event is missing."""
    watched = Watched()
    watched.all_listed()
    metrics, queue = OperatorMetrics(), WorkQueue[object]()
    intake = EventHandlers(queue.add, metrics)  # type: ignore[arg-type]
    metrics.leads(queue=queue, intake=intake, cache=watched.cache)  # type: ignore[arg-type]
    watched.now = 100.0
    watched.bookmark(JOBS, 200)

    def age(watch: str) -> float | None:
        return metrics.registry.get_sample_value("finetune_watch_age_seconds", {"watch": watch})

    assert (age("finetunejobs"), age("jobsets")) == (0.0, 100.0)


def test_a_handover_is_measured_from_the_finished_jobset_to_the_next() -> None:
    now = [10.0]
    metrics = OperatorMetrics(clock=lambda: now[0])
    metrics.jobset_finished(key())
    now[0] = 10.2
    metrics.jobset_created(JobSetCreated("team", "demo", "uid-demo-conv-1", "7"))
    metrics.jobset_created(JobSetCreated("team", "demo", "uid-demo-train-1", "8"))
    assert metrics.registry.get_sample_value("finetune_stage_handover_seconds_count") == 1
    total = metrics.registry.get_sample_value("finetune_stage_handover_seconds_sum")
    assert total is not None
    assert abs(total - 0.2) < 1e-9


async def test_missing_crds_and_rights_are_named_until_they_are_there() -> None:
    cluster = FakeCluster()
    refusals = {
        "list jobsets": Rejected("jobsets is forbidden", status=403),
    }
    cluster.fault = lambda moment, call: refusals.get(call) if moment == "before" else None
    stop, told = asyncio.Event(), asyncio.Queue[tuple[str, ...]]()
    waiting = asyncio.ensure_future(
        wait_for_prerequisites(cluster, watches([], kueue=False), stop, told.put_nowait)
    )
    assert await told.get() == ("jobsets cannot be listed: jobsets is forbidden",)
    stop.set()
    assert await waiting is False


async def test_with_everything_in_place_nothing_is_missing() -> None:
    told: list[tuple[str, ...]] = []
    stop = asyncio.Event()
    assert await wait_for_prerequisites(FakeCluster(), watches(["a"], kueue=False), stop, told.append)
    assert told == [()]


async def test_kueue_may_be_absent() -> None:
    cluster = FakeCluster()
    assert await serves(cluster, WORKLOADS, ())
    answers: dict[str, BaseException] = {"list workloads": NotFound("no such kind", status=404)}
    cluster.fault = lambda moment, call: answers.get(call) if moment == "before" else None
    assert not await serves(cluster, WORKLOADS, ("team",))
    # A refused request does not show that Kueue is absent; the missing permission is reported by name.
    answers["list workloads"] = Rejected("workloads is forbidden", status=403)
    assert await serves(cluster, WORKLOADS, ())


def test_a_cluster_without_jobset_gets_a_hint_where_to_get_it() -> None:
    from finetune_operator.runtime.prerequisites import _source

    assert "jobset.sigs.k8s.io" in _source(JOBSETS)
    assert "chart" in _source(JOBS)
