"""Why what runs of a job has to stop: one ordered list of reasons, whatever is known of the job's plan and run folder.

What must stop, stops by the cluster's objects, the job's spec, its profile and its status alone. Reasons that need more
(a training without progress, an edited job) are those of :mod:`finetune_operator.lifecycle.live_attempt`.
"""

from dataclasses import dataclass

from finetune_contract import Failure
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import Attempt, seconds_beside_others
from finetune_operator.lifecycle.attempts.pod_failures import died
from finetune_operator.lifecycle.attempts.stop_records import (
    CANCELLED,
    SUSPENDED,
    budget_stop,
    requested_stop,
)
from finetune_operator.lifecycle.job_state import JobPhase
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.spending import ForcedSuspension, must_stop
from finetune_operator.lifecycle.unknown_progress import blind_left, halted, unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What limits a job, and what it has used of it. Of a job without a usable plan: as far as it is known."""

    observation: Observation
    seconds: float
    """Running time over all attempts."""
    active: int | None
    """Maximum of ``seconds``; None: no limit."""
    spent: ForcedSuspension | None
    """The limit on chip hours or money that is exhausted; None if all allow more."""
    blind: int | None = None
    """Maximum of seconds without knowledge of a training's progress; None: no limit."""
    unknown: ReadFailure | None = None
    """Why the progress, or all of the run folder, is unknown; None if it is known."""
    settled: bool = False
    """Whether the job has succeeded or failed, so that what still runs counts no more."""


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


def planned_limits(
    observation: Observation,
    stages: JobStages,
    spent: ForcedSuspension | None,
    unknown: ReadFailure | None,
) -> Limits:
    """Returns the limits of a job with a plan. ``spent``: the job's own exhausted budget."""
    limits = stages.plan.limits
    return Limits(
        observation=observation,
        seconds=stages.used.seconds,
        active=limits.active,
        spent=spent or must_stop(stages),
        blind=limits.blind,
        unknown=unknown,
        settled=bool(stages.succeeded or stages.failed),
    )


def stop_of(limits: Limits, attempt: Attempt) -> Stop | None:  # noqa: PLR0911  one per reason
    """Returns why the live ``attempt`` has to stop; None if nothing requires it. The first reason that applies decides.

    A job that is suspended or cancelled by its user does not fail for its deadline or its budget.
    """
    observation, unknown = limits.observation, limits.unknown
    if limits.settled:
        return Stop(record=None)
    if requested := requested_stop(observation.job["spec"]):
        return Stop(record=requested)
    if limits.active is not None and limits.seconds >= limits.active:
        return Stop(record=deadlines.active_exceeded(limits.active))
    if limits.spent and attempt.key.stage.on_tpu:
        return Stop(record=budget_stop(limits.spent.message), over=limits.spent)
    left = blind_left(observation, limits.blind, unknown)
    if unknown and left is not None and left <= 0:
        return Stop(record=unseen(limits.blind, unknown), over=halted(unknown))
    if attempt.trainer_ended and seconds_beside_others(attempt, observation.now) == 0:
        # Containers that others have added to its pods would hold the slice without end.
        return Stop(record=died(attempt))
    return None
