"""The operator's Prometheus metrics. One registry per process, passed explicitly and never global."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from math import nan
from time import monotonic

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from finetune_operator.api import Phase
from finetune_operator.cluster.port import WatchStream
from finetune_operator.objects import Object
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.keys import JobKey, Key
from finetune_operator.reconcile.ledger import Ledger
from finetune_operator.reconcile.notifications import Notifications
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.change_metrics import ChangeMetrics
from finetune_operator.runtime.job_metrics import JobCollector, JobFacts, Place
from finetune_operator.runtime.queue import WorkQueue

# The time at which each series began would be a series of its own, of which no query makes use.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Phases of jobs whose next JobSet is not due, if there is any.
_WITHOUT_NEXT = frozenset({Phase.SUSPENDED, *(phase for phase in Phase if phase.finished)})
#: Samples whose text is written in one go.
_BATCH = 20_000
#: Seconds, from a single fast read to a stage that waits for the API server to recover.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Read(Collector):
    """Metrics that a function returns when they are scraped."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def _month(budgets: Budgets) -> Iterable[Metric]:
    """Returns what namespaces have used in the present month (UTC). It follows from the ledger, so it is the same after
    a restart."""
    hours = GaugeMetricFamily(
        "finetune_month_chip_hours",
        "TPU chip hours of the present calendar month (UTC), as recorded and as statuses report them",
        labels=["namespace", "profile"],
    )
    limits = GaugeMetricFamily(
        "finetune_month_chip_hours_limit",
        "TPU chip hours that the namespace may use under the profile in a calendar month",
        labels=["namespace", "profile"],
    )
    cost = GaugeMetricFamily(
        "finetune_month_cost",
        "Cost of the chip hours of the present calendar month at the profiles' prices",
        labels=["namespace", "profile", "currency"],
    )
    for used in budgets.totals():
        hours.add_metric([used.namespace, used.profile], float(used.chip_hours))
        limit = budgets.limit(used.profile)
        if limit is not None:
            limits.add_metric([used.namespace, used.profile], limit)
        for currency, amount in sorted(used.cost.items()):
            cost.add_metric([used.namespace, used.profile, currency], float(amount))
    return hours, limits, cost


def _lost(served: ServedNamespaces) -> Iterable[Metric]:
    lost = GaugeMetricFamily(
        "finetune_namespace_lost_chips",
        "TPU chips that were at work in a served namespace when it was last observed; only while the operator may "
        "not watch it",
        labels=["namespace"],
    )
    for namespace, chips in served.lost().items():
        lost.add_metric([namespace], chips)
    return (lost,)


def _age(cache: WatchCache, served: ServedNamespaces, watch: WatchStream) -> float:
    """Returns the age of a watch; not a number in a lost namespace, whose alert is another one."""
    served_now = watch.namespace is None or served.serves(watch.namespace)
    return cache.streams.age(watch) if served_now else nan


def _text(metrics: Sequence[Metric]) -> bytes:
    return generate_latest(_Read(lambda: metrics))


def _by_label(counter: Counter) -> Callable[[str], None]:
    return lambda label: counter.labels(label).inc()


