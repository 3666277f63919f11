"""Counters and histograms of what changes from one status of a job to the next, since the process leads."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram

from finetune_contract import FailureClass, Stage
from finetune_operator.api import Condition, ConditionStatus, ConditionType, Phase, Reason, StagePhase
from finetune_operator.api.status_stages import GoodputStatus
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.lifecycle.attempts.capacity import NO_CAPACITY
from finetune_operator.lifecycle.attempts.deadlines import (
    HUNG,
    POD_NOT_STARTED,
    STAGE_TIMEOUT,
    STARTUP_TIMEOUT,
)
from finetune_operator.lifecycle.changes import Changes
from finetune_operator.objects import Object
from finetune_operator.planning.defaults import BUILT_IN, EVALUATE_SECONDS
from finetune_operator.planning.merge import lookup
from finetune_operator.runtime.job_metrics import Place

_HOUR = 3600
_DAY = 24 * _HOUR
#: Seconds for which a series stays at 0: longer than the interval of scrapes.
HELD_SECONDS = 120
#: Seconds, from a check of the data to a training of four weeks.
_STAGE_BUCKETS = (30, 60, 300, 900, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 28 * 86400)
#: Seconds, from a node that exists to a week in a queue.
_WAIT_BUCKETS = (10, 60, 180, 600, 1800, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
#: Seconds, from programs in the cache to those of the largest models.
_COMPILATION_BUCKETS = (5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)
#: Seconds. The API server stores the time of a job's creation in whole seconds.
_ADMISSION_BUCKETS = (1, 2, 5, 10, 30, 60, 300, 1800)
#: How a stage ends.
_STAGE_ENDS = (StagePhase.SUCCEEDED, StagePhase.FAILED)
#: Uses of a training's time, fields of ``status.goodput.seconds``: as the operator observes them, and as the trainer
#: reports them.
_OBSERVED, _REPORTED = ("queued", "provisioning"), ("startup", "productive", "evaluation", "recomputed")
#: Histograms of parts of a training's time: name, help and buckets.
_TRAINING_PARTS = {
    "queued": (
        "finetune_training_queue_seconds",
        "Time that a training which has ended had waited for quota, over all its attempts",
        _WAIT_BUCKETS,
    ),
    "provisioning": (
        "finetune_training_provisioning_seconds",
        "Time that a training which has ended had waited for nodes and images, over all its attempts",
        _WAIT_BUCKETS,
    ),
    "compilation": (
        "finetune_training_compilation_seconds",
        "Time that a training which has ended took to compile programs or read cached ones, over all its attempts",
        _COMPILATION_BUCKETS,
    ),
}
#: Reasons for which the operator ends an attempt that makes no progress although its nodes are there.
_STILL = (HUNG, STARTUP_TIMEOUT)
#: Limits that a job may lower, by the reason or class of the failures that they lead to. The number of retries of class
#: Infrastructure is none of them: whatever it is, there was a fault.
_LIMITS: Mapping[str, str] = {
    NO_CAPACITY: "preRunningDeadlineSeconds",
    POD_NOT_STARTED: "preRunningDeadlineSeconds",
    HUNG: "hangPolicy.noStepSeconds",
    STARTUP_TIMEOUT: "hangPolicy.startupSeconds",
    STAGE_TIMEOUT: "hangPolicy.stageSeconds",
    FailureClass.PREEMPTION: "recovery.maxPreemptions",
}

type _Sample = tuple[Callable[[float], None], float]
"""What takes a value, and the value."""


class FailureCause(StrEnum):
    """Why a failure that is not the job's fault may still be nothing that the platform team has to mend."""

    OWN_LIMIT = "OwnLimit"
    """The job itself sets the limit that ended it, below the built-in default."""
    NO_CAPACITY = "NoCapacity"
    """No nodes were available in time."""


