"""Metrics of the fleet: its jobs as they are now, and what has ended since the process leads.

Label values are bounded: namespaces and profiles that exist, and words of the API. Texts that a tenant's run folder
contains, such as the reasons of a trainer, are never among them.
"""

from collections import Counter as Multiset
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from finetune_contract import FailureClass, Stage
from finetune_operator.api import Phase, Reason, StagePhase, WaitingReason
from finetune_operator.cluster.port import Object
from finetune_operator.lifecycle.accounting.transitions import FailureCause, TrainingUses, Transitions
from finetune_operator.lifecycle.children.kueue import DEACTIVATED, NEVER_ADMITTED
from finetune_operator.planning.queueing import QUEUE_LABEL
from finetune_operator.reconcile.observe import JobKey

#: Seconds, from a check of the data to a training of four weeks.
_STAGE_BUCKETS = (30, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 28 * 86400)
#: Seconds, from a node that exists to a week in a queue.
_WAIT_BUCKETS = (10, 60, 180, 600, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
#: Seconds, from programs in the cache to those of the largest models.
_COMPILATION_BUCKETS = (5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)
#: Seconds. The API server stores the time of a job's creation in whole seconds.
_ADMISSION_BUCKETS = (1, 2, 5, 10, 30, 60, 300, 1800)
_ON_TPU = frozenset(stage.value for stage in Stage if stage.on_tpu)
_PHASES = frozenset(Phase)
_FINISHED = frozenset(phase for phase in Phase if phase.finished)
_WAITS = frozenset(WaitingReason)
#: Words of the condition Stalled: the operator's and Kueue's.
_STALLS = frozenset({*Reason, *WaitingReason, *NEVER_ADMITTED, DEACTIVATED})
#: How a stage ends.
_STAGE_ENDS = (StagePhase.SUCCEEDED, StagePhase.FAILED)

#: Reasons for which a run folder is not read and that say nothing of the store or the operator. Those who may write to
#: the folder or the namespace can cause the last three.
_NOT_BLIND = frozenset(
    {Reason.NOT_STARTED, Reason.RECORD_MALFORMED, Reason.RUN_FOLDER_TOO_LARGE, Reason.TOO_MANY_OBJECTS}
)


class Place(NamedTuple):
    """Where jobs run, in the labels of counters and histograms."""

    namespace: str
    profile: str
    capacity: str


class JobFacts(NamedTuple):
    """What the gauges show of one job."""

    namespace: str
    profile: str
    """Empty if the job was never admitted."""
    phase: str
    reason: str
    """Why the job waits; empty if it does not."""
    capacity: str
    """Of its slices; empty if the job was never admitted."""
    chips: int
    """At work now."""
    stalled: str
    """Reason for which the job cannot proceed; empty if it can, and if its author alone can change that."""
    invalid: bool
    """Whether the job cannot proceed until its author edits or deletes it."""
    blind: bool

    @classmethod
    def of(cls, job: Object) -> "JobFacts":
        status = job.get("status") or {}
        resolved = status.get("resolved") or {}
        resources = resolved.get("resources") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        phase = status.get("phase")
        waiting = (status.get("waiting") or {}).get("reason")
        live = phase not in _FINISHED
        holds = phase == Phase.RUNNING and status.get("stage") in _ON_TPU
        readable, valid = conditions.get("RunFolderReadable", {}), conditions.get("Valid", {})
        stalled = conditions.get("Stalled", {})
        is_stalled, reason = live and stalled.get("status") == "True", stalled.get("reason")
        # Only its author can mend a refused spec. An invalid profile is the platform team's.
        refused = valid.get("status") == "False" and valid.get("reason") != Reason.PROFILE_INVALID
        own_queue = QUEUE_LABEL in (job["metadata"].get("labels") or {}) and reason in NEVER_ADMITTED
        return cls(
            namespace=job["metadata"]["namespace"],
            profile=(resolved.get("profile") or {}).get("name", ""),
            phase=phase if phase in _PHASES else Phase.PENDING.value,
            reason=waiting if live and waiting in _WAITS else "",
            capacity=resources.get("capacity") or "",
            chips=int(resources.get("chips", 0)) if holds else 0,
            stalled=(reason if reason in _STALLS else "Other")
            if is_stalled and not (refused or own_queue)
            else "",
            invalid=is_stalled and (refused or own_queue),
            blind=live
            and readable.get("status") in ("False", "Unknown")
            and readable.get("reason") not in _NOT_BLIND,
        )


class JobCollector(Collector):
    """Gauges of all jobs that the watch has delivered, computed when they are scraped. Only the leader watches."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, JobFacts] = {}
        self._shared: dict[JobFacts, JobFacts] = {}
        """Many jobs have the same facts, which are kept once."""

    def put(self, key: JobKey, job: Object) -> JobFacts:
        """Takes the newest version of a job."""
        facts = JobFacts.of(job)
        self._jobs[key] = self._shared.setdefault(facts, facts)
        return facts

    def drop(self, key: JobKey) -> None:
        """Forgets a deleted job."""
        self._jobs.pop(key, None)

    def places(self) -> frozenset[Place]:
        """Returns where jobs are that have been admitted, and where jobs were until the last scrape."""
        return frozenset(
            Place(each.namespace, each.profile, each.capacity) for each in self._shared if each.profile
        )

    def chips(self, namespace: str) -> int:
        """Returns the chips at work in a namespace, as its jobs were last observed."""
        return sum(facts.chips for key, facts in self._jobs.items() if key.namespace == namespace)

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily(
            "finetune_jobs",
            "Number of jobs by phase; reason is that of status.waiting, empty if the job does not wait",
            labels=["namespace", "profile", "phase", "reason"],
        )
        stalled = GaugeMetricFamily(
            "finetune_jobs_stalled",
            "Number of unfinished valid jobs that cannot proceed, by the reason of the condition Stalled",
            labels=["namespace", "profile", "reason"],
        )
        invalid = GaugeMetricFamily(
            "finetune_jobs_invalid",
            "Number of unfinished jobs that cannot proceed until their author edits or deletes them: Valid is False, "
            "or the queue of their own label admits none",
            labels=["namespace", "profile"],
        )
        blind = GaugeMetricFamily(
            "finetune_jobs_blind",
            "Number of unfinished jobs whose run folder cannot be read: RunFolderReadable is not True, and not because "
            "of what the folder or the namespace contains",
            labels=["namespace", "profile"],
        )
        chips = GaugeMetricFamily(
            "finetune_chips_held",
            "TPU chips of slices on which all pods of a stage run",
            labels=["namespace", "profile", "capacity"],
        )
        found = Multiset(self._jobs.values())
        self._shared = {facts: facts for facts in found}
        sums = Multiset[tuple[str, tuple[str, ...]]]()
        for facts, number in found.items():
            place = facts.namespace, facts.profile
            sums[jobs.name, (*place, facts.phase, facts.reason)] += number
            sums[stalled.name, (*place, facts.stalled)] += number * bool(facts.stalled)
            sums[invalid.name, place] += number * facts.invalid
            sums[blind.name, place] += number * facts.blind
            if facts.chips:
                sums[chips.name, (*place, facts.capacity)] += number * facts.chips
        families = {family.name: family for family in (jobs, stalled, invalid, blind, chips)}
        for (name, labels), value in sorted(sums.items()):
            families[name].add_metric(labels, value)
        return families.values()


class TransitionMetrics:
    """Counters and histograms of what has ended."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Counter(
            "finetune_jobs_ended",
            "Jobs that have ended, by result (Succeeded, Failed or Planned), class of the failure, and its cause: "
            "OwnLimit (a limit that the job sets below the default), NoCapacity, or empty",
            ["namespace", "profile", "result", "class", "cause"],
            registry=registry,
        )
        self._attempts = Counter(
            "finetune_attempts_ended",
            "Attempts that have ended without success, by class of the failure",
            ["namespace", "profile", "class"],
            registry=registry,
        )
        self._hung = Counter(
            "finetune_attempts_hung",
            "Attempts that the operator has ended because they made no progress; cause is OwnLimit if the job sets the "
            "limit below the default",
            ["namespace", "profile", "cause"],
            registry=registry,
        )
        self._stage_seconds = Histogram(
            "finetune_stage_seconds",
            "Time from the start of a stage's first attempt to the stage's end",
            ["profile", "stage", "result"],
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "finetune_training_queue_seconds",
            "Time that a training which has ended had waited for quota, over all its attempts",
            ["profile", "capacity"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._provisioning_seconds = Histogram(
            "finetune_training_provisioning_seconds",
            "Time that a training which has ended had waited for nodes and images, over all its attempts",
            ["profile", "capacity"],
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._training_seconds = Counter(
            "finetune_training_seconds",
            "Time of trainings that have ended, over all their attempts, by use: productive or lost to what",
            ["namespace", "profile", "use"],
            registry=registry,
        )
        self._compilation_seconds = Histogram(
            "finetune_training_compilation_seconds",
            "Time that a training which has ended took to compile programs or read cached ones, over all its attempts",
            ["profile", "capacity"],
            buckets=_COMPILATION_BUCKETS,
            registry=registry,
        )
        self._admission_seconds = Histogram(
            "finetune_admission_seconds",
            "Time from a job's creation until its status first said whether it is valid",
            buckets=_ADMISSION_BUCKETS,
            registry=registry,
        )

    def begin(self, place: Place) -> None:
        """Begins the series of a namespace under a profile at 0."""
        namespace, profile, capacity = place
        for result in (Phase.SUCCEEDED, Phase.PLANNED):
            self._jobs.labels(namespace, profile, result, "", "")
        for failure_class in FailureClass:
            if failure_class is not FailureClass.QUOTA:
                self._jobs.labels(namespace, profile, Phase.FAILED, failure_class, "")
            self._attempts.labels(namespace, profile, failure_class)
        for cause in FailureCause:
            self._jobs.labels(namespace, profile, Phase.FAILED, FailureClass.INFRASTRUCTURE, cause)
        self._jobs.labels(namespace, profile, Phase.FAILED, FailureClass.PREEMPTION, FailureCause.OWN_LIMIT)
        for hung_by in ("", FailureCause.OWN_LIMIT):
            self._hung.labels(namespace, profile, hung_by)
        for use in fields(TrainingUses):
            self._training_seconds.labels(namespace, profile, use.name)
        for stage in Stage:
            for ended in _STAGE_ENDS:
                self._stage_seconds.labels(profile, stage, ended)
        for histogram in (self._queue_seconds, self._provisioning_seconds, self._compilation_seconds):
            histogram.labels(profile, capacity)

    def end(self, namespace: str, profile: str) -> None:
        """Removes the series of a namespace under a profile. Those without a namespace stay."""
        for counter in (self._jobs, self._attempts, self._hung, self._training_seconds):
            counter.remove_by_labels({"namespace": namespace, "profile": profile})

    def observe(self, seen: Transitions) -> None:
        """Counts what has ended from one status to the next."""
        place = seen.namespace, seen.profile
        if seen.result is not None:
            self._jobs.labels(*place, seen.result, seen.failure_class or "", seen.cause or "").inc()
        for attempt in seen.attempts:
            self._attempts.labels(*place, attempt.failure_class).inc()
            if attempt.hung:
                self._hung.labels(*place, attempt.cause or "").inc()
        for stage in seen.stages:
            self._stage_seconds.labels(seen.profile, stage.stage, stage.result).observe(stage.seconds)
        if seen.admission is not None:
            self._admission_seconds.observe(seen.admission)
        if seen.training is not None:
            capacity = seen.capacity or ""
            uses = seen.training.uses
            self._queue_seconds.labels(seen.profile, capacity).observe(uses.queued)
            self._provisioning_seconds.labels(seen.profile, capacity).observe(uses.provisioning)
            for use, seconds in asdict(uses).items():
                self._training_seconds.labels(*place, use).inc(seconds)
            if seen.training.compilation is not None:
                self._compilation_seconds.labels(seen.profile, capacity).observe(seen.training.compilation)
