"""What the operator reports of itself and of its jobs to Prometheus."""

import asyncio
from collections import Counter as Multiset
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from math import nan
from time import monotonic

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from finetune_operator.cluster.port import WatchStream
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.keys import Key
from finetune_operator.reconcile.ledger import Ledger
from finetune_operator.reconcile.notifications import Notifications
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.change_metrics import ChangeMetrics
from finetune_operator.runtime.job_metrics import JobFacts, job_gauges
from finetune_operator.runtime.queue import WorkQueue
from finetune_operator.runtime.series import MetricSeries, Read, gauge

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Samples whose text is written in one go.
_BATCH = 20_000


class OperatorMetrics:
    """The metrics of one process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        series = self._series = MetricSeries()
        self.registry = series.registry
        self.brought_up_to_date = partial(series.add, "finetune_status_delay_seconds")
        self.handed_over = partial(series.add, "finetune_stage_handover_seconds")
        self.deletion_missed = partial(series.add, "finetune_ledger_deletions_missed", 1)
        # Each is called with its label.
        self.storage_requested = partial(series.add, "finetune_storage_requests", 1)
        self.storage_refused = partial(series.add, "finetune_storage_refused", 1)
        self.ledger_written = partial(series.add, "finetune_ledger_records", 1)
        self.notified = partial(series.add, "finetune_notifications", 1)
        self._changes = ChangeMetrics(series, clock)
        self.begin, self.changed = self._changes.begin, self._changes.changed
        self.jobs: Callable[[], Iterable[JobFacts]] = tuple
        """Returns all jobs that the watch has delivered. Only the leader watches."""
        self._leading: Callable[[], bool] = lambda: False
        self._failing: dict[Hashable, str] = {}
        """Reason of each key's last reconcile, if that has failed."""
        series.read(self._own)

    def chips(self, namespace: str) -> int:
        """Returns the chips at work in a namespace, as its jobs were last observed."""
        return sum(facts.chips for facts in self.jobs() if facts.namespace == namespace)

    def leads(
        self,
        *,
        queue: WorkQueue[Key],
        cache: WatchCache,
        served: ServedNamespaces,
        leading: Callable[[], bool],
        ledger: Ledger | None = None,
        budgets: Budgets | None = None,
        notifications: Notifications | None = None,
    ) -> None:
        """Records that this process acts as the leader while ``leading`` holds, with gauges of the rest."""

        def gauges() -> Iterator[Metric]:
            yield gauge("finetune_queue_depth", queue.depth())
            yield gauge("finetune_queue_oldest_seconds", queue.oldest())
            jobs = tuple(self.jobs())
            yield gauge("finetune_jobs_known", len(jobs))
            yield gauge("finetune_jobs_live", sum(facts.live for facts in jobs))
            if ledger is not None and budgets is not None:
                yield gauge("finetune_ledger_pending", ledger.pending)
                yield gauge("finetune_ledger_unread", budgets.unreadable)
                yield from _month(budgets)
            if notifications is not None:
                yield gauge("finetune_notifications_pending", notifications.pending)
            ages = {(str(watch),): _age(cache, served, watch) for watch in cache.streams.all}
            yield gauge("finetune_watch_age_seconds", ages)
            lost = {(namespace,): chips for namespace, chips in served.lost().items()}
            yield gauge("finetune_namespace_lost_chips", lost)

        self._leading = leading
        self._series.read(gauges)

    def reconciled(self, key: Hashable, seconds: float, error: str | None) -> None:
        """Records one reconcile. ``error`` is its reason; None if it succeeded."""
        self._series.add("finetune_reconcile_seconds", seconds, "error" if error else "ok")
        self._failing.pop(key, None)
        if error:
            self._series.add("finetune_reconcile_errors", 1, error)
            self._failing[key] = error

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Records one completed request to the API server (a RequestObserver)."""
        self._series.add("finetune_api_requests", 1, verb, resource, str(code))
        self._series.add("finetune_api_request_seconds", seconds, verb, resource)

    async def render(self) -> bytes:
        """Returns the text that Prometheus scrapes.

        Reads the metrics on the event loop, where nothing else changes them, and writes their text in a thread, which
        takes most of the time.
        """
        self._changes.count_held()
        texts, read, samples = list[bytes](), list[Metric](), 0
        for metric in self.registry.collect():
            read.append(metric)
            samples += len(metric.samples)
            if samples >= _BATCH:
                texts.append(await asyncio.to_thread(_text, read))
                read, samples = [], 0
        texts.append(await asyncio.to_thread(_text, read))
        self._changes.drop_idle({(facts.namespace, facts.profile) for facts in self.jobs() if facts.profile})
        return b"".join(texts)

    def _own(self) -> Iterator[Metric]:
        yield gauge("finetune_leader", self._leading())
        failing = Multiset((reason,) for reason in self._failing.values())
        yield gauge("finetune_reconcile_failing", failing)
        yield from job_gauges(self.jobs())


def _month(budgets: Budgets) -> Iterator[Metric]:
    """Yields what namespaces have used in the present month (UTC). It follows from the ledger, so it is the same after
    a restart."""
    totals = {(used.namespace, used.profile): used for used in budgets.totals()}
    limits = {place: budgets.limit(used.profile) for place, used in totals.items()}
    yield gauge(
        "finetune_month_chip_hours", {place: float(used.chip_hours) for place, used in totals.items()}
    )
    yield gauge(
        "finetune_month_chip_hours_limit",
        {place: limit for place, limit in limits.items() if limit is not None},
    )
    yield gauge(
        "finetune_month_cost",
        {
            (*place, currency): float(amount)
            for place, used in totals.items()
            for currency, amount in used.cost.items()
        },
    )


def _age(cache: WatchCache, served: ServedNamespaces, watch: WatchStream) -> float:
    """Returns the age of a watch; not a number in a lost namespace, whose alert is another one."""
    served_now = watch.namespace is None or served.serves(watch.namespace)
    return cache.streams.age(watch) if served_now else nan


def _text(metrics: Sequence[Metric]) -> bytes:
    return generate_latest(Read(lambda: metrics))
