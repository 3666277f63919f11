import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import aiohttp
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    WORKLOADS,
    NotFound,
    Rejected,
    Unavailable,
    WatchStream,
)
from finetune_operator.reconcile.keys import Key
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime import prerequisites
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import (
    Prerequisites,
    check_prerequisites,
    wait_for_prerequisites,
    watches,
)
from finetune_operator.runtime.probes import ProbeServer
from finetune_operator.runtime.queue import WorkQueue
from tests.unit.reconcile.fakes import FakeCluster
from tests.unit.reconcile.watched import Watched
from tests.unit.runtime.objects import key


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_probes_say_why_not() -> None:
    server = ProbeServer(
        healthy=tuple,
        ready=lambda: ("jobs cannot be listed", "the Lease was not renewed: away"),
        metrics=OperatorMetrics(),
    )
    health, metrics = await server.start("127.0.0.1", 0, 0)
    try:
        assert await fetch(health, "/healthz") == (200, "ok\n")
        problems = "jobs cannot be listed\nthe Lease was not renewed: away\n"
        assert await fetch(health, "/readyz") == (503, problems)
        code, text = await fetch(metrics, "/metrics")
        assert code == 200
        assert "finetune_leader 0.0" in text
        assert (await fetch(metrics, "/healthz"))[0] == 404
    finally:
        await server.stop()


async def test_scrapes_take_at_most_a_tenth_of_the_event_loop() -> None:
    """A rendering takes 2 s here; who scrapes meanwhile gets its result."""
    now, rendered = [100.0], list[float]()

    class Slow(OperatorMetrics):
        async def render(self) -> bytes:
            rendered.append(now[0])
            now[0] += 2
            await asyncio.sleep(0)
            return b"%d" % len(rendered)

    server = ProbeServer(healthy=tuple, ready=tuple, metrics=Slow(), clock=lambda: now[0])
    _, metrics = await server.start("127.0.0.1", 0, 0)
    try:
        answers = await asyncio.gather(*(fetch(metrics, "/metrics") for _ in range(20)))
        assert set(answers) == {(200, "1")}
        now[0] += 17.9
        assert (await fetch(metrics, "/metrics"))[1] == "1"
        now[0] += 0.1
        assert (await fetch(metrics, "/metrics"))[1] == "2"
    finally:
        await server.stop()
    assert rendered == [100, 120]


async def test_the_event_loop_reads_the_metrics_and_runs_while_their_text_is_written() -> None:
    """What a metric reads changes on the event loop; the text of many series takes seconds."""
    loop, written, read_by = asyncio.get_running_loop(), threading.Event(), list[threading.Thread]()
    writing = asyncio.Event()

    class Text(str):
        def replace(self, *_arguments: Any) -> str:
            loop.call_soon_threadsafe(writing.set)
            assert written.wait(10), "the event loop stands still"
            return self

    class Reader(Collector):
        def collect(self) -> Iterable[Metric]:
            read_by.append(threading.current_thread())
            return [GaugeMetricFamily("slow", Text("help"), value=1)]

    metrics = OperatorMetrics()
    metrics.registry.register(Reader())
    rendering = asyncio.create_task(metrics.render())
    await writing.wait()
    written.set()
    assert b"slow 1.0\n" in await rendering
    assert set(read_by) == {threading.main_thread()}


async def test_metrics_of_a_leader_show_queue_jobs_and_watches() -> None:
    metrics, queue = OperatorMetrics(), WorkQueue[Key]()
    leading = True
    cache = WatchCache(watches([], kueue=False))
    metrics.leads(
        queue=queue,
        cache=cache,
        served=ServedNamespaces(),
        leading=lambda: leading,
    )
    queue.add(key())
    text = (await metrics.render()).decode()
    assert "finetune_queue_depth 1.0" in text
    assert 'finetune_watch_age_seconds{watch="jobsets"}' in text
    assert "finetune_leader 1.0" in text
    leading = False
    assert "finetune_leader 0.0" in (await metrics.render()).decode()


def test_the_age_of_a_watch_is_that_by_which_decisions_rely_on_it() -> None:
    """A quiet watch is opened again and again, which does not show that no event is missing."""
    watched = Watched()
    watched.all_listed()
    metrics, queue = OperatorMetrics(), WorkQueue[Key]()
    metrics.leads(
        queue=queue,
        cache=watched.cache,
        served=ServedNamespaces(),
        leading=lambda: True,
    )
    watched.now = 100.0
    watched.bookmark(JOBS, 200)

    def age(watch: str) -> float | None:
        return metrics.registry.get_sample_value("finetune_watch_age_seconds", {"watch": watch})

    assert (age("finetunejobs"), age("jobsets")) == (0.0, 100.0)


def check(cluster: FakeCluster, *namespaces: str) -> Callable[[], Awaitable[Prerequisites]]:
    return lambda: check_prerequisites(cluster, namespaces, own_namespace="ours", own_name="own")


