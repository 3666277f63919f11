"""Counts what changes from one status of a job to the next, since the process leads."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import datetime
from enum import StrEnum

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
from finetune_operator.runtime.series import MetricSeries

_HOUR = 3600
_DAY = 24 * _HOUR
#: Seconds for which a series stays at 0: longer than the interval of scrapes.
HELD_SECONDS = 120
#: Uses of a training's time, fields of ``status.goodput.seconds``: as the operator observes them, and as the trainer
#: reports them.
_OBSERVED, _REPORTED = ("queued", "provisioning"), ("startup", "productive", "evaluation", "recomputed")
#: Histograms of parts of a training's time.
_TRAINING_PARTS = {
    "queued": "finetune_training_queue_seconds",
    "provisioning": "finetune_training_provisioning_seconds",
    "compilation": "finetune_training_compilation_seconds",
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

type _Sample = tuple[str, float, tuple[str, ...]]
"""Name of a series, a value to add, and the values of the labels."""


class FailureCause(StrEnum):
    """Why a failure that is not the job's fault may still be nothing that the platform team has to mend."""

    OWN_LIMIT = "OwnLimit"
    """The job itself sets the limit that ended it, below the built-in default."""
    NO_CAPACITY = "NoCapacity"
    """No nodes were available in time."""


#: Classes of failures; quota that Kueue withdraws is none.
_CLASSES = tuple(each for each in FailureClass if each is not FailureClass.QUOTA)
#: How jobs end: result, class and cause.
_JOB_ENDS = (
    (Phase.SUCCEEDED, "", ""),
    (Phase.PLANNED, "", ""),
    *((Phase.FAILED, failure_class, "") for failure_class in _CLASSES),
    *((Phase.FAILED, FailureClass.INFRASTRUCTURE, cause) for cause in FailureCause),
    (Phase.FAILED, FailureClass.PREEMPTION, FailureCause.OWN_LIMIT),
)


class ChangeMetrics:
    """The series of each place where jobs are or were.

    They begin at 0 and stay there for HELD_SECONDS, since a first value above 0 is no increase to Prometheus. What ends
    meanwhile is counted then.
    """

    def __init__(self, series: MetricSeries, clock: Callable[[], float]) -> None:
        self._series = series
        self._clock = clock
        self._begun: dict[Place, float] = {}
        """Places whose series have begun, and when."""
        self._held: defaultdict[Place, list[_Sample]] = defaultdict(list)
        """What has ended at places whose series have just begun."""
        self._idle: dict[tuple[str, str], float] = {}
        """Since when a namespace has had no jobs under a profile."""

    def begin(self, place: Place) -> None:
        """Begins the series of a place, where there is a job, at 0 if they have not begun."""
        self._idle.pop(place[:2], None)
        if place in self._begun:
            return
        self._begun[place] = self._clock()
        namespace, profile, capacity = place
        begin = self._series.begin
        for end in _JOB_ENDS:
            begin("finetune_jobs_ended", namespace, profile, *end)
        for failure_class in FailureClass:
            begin("finetune_attempts_ended", namespace, profile, failure_class)
        for hung_by in ("", FailureCause.OWN_LIMIT):
            begin("finetune_attempts_hung", namespace, profile, hung_by)
        for use in _OBSERVED + _REPORTED:
            begin("finetune_training_seconds", namespace, profile, use)
        for stage in Stage:
            for ended in (StagePhase.SUCCEEDED, StagePhase.FAILED):
                begin("finetune_stage_seconds", profile, stage, ended)
        for part in _TRAINING_PARTS.values():
            begin(part, profile, capacity)

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
        if samples := list(_ended(place, job, changes)):
            self.begin(place)
            self._held[place] += samples
            self._count(place)

    def count_held(self) -> None:
        """Counts what was held back, where the series have been at 0 for long enough."""
        for place in tuple(self._held):
            self._count(place)

    def drop_idle(self, used: Container[tuple[str, str]]) -> None:
        """Drops the counters of a namespace that has had no jobs under a profile for a day. ``used``: where jobs are.

        One with each call, because its removal reads all series. Those without a namespace stay.
        """
        held = {place[:2] for place in self._held}
        now = self._clock()
        expired = list[tuple[str, str]]()
        for pair in {place[:2] for place in self._begun}:
            if pair in used:
                self._idle.pop(pair, None)
            elif now - self._idle.setdefault(pair, now) > _DAY and pair not in held:
                expired.append(pair)
        for pair in expired[:1]:
            del self._idle[pair]
            self._begun = {place: begun for place, begun in self._begun.items() if place[:2] != pair}
            self._series.end(*pair)

    def _count(self, place: Place) -> None:
        if self._clock() - self._begun[place] >= HELD_SECONDS:
            for name, value, labels in self._held.pop(place, ()):
                self._series.add(name, value, *labels)

    def _used(self, place: Place, changes: Changes) -> None:
        """Counts usage, 0 included, which begins the job's series.

        It counts for the capacity that the job had before, because what is reported now has been used since then.
        """
        earlier, cost = changes.before.resolved, changes.after.cost
        if earlier is not None and earlier.resources is not None:
            place = place._replace(capacity=earlier.resources.capacity)
        more = Amounts.of(cost) - Amounts.of(changes.before.cost)
        self._series.add("finetune_chip_seconds", float(more.chip_hours * _HOUR), *place)
        if cost is not None and cost.currency is not None:
            self._series.add("finetune_cost", float(more.cost), *place, cost.currency)


def _ended(place: Place, job: Object, changes: Changes) -> Iterator[_Sample]:
    namespace, profile, _ = place
    if changes.result is not None:
        failure_class, cause = "", ""
        if failure := changes.after.failure:
            failure_class = failure.failure_class
            # Of the class whose retries are used up, unless something else has ended the job.
            spent = None if failure.reason == Reason.NO_PROGRESS else failure_class
            cause = _cause(job, failure.reason, spent)
        yield "finetune_jobs_ended", 1, (namespace, profile, changes.result, failure_class, cause)
    for attempt in changes.attempts:
        yield "finetune_attempts_ended", 1, (namespace, profile, attempt.failure_class)
        reason = attempt.record.reason
        if reason in _STILL:
            yield "finetune_attempts_hung", 1, (namespace, profile, _cause(job, reason))
    for end in changes.stages:
        yield "finetune_stage_seconds", end.seconds, (profile, end.stage.name, end.stage.phase)
        if end.stage.name is Stage.TRAIN and changes.after.goodput is not None:
            yield from _trained(place, changes.after.goodput, end.seconds)
    admission = _admission(job, changes)
    if admission is not None:
        yield "finetune_admission_seconds", admission, ()


def _trained(place: Place, goodput: GoodputStatus, longest: float) -> Iterator[_Sample]:
    """Yields what a training's time was used for. No part that its tenant can write is longer than the stage."""
    namespace, profile, capacity = place
    uses = {use: float(getattr(goodput.seconds, use) or 0) for use in _OBSERVED}
    uses |= {use: min(max(0.0, getattr(goodput.seconds, use)), longest) for use in _REPORTED}
    for use, seconds in uses.items():
        yield "finetune_training_seconds", seconds, (namespace, profile, use)
    parts = {part: uses[part] for part in _OBSERVED}
    if goodput.startup is not None:
        parts["compilation"] = min(max(0.0, goodput.startup.compilation), longest)
    for part, seconds in parts.items():
        yield _TRAINING_PARTS[part], seconds, (profile, capacity)


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
