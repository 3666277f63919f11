"""Why what runs of a job has to stop: one ordered list of reasons, whatever is known of the job's plan and run folder.

What must stop, stops by the cluster's objects, the job's spec, its profile and its status alone. Reasons that need more
(a training without progress, an edited job) are those of :mod:`finetune_operator.lifecycle.live_attempt`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import ConditionStatus, ConditionType, Reason
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import Attempt, seconds_beside_others
from finetune_operator.lifecycle.attempts.pod_failures import died
from finetune_operator.lifecycle.attempts.stop_records import (
    CANCELLED,
    RUN_FOLDER_UNREADABLE,
    SUSPENDED,
    budget_stop,
    requested_stop,
)
from finetune_operator.lifecycle.job_state import JobPhase
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.spending import (
    ForcedSuspension,
    budget_exceeded,
    must_stop,
    seconds_left,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What limits a job, and what it has used of it. Of a job without a usable plan: as far as it is known."""

    observation: Observation
    seconds: float
    """Running time over all attempts."""
    active: int | None
    """Maximum of ``seconds``; None: no limit."""
    exceeded: ForcedSuspension | None
    """The job's own limit on chip hours or money that is exhausted; None if all allow more."""
    month: ForcedSuspension | None
    """The same of the namespace's budget for the month."""
    blind: int | None = None
    """Maximum of seconds without knowledge of a training's progress (``spec.hangPolicy.blindSeconds``); None: no
    limit."""
    unknown: ReadFailure | None = None
    """Why the progress, or all of the run folder, is unknown; None if it is known."""
    settled: bool = False
    """Whether the job has succeeded or failed, so that what still runs counts no more."""

    @property
    def active_left(self) -> float | None:
        """Seconds that the job may still run; None: no limit."""
        return None if self.active is None else self.active - self.seconds

    @property
    def blind_left(self) -> float | None:
        """Seconds that the job may still run without knowledge of its progress, counted from the transition of the
        condition RunFolderReadable. None: there is no limit, or the cause is not this run folder.

        Nothing runs while the job's pods are unknown: neither budgets nor deadlines could end it.
        """
        why, observation = self.unknown, self.observation
        if why is not None and why.excess:
            return 0.0
        if self.blind is None or why is None or not why.alone:
            return None
        known = observation.status.condition(ConditionType.RUN_FOLDER_READABLE)
        unknown = known is not None and known.status is ConditionStatus.FALSE
        since = known.last_transition_time if known and unknown else observation.now
        return (after(since, self.blind) - observation.now).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt has to stop. It saves and ends."""

    record: Failure | None
    """Written before; None if the end of the attempt is not to be classified."""
    over: ForcedSuspension | None = None
    """Why the job is suspended without its user's request; None if it is not, or at its user's request."""

    @property
    def phase(self) -> JobPhase:
        """The job's phase while the attempt stops; active if another attempt follows, or the job then fails."""
        if self.record is None or self.over is not None or self.record.reason == SUSPENDED:
            return JobPhase.SUSPENDING
        return JobPhase.CANCELLING if self.record.reason == CANCELLED else JobPhase.ACTIVE


def planned_limits(observation: Observation, stages: JobStages) -> Limits:
    """Returns the limits of a job with a plan."""
    limits, folder, live = stages.plan.limits, observation.folder, stages.live
    trains = live is not None and live.key.stage is Stage.TRAIN
    return Limits(
        observation=observation,
        seconds=stages.used.seconds,
        active=limits.active,
        exceeded=budget_exceeded(stages),
        month=must_stop(stages),
        blind=limits.blind,
        unknown=folder.unreadable or (folder.progress_unknown if trains else None),
        settled=bool(stages.succeeded or stages.failed),
    )


def stop_of(limits: Limits, attempt: Attempt) -> Stop | None:  # noqa: PLR0911  one per reason
    """Returns why the live ``attempt`` has to stop; None if nothing requires it. The first reason that applies decides.

    A job that is suspended or cancelled by its user does not fail for its deadline or its budget.
    """
    observation = limits.observation
    if limits.settled:
        return Stop(record=None)
    if requested := requested_stop(observation.job.control):
        return Stop(record=requested)
    if limits.active_left is not None and limits.active_left <= 0:
        return Stop(record=deadlines.active_exceeded(limits.active))
    if (spent := limits.exceeded or limits.month) and attempt.key.stage.on_tpu:
        return Stop(record=budget_stop(spent.message), over=spent)
    if limits.unknown and limits.blind_left is not None and limits.blind_left <= 0:
        return Stop(record=_unseen(limits.blind, limits.unknown), over=halted(limits.unknown))
    if attempt.trainer_ended and seconds_beside_others(attempt, observation.now) == 0:
        # Containers that others have added to its pods would hold the slice without end.
        return Stop(record=died(attempt))
    return None


def seconds_to_stop(limits: Limits, stages: JobStages, attempt: Attempt) -> Iterator[float]:
    """Yields the seconds until each of these reasons applies to the live ``attempt``, as far as they are known."""
    for left in (
        limits.active_left,
        seconds_left(stages, attempt),
        limits.blind_left,
    ):
        if left is not None:
            yield left


def _unseen(most: int | None, why: ReadFailure) -> Failure:
    """Returns the record of an attempt that is stopped because its progress cannot be read. No failure is counted."""
    when = "" if why.excess else f" after the {most} s of spec.hangPolicy.blindSeconds"
    return Failure(
        code=ExitCode.STOPPED,
        reason=RUN_FOLDER_UNREADABLE,
        message=f"Stopped{when} without knowledge of its progress: {why.message}"[:1024],
    )


def halted(why: ReadFailure) -> ForcedSuspension:
    """Returns why the operator suspends the job although its user has not."""
    if why.excess:
        return ForcedSuspension(
            reason=Reason.TOO_MANY_OBJECTS,
            message=f"The job's pods are unknown: {why.message}",
            fix="The job then continues automatically from its last checkpoint.",
        )
    return ForcedSuspension(
        reason=Reason.RUN_FOLDER_UNREADABLE,
        message=f"The progress of the training cannot be read: {why.message}",
        fix="Repair the run folder: the job then continues automatically from its last checkpoint.",
    )
