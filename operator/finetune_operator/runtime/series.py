"""All series of the operator: their names, kinds, labels and meaning.

Label values are bounded: namespaces and profiles that exist, and words of the API. Texts that a tenant's run folder
contains, such as the reasons of a trainer, are never among them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# The time at which each series began would be a series of its own, of which no query makes use.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Series(NamedTuple):
    text: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    """Of a histogram, in seconds."""


_PLACE = ("namespace", "profile")
_PLACE_AND_CAPACITY = (*_PLACE, "capacity")
#: From a single fast read to a stage that waits for the API server to recover.
_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: The API server stores the time of a job's creation in whole seconds.
_ADMISSION = (1, 2, 5, 10, 30, 60, 300, 1800)
#: From a check of the data to a training of four weeks.
_STAGE = (30, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 28 * 86400)
#: From a node that exists to a week in a queue.
_WAIT = (10, 60, 180, 600, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
#: From programs in the cache to those of the largest models.
_COMPILATION = (5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)

_COUNTERS: Mapping[str, _Series] = {
    "finetune_api_requests": _Series(
        "Requests to the API server, by verb, resource and HTTP status (0: no response)",
        ("verb", "resource", "code"),
    ),
    "finetune_attempts_ended": _Series(
        "Attempts that have ended without success, by class of the failure", (*_PLACE, "class")
    ),
    "finetune_attempts_hung": _Series(
        "Attempts that the operator has ended because they made no progress; cause is OwnLimit if the job sets the "
        "limit below the default",
        (*_PLACE, "cause"),
    ),
    "finetune_chip_seconds": _Series(
        "TPU chip seconds in which processes of jobs ran, as statuses report them", _PLACE_AND_CAPACITY
    ),
    "finetune_cost": _Series(
        "Cost of the chip seconds at the profiles' prices", (*_PLACE_AND_CAPACITY, "currency")
    ),
    "finetune_jobs_ended": _Series(
        "Jobs that have ended, by result (Succeeded, Failed or Planned), class of the failure, and its cause: "
        "OwnLimit (a limit that the job sets below the default), NoCapacity, or empty",
        (*_PLACE, "result", "class", "cause"),
    ),
    "finetune_ledger_deletions_missed": _Series(
        "Jobs that were deleted while no operator watched, so that their last usage may be missing in the ledger"
    ),
    "finetune_ledger_records": _Series(
        "Records of the ledger that were to be written, by result", ("result",)
    ),
    "finetune_notifications": _Series(
        "Notices sent to the webhook, by result: delivered, refused (and sent again later), or expired after a day",
        ("result",),
    ),
    "finetune_reconcile_errors": _Series("Reconciles that failed, by reason", ("reason",)),
    "finetune_storage_refused": _Series(
        "Requests to the artifact store that the circuit breaker refused, by operation", ("operation",)
    ),
    "finetune_storage_requests": _Series(
        "Requests to the artifact store, by operation; a listing of several pages counts once",
        ("operation",),
    ),
    "finetune_training_seconds": _Series(
        "Time of trainings that have ended, over all their attempts, by use: productive or lost to what",
        (*_PLACE, "use"),
    ),
}
_HISTOGRAMS: Mapping[str, _Series] = {
    "finetune_admission_seconds": _Series(
        "Time from a job's creation until its status first said whether it is valid", (), _ADMISSION
    ),
    "finetune_api_request_seconds": _Series(
        "Duration of requests to the API server", ("verb", "resource"), _CALLS
    ),
    "finetune_reconcile_seconds": _Series("Duration of one reconcile", ("result",), _CALLS),
    "finetune_stage_handover_seconds": _Series(
        "Time from the event of a finished JobSet to the creation of the job's next one, without a wait between",
        (),
        _CALLS,
    ),
    "finetune_stage_seconds": _Series(
        "Time from the start of a stage's first attempt to the stage's end",
        ("profile", "stage", "result"),
        _STAGE,
    ),
    "finetune_status_delay_seconds": _Series(
        "Time from when a job or profile is due, by an event or a timer, until its status is up to date",
        (),
        _CALLS,
    ),
    "finetune_training_compilation_seconds": _Series(
        "Time that a training which has ended took to compile programs or read cached ones, over all its attempts",
        ("profile", "capacity"),
        _COMPILATION,
    ),
    "finetune_training_provisioning_seconds": _Series(
        "Time that a training which has ended had waited for nodes and images, over all its attempts",
        ("profile", "capacity"),
        _WAIT,
    ),
    "finetune_training_queue_seconds": _Series(
        "Time that a training which has ended had waited for quota, over all its attempts",
        ("profile", "capacity"),
        _WAIT,
    ),
}
#: They are read when they are scraped.
_GAUGES: Mapping[str, _Series] = {
    "finetune_chips_held": _Series(
        "TPU chips of slices on which all pods of a stage run", _PLACE_AND_CAPACITY
    ),
    "finetune_jobs": _Series(
        "Number of jobs by phase; reason is that of status.waiting, empty if the job does not wait",
        (*_PLACE, "phase", "reason"),
    ),
    "finetune_jobs_blind": _Series(
        "Number of unfinished jobs whose run folder cannot be read: RunFolderReadable is not True, and not because of "
        "what the folder or the namespace contains",
        _PLACE,
    ),
    "finetune_jobs_invalid": _Series(
        "Number of unfinished jobs that cannot proceed until their author edits or deletes them: Valid is False, or "
        "the queue of their own label admits none",
        _PLACE,
    ),
    "finetune_jobs_known": _Series("All jobs"),
    "finetune_jobs_live": _Series("Number of jobs that are not finished"),
    "finetune_jobs_stalled": _Series(
        "Number of unfinished valid jobs that cannot proceed, by the reason of the condition Stalled",
        (*_PLACE, "reason"),
    ),
    "finetune_leader": _Series("1 while this process holds the Lease and acts"),
    "finetune_ledger_pending": _Series("Number of jobs with records that the ledger could not take yet"),
    "finetune_ledger_unread": _Series(
        "Number of namespaces whose usage in the month is unknown because the ledger cannot be read"
    ),
    "finetune_month_chip_hours": _Series(
        "TPU chip hours of the present calendar month (UTC), as recorded and as statuses report them", _PLACE
    ),
    "finetune_month_chip_hours_limit": _Series(
        "TPU chip hours that the namespace may use under the profile in a calendar month", _PLACE
    ),
    "finetune_month_cost": _Series(
        "Cost of the chip hours of the present calendar month at the profiles' prices", (*_PLACE, "currency")
    ),
    "finetune_namespace_lost_chips": _Series(
        "TPU chips that were at work in a served namespace when it was last observed; only while the operator may not "
        "watch it",
        ("namespace",),
    ),
    "finetune_notifications_pending": _Series("Number of notices that the webhook has not taken yet"),
    "finetune_queue_depth": _Series("Number of jobs and profiles that are due and wait for a worker"),
    "finetune_queue_oldest_seconds": _Series(
        "Time for which the longest-waiting due job or profile has been due"
    ),
    "finetune_reconcile_failing": _Series(
        "Number of jobs and profiles whose last reconcile failed, by reason", ("reason",)
    ),
    "finetune_watch_age_seconds": _Series(
        "Time since the last event, bookmark or page of a watch; above 90, decisions read live", ("watch",)
    ),
}


class Read(Collector):
    """Metrics that a function returns when they are scraped."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class MetricSeries:
    """The counters and histograms of one process, each changed by its name, and what else its registry reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Counter | Histogram] = {
            name: Counter(name, text, labels, registry=self.registry)
            for name, (text, labels, _) in _COUNTERS.items()
        }
        self._made |= {
            name: Histogram(name, text, labels, buckets=buckets, registry=self.registry)
            for name, (text, labels, buckets) in _HISTOGRAMS.items()
        }

    def begin(self, name: str, *labels: str) -> None:
        """Begins a series with labels at 0, if it has not begun."""
        self._made[name].labels(*labels)

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds a value to a counter, or one that a histogram observes."""
        series = self._made[name].labels(*labels) if labels else self._made[name]
        if isinstance(series, Counter):
            series.inc(value)
        else:
            series.observe(value)

    def read(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        """Reads gauges whenever the registry is scraped."""
        self.registry.register(Read(gauges))

    def end(self, namespace: str, profile: str) -> None:
        """Ends all counters of a namespace under a profile."""
        for name, (_, labels, _) in _COUNTERS.items():
            if {*_PLACE} <= {*labels}:
                self._made[name].remove_by_labels({"namespace": namespace, "profile": profile})


def gauge[K: tuple[str, ...]](name: str, value: float | Mapping[K, float]) -> Metric:
    """Returns a gauge with its value, or with one for each combination of labels."""
    text, labels, _ = _GAUGES[name]
    family = GaugeMetricFamily(name, text, labels=labels)
    if isinstance(value, Mapping):
        for combination, number in sorted(value.items()):
            family.add_metric(combination, number)
    else:
        family.add_metric((), float(value))
    return family