class ChangeMetrics:
    """The series of each place where jobs are or were.

    They begin at 0 and stay there for HELD_SECONDS, since a first value above 0 is no increase to Prometheus. What ends
    meanwhile is counted then.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: dict[Place, float] = {}
        """Places whose series have begun, and when."""
        self._held: defaultdict[Place, list[_Sample]] = defaultdict(list)
        """What has ended at places whose series have just begun."""
        self._idle: dict[tuple[str, str], float] = {}
        """Since when a namespace has had no jobs under a profile."""
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._chip_seconds = counter(
            "finetune_chip_seconds",
            "TPU chip seconds in which processes of jobs ran, as statuses report them",
            ["namespace", "profile", "capacity"],
        )
        self._cost = counter(
            "finetune_cost",
            "Cost of the chip seconds at the profiles' prices",
            ["namespace", "profile", "capacity", "currency"],
        )
        self._jobs = counter(
            "finetune_jobs_ended",
            "Jobs that have ended, by result (Succeeded, Failed or Planned), class of the failure, and its cause: "
            "OwnLimit (a limit that the job sets below the default), NoCapacity, or empty",
            ["namespace", "profile", "result", "class", "cause"],
        )
        self._attempts = counter(
            "finetune_attempts_ended",
            "Attempts that have ended without success, by class of the failure",
            ["namespace", "profile", "class"],
        )
        self._hung = counter(
            "finetune_attempts_hung",
            "Attempts that the operator has ended because they made no progress; cause is OwnLimit if the job sets the "
            "limit below the default",
            ["namespace", "profile", "cause"],
        )
        self._training_seconds = counter(
            "finetune_training_seconds",
            "Time of trainings that have ended, over all their attempts, by use: productive or lost to what",
            ["namespace", "profile", "use"],
        )
        self._stage_seconds = histogram(
            "finetune_stage_seconds",
            "Time from the start of a stage's first attempt to the stage's end",
            ["profile", "stage", "result"],
            buckets=_STAGE_BUCKETS,
        )
        self._training_parts = {
            part: histogram(name, text, ["profile", "capacity"], buckets=buckets)
            for part, (name, text, buckets) in _TRAINING_PARTS.items()
        }
        self._admission_seconds = histogram(
            "finetune_admission_seconds",
            "Time from a job's creation until its status first said whether it is valid",
            buckets=_ADMISSION_BUCKETS,
        )

    def begin(self, place: Place) -> None:
        """Begins the series of a place at 0, if they have not begun."""
        if place in self._begun:
            return
        self._begun[place] = self._clock()
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
        for use in _OBSERVED + _REPORTED:
            self._training_seconds.labels(namespace, profile, use)
        for stage in Stage:
            for ended in _STAGE_ENDS:
                self._stage_seconds.labels(profile, stage, ended)
        for part_seconds in self._training_parts.values():
            part_seconds.labels(profile, capacity)

    def changed(self, job: Object, changes: Changes) -> None:
        """Counts what has ended, and what the reported usage has grown by."""
        resolved = changes.after.resolved
        place = Place(
            job["metadata"]["namespace"],
            resolved.profile.name if resolved and resolved.profile else "",
            resolved.resources.capacity if resolved and resolved.resources else "",
        )
        if place.profile and place.capacity:
            self._used(place, changes)
        if samples := list(self._ended(place, job, changes)):
            self.begin(place)
            self._held[place] += samples
            self._count(place)

    def count_held(self) -> None:
        """Counts what was held back, where the series have been at 0 for long enough."""
        for place in tuple(self._held):
            self._count(place)

    def drop_idle(self, live: frozenset[Place]) -> None:
        """Drops the counters of a namespace that has had no jobs under a profile for a day. ``live``: where jobs are.

        One with each call, because its removal reads all series. Those without a namespace stay.
        """
        used, held = ({place[:2] for place in places} for places in (live, self._held))
        now = self._clock()
        expired = list[tuple[str, str]]()
        for pair in {place[:2] for place in self._begun}:
            if pair in used:
                self._idle.pop(pair, None)
            elif now - self._idle.setdefault(pair, now) > _DAY and pair not in held:
                expired.append(pair)
        for namespace, profile in expired[:1]:
            del self._idle[namespace, profile]
            self._begun = {
                place: begun for place, begun in self._begun.items() if place[:2] != (namespace, profile)
            }
            for counter in (
                self._jobs, self._attempts, self._hung, self._training_seconds, self._chip_seconds, self._cost,
            ):  # fmt: skip
                counter.remove_by_labels({"namespace": namespace, "profile": profile})

    def _count(self, place: Place) -> None:
        if self._clock() - self._begun[place] >= HELD_SECONDS:
            for take, value in self._held.pop(place, ()):
                take(value)

    def _used(self, place: Place, changes: Changes) -> None:
        """Counts usage, 0 included, which begins the job's series.

        It counts for the capacity that the job had before, because what is reported now has been used since then.
        """
        earlier, cost = changes.before.resolved, changes.after.cost
        if earlier is not None and earlier.resources is not None:
            place = place._replace(capacity=earlier.resources.capacity)
        more = Amounts.of(cost) - Amounts.of(changes.before.cost)
        self._chip_seconds.labels(*place).inc(float(more.chip_hours * _HOUR))
        if cost is not None and cost.currency is not None:
            self._cost.labels(*place, cost.currency).inc(float(more.cost))

    def _ended(self, place: Place, job: Object, changes: Changes) -> Iterator[_Sample]:
        namespace, profile, _ = place
        if changes.result is not None:
            failure_class, cause = "", ""
            if failure := changes.after.failure:
                failure_class = failure.failure_class
                # Of the class whose retries are used up, unless something else has ended the job.
                spent = None if failure.reason == Reason.NO_PROGRESS else failure_class
                cause = _cause(job, failure.reason, spent)
            yield self._jobs.labels(namespace, profile, changes.result, failure_class, cause).inc, 1
        for attempt in changes.attempts:
            yield self._attempts.labels(namespace, profile, attempt.failure_class).inc, 1
            reason = attempt.record.reason
            if reason in _STILL:
                yield self._hung.labels(namespace, profile, _cause(job, reason)).inc, 1
        for end in changes.stages:
            yield self._stage_seconds.labels(profile, end.stage.name, end.stage.phase).observe, end.seconds
            if end.stage.name is Stage.TRAIN and changes.after.goodput is not None:
                yield from self._trained(place, changes.after.goodput, end.seconds)
        admission = _admission(job, changes)
        if admission is not None:
            yield self._admission_seconds.observe, admission

    def _trained(self, place: Place, goodput: GoodputStatus, longest: float) -> Iterator[_Sample]:
        """Yields what a training's time was used for. No part that its tenant can write is longer than the stage."""
        namespace, profile, capacity = place
        uses = {use: float(getattr(goodput.seconds, use) or 0) for use in _OBSERVED}
        uses |= {use: min(max(0.0, getattr(goodput.seconds, use)), longest) for use in _REPORTED}
        for use, seconds in uses.items():
            yield self._training_seconds.labels(namespace, profile, use).inc, seconds
        parts = {part: uses[part] for part in _OBSERVED}
        if goodput.startup is not None:
            parts["compilation"] = min(max(0.0, goodput.startup.compilation), longest)
        for part, seconds in parts.items():
            yield self._training_parts[part].labels(profile, capacity).observe, seconds


def _cause(job: Object, *limited_by: str | None) -> str:
    """Returns the cause of a failure with this reason and, if it has ended the job, this class; empty if none."""
    for path in filter(None, map(_LIMITS.get, filter(None, limited_by))):
        own = lookup(job["spec"], path)
        # The default of stageSeconds alone depends on the stage: that of Evaluate is the shortest.
        if isinstance(own, int) and own < (lookup(BUILT_IN, path) or EVALUATE_SECONDS):
            return FailureCause.OWN_LIMIT
    return FailureCause.NO_CAPACITY if NO_CAPACITY in limited_by else ""


def _admission(job: Object, changes: Changes) -> float | None:
    """Returns the seconds from the job's creation until this status, if it is the first that says whether the job is
    valid."""
    created = job["metadata"].get("creationTimestamp")
    for change in changes.conditions if created else ():
        after = change.after
        if after.type == ConditionType.VALID and _is_known(after) and not _is_known(change.before):
            since = after.last_transition_time - datetime.fromisoformat(created)
            return max(0.0, since.total_seconds())
    return None


def _is_known(condition: Condition | None) -> bool:
    return condition is not None and condition.status != ConditionStatus.UNKNOWN