class OperatorMetrics:
    """Counters and gauges of one process, and the state from which latencies are computed."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        duration = partial(Histogram, buckets=_BUCKETS, registry=self.registry)
        self._reconcile = duration("finetune_reconcile_seconds", "Duration of one reconcile", ["result"])
        self._errors = counter("finetune_reconcile_errors", "Reconciles that failed, by reason", ["reason"])
        self._failing_now = gauge(
            "finetune_reconcile_failing",
            "Number of jobs and profiles whose last reconcile failed, by reason",
            ["reason"],
        )
        self.brought_up_to_date = duration(
            "finetune_status_delay_seconds",
            "Time from when a job or profile is due, by an event or a timer, until its status is up to date",
        ).observe
        self._handover = duration(
            "finetune_stage_handover_seconds",
            "Time from the event of a finished JobSet to the creation of the job's next one, without a wait between",
        )
        self._requests = counter(
            "finetune_api_requests",
            "Requests to the API server, by verb, resource and HTTP status (0: no response)",
            ["verb", "resource", "code"],
        )
        self._request_seconds = duration(
            "finetune_api_request_seconds", "Duration of requests to the API server", ["verb", "resource"]
        )
        self.deletion_missed = counter(
            "finetune_ledger_deletions_missed",
            "Jobs that were deleted while no operator watched, so that their last usage may be missing in the ledger",
        ).inc
        self._count_by_label(counter)
        self._leading = gauge("finetune_leader", "1 while this process holds the Lease and acts")
        self._finished: dict[JobKey, float] = {}
        self._jobs = JobCollector()
        self.registry.register(self._jobs)
        self._failing: dict[Hashable, str] = {}
        self._changes = ChangeMetrics(self.registry, clock)
        self.changed = self._changes.changed
        self.chips = self._jobs.chips

    def _count_by_label(self, counter: Callable[[str, str, Sequence[str]], Counter]) -> None:
        """Makes the counters with one label: each is called with its value."""
        self.storage_requested = _by_label(
            counter(
                "finetune_storage_requests",
                "Requests to the artifact store, by operation; a listing of several pages counts once",
                ["operation"],
            )
        )
        self.storage_refused = _by_label(
            counter(
                "finetune_storage_refused",
                "Requests to the artifact store that the circuit breaker refused, by operation",
                ["operation"],
            )
        )
        self.ledger_written = _by_label(
            counter(
                "finetune_ledger_records",
                "Records of the ledger that were to be written, by result",
                ["result"],
            )
        )
        self.notified = _by_label(
            counter(
                "finetune_notifications",
                "Notices sent to the webhook, by result: delivered, refused (and sent again later), or expired after "
                "a day",
                ["result"],
            )
        )

    def leads(
        self,
        *,
        queue: WorkQueue[Key],
        live: Callable[[], int],
        known: Callable[[], int],
        cache: WatchCache,
        served: ServedNamespaces,
        leading: Callable[[], bool],
        ledger: Ledger | None = None,
        budgets: Budgets | None = None,
        notifications: Notifications | None = None,
    ) -> None:
        """Records that this process acts as the leader while ``leading`` holds, with gauges that read the rest."""

        def gauge(name: str, text: str, read: Callable[[], float]) -> None:
            Gauge(name, text, registry=self.registry).set_function(read)

        gauge(
            "finetune_queue_depth",
            "Number of jobs and profiles that are due and wait for a worker",
            queue.depth,
        )
        gauge(
            "finetune_queue_oldest_seconds",
            "Time for which the longest-waiting due job or profile has been due",
            queue.oldest,
        )
        gauge("finetune_jobs_live", "Number of jobs that are not finished", live)
        gauge("finetune_jobs_known", "All jobs", known)
        if ledger is not None and budgets is not None:
            gauge(
                "finetune_ledger_pending",
                "Number of jobs with records that the ledger could not take yet",
                lambda: ledger.pending,
            )
            gauge(
                "finetune_ledger_unread",
                "Number of namespaces whose usage in the month is unknown because the ledger cannot be read",
                lambda: budgets.unreadable,
            )
            self.registry.register(_Read(partial(_month, budgets)))
        if notifications is not None:
            gauge(
                "finetune_notifications_pending",
                "Number of notices that the webhook has not taken yet",
                lambda: notifications.pending,
            )
        age = Gauge(
            "finetune_watch_age_seconds",
            "Time since the last event, bookmark or page of a watch; above 90, decisions read live",
            ["watch"],
            registry=self.registry,
        )
        for watch in cache.streams.all:
            age.labels(str(watch)).set_function(partial(_age, cache, served, watch))
        self.registry.register(_Read(partial(_lost, served)))
        self._leading.set_function(lambda: float(leading()))

    def reconciled(self, key: Hashable, seconds: float, error: str | None) -> None:
        """Records one reconcile. ``error`` is its reason; None if it succeeded."""
        self._reconcile.labels("error" if error else "ok").observe(seconds)
        if before := self._failing.pop(key, None):
            self._failing_now.labels(before).dec()
        if error:
            self._errors.labels(error).inc()
            self._failing[key] = error
            self._failing_now.labels(error).inc()

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Records one completed request to the API server (a RequestObserver)."""
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_seconds.labels(verb, resource).observe(seconds)

    def job(self, key: JobKey, job: Object) -> JobFacts:
        """Takes the newest version of a job, as the watch delivers it. Returns what the gauges show of it."""
        facts = self._jobs.put(key, job)
        if facts.reason or facts.stalled or facts.invalid or facts.phase in _WITHOUT_NEXT:
            self._finished.pop(key, None)
        if facts.profile:
            self._changes.begin(Place(facts.namespace, facts.profile, facts.capacity))
        return facts

    def gone(self, key: JobKey) -> None:
        self._jobs.drop(key)
        self._finished.pop(key, None)

    def jobset_finished(self, key: JobKey) -> None:
        """Records a watch event of a finished JobSet of this job; the handover is measured from the first one."""
        self._finished.setdefault(key, self._clock())

    def jobset_created(self, key: JobKey) -> None:
        finished = self._finished.pop(key, None)
        if finished is not None:
            self._handover.observe(self._clock() - finished)

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
        self._changes.drop_idle(self._jobs.places())
        return b"".join(texts)