async def test_missing_crds_and_rights_are_named_until_they_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    refusals = {
        "list jobsets": Rejected("jobsets is forbidden", status=403),
    }
    cluster.fault = lambda moment, call: refusals.get(call) if moment == "before" else None
    stop = asyncio.Event()

    async def checked() -> Prerequisites:
        found = await check(cluster)()
        assert found.missing == ("jobsets cannot be listed: jobsets is forbidden",)
        stop.set()
        return found

    assert not await wait_for_prerequisites(checked, stop)
    assert "jobsets cannot be listed: jobsets is forbidden" in caplog.text


class Refusing(FakeCluster):
    """Refuses to list some kinds in some namespaces."""

    def __init__(self, *refused: tuple[str, str]) -> None:
        super().__init__()
        self.refused = refused

    def pages(self, kind: Any, namespace: str | None, **options: Any) -> Any:
        if (kind.plural, namespace) in self.refused:
            raise Rejected(f"{kind.plural} is forbidden in {namespace}", status=403)
        return super().pages(kind, namespace, **options)


async def test_one_namespace_that_may_not_be_read_is_not_among_what_is_missing() -> None:
    cluster = Refusing(("workloads", "b"), ("pods", "b"))
    found = await check(cluster, "b", "a")()
    assert (found.missing, [str(watch) for watch in found.refused]) == ((), ["pods in b", "workloads in b"])
    assert "pods in b cannot be listed: pods is forbidden in b" in found.refused.values()


@pytest.mark.parametrize(
    "refused",
    [[("pods", "a"), ("pods", "b")], [("finetuneprofiles", None)], [("pods", "a"), ("jobsets", "b")]],
)
async def test_without_any_whole_namespace_or_the_profiles_nothing_can_be_watched(
    refused: list[tuple[str, str]],
) -> None:
    found = await check(Refusing(*refused), "a", "b")()
    assert (len(found.missing), found.refused) == (len(refused), {})


async def test_that_kueue_is_absent_is_noticed_although_the_first_namespace_is_lost() -> None:
    """The API server refuses before it says that it does not serve a kind."""

    class WithoutKueue(Refusing):
        def pages(self, kind: Any, namespace: str | None, **options: Any) -> Any:
            if (kind, namespace) == (WORKLOADS, "a"):
                raise NotFound("no such kind", status=404)
            return super().pages(kind, namespace, **options)

    kinds = ("finetunejobs", "jobsets", "pods", "workloads")
    found = await check(WithoutKueue(*[(kind, "b") for kind in kinds]), "b", "a")()
    assert (found.watches, found.missing) == (watches(["b", "a"], kueue=False), ())


async def test_with_everything_in_place_nothing_is_missing() -> None:
    assert await check(FakeCluster(), "a")() == Prerequisites(watches(["a"], kueue=True))


async def test_the_check_reads_one_page_of_each_kind_without_selector() -> None:
    """With a selector that matches nothing, an API server reads all objects: a minute of them in a large cluster."""
    cluster, asked = FakeCluster(), []
    for number in range(3):
        cluster.put(JOBS, {"metadata": {"name": f"job-{number}", "namespace": "team"}})

    class Asked(FakeCluster):
        def pages(self, *given: Any, **options: Any) -> Any:
            asked.append(options)
            return cluster.pages(*given, **options)

    assert not (await check(Asked())()).missing
    assert cluster.calls.count("page finetunejobs") == 1
    assert asked[:5] == [{"metadata_only": True}] * 5


async def test_that_kueue_is_absent_is_noticed_when_the_api_server_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prerequisites, "RETRY_SECONDS", 0)
    cluster, told = FakeCluster(), []
    absent = NotFound("no such kind", status=404)

    async def checked() -> Prerequisites:
        found = await check(cluster)()
        told.append(found.missing)
        cluster.fault = lambda moment, call: (
            absent if (moment, call) == ("before", "list workloads") else None
        )
        if not found.missing:
            assert found == Prerequisites(watches([], kueue=False))
        return found

    cluster.fault = lambda moment, _: Unavailable("away") if moment == "before" else None
    assert await wait_for_prerequisites(checked, asyncio.Event())
    assert "workloads cannot be read from the API server: away" in told[0]
    assert told[1:] == [()]


@pytest.mark.parametrize(
    ("error", "kueue"),
    [
        (None, True),
        (NotFound("no such kind", status=404), False),
        # A refused request does not show that Kueue is absent; the missing permission is reported by name.
        (Rejected("workloads is forbidden", status=403), True),
    ],
)
async def test_kueue_may_be_absent(error: Exception | None, kueue: bool) -> None:
    cluster = FakeCluster()
    cluster.fault = lambda moment, call: error if (moment, call) == ("before", "list workloads") else None
    found = await check(cluster, "team")()
    assert found.watches == watches(["team"], kueue=kueue)
    assert any("workloads is forbidden" in problem for problem in found.missing) is (
        kueue and error is not None
    )


def test_a_cluster_without_jobset_gets_a_hint_where_to_get_it() -> None:
    from finetune_operator.runtime.prerequisites import _text

    missing = NotFound("no such kind", status=404)
    assert "jobset.sigs.k8s.io" in _text(WatchStream(JOBSETS, None), missing)
    assert "chart" in _text(WatchStream(JOBS, None), missing)
