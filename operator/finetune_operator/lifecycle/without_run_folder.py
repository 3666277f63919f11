"""A job whose run folder cannot be read: nothing is created, and the status keeps what it contains.

What the cluster and the job's own status show is enough to stop: suspension, cancellation, spec.activeDeadlineSeconds,
budgets, and spec.hangPolicy.blindSeconds act at once. The reason for a stop waits in the status until the run folder
can hold it (:mod:`finetune_operator.lifecycle.attempts.pending_records`). Whether the job has succeeded or failed is
decided when the folder can be read again.
"""

from dataclasses import replace

from finetune_contract import Stage
from finetune_operator.api import ConditionType, Reason, StagePhase, WaitingReason
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.pending_records import confirmed_records
from finetune_operator.lifecycle.attempts.stop_records import (
    CANCELLED,
    RUN_FOLDER_UNREADABLE,
    requested_stop,
)
from finetune_operator.lifecycle.attempts.usage import counted
from finetune_operator.lifecycle.children.kueue import queue_status
from finetune_operator.lifecycle.decision import NextStep, Wait, stop
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.stages.job_stages import JobStages, StageState
from finetune_operator.lifecycle.stages.spending import ForcedSuspension, seconds_left, used_up
from finetune_operator.lifecycle.stops import Stop, planned_limits, stop_of
from finetune_operator.lifecycle.unknown_progress import blind_left, halted
from finetune_operator.planning import Plan, Refused
from finetune_operator.rendering import jobset_name

#: Seconds. No watch reports that the store is available again.
_STORE_SECONDS = 5.0
#: Seconds. Listing too many objects takes time, which other jobs need.
_EXCESS_SECONDS = 60.0


def _not_ended() -> ForcedSuspension:
    """Returns why a cancelled job of which nothing runs has not ended."""
    return ForcedSuspension(
        reason=Reason.CANCELLING,
        message="The job is cancelled, and nothing of it runs.",
        fix="It ends when its run folder can be read, which shows whether it has succeeded or failed before.",
    )


def without_run_folder(
    observation: Observation,
    plan: Plan,
    attempts: tuple[Attempt, ...],
    why: ReadFailure,
    refused: Refused | None,
) -> NextStep:
    """Decides without the run folder.

    Args:
        observation: of the job.
        plan: its plan.
        attempts: those that its JobSets and pods show.
        why: why the run folder cannot be read.
        refused: why the spec in its present form is refused.
    """
    live = next((_known(each, observation, plan) for each in reversed(attempts) if each.live), None)
    stages = _visible_stages(observation, plan, attempts, live)
    held = confirmed_records(observation)
    due, state = _state(observation, stages, why, held[-1][1].reason if held else None)
    records = held
    if live and due and due.record and live.key not in dict(held):
        seen = counted(live, plan, observation.now)
        records = (*held, (live.key, due.record.model_copy(update=seen)))
    return NextStep(
        action=stop(observation.jobsets, status_first=True) if due else Wait(),
        state=replace(state, refused=refused, unreadable=why),
        stages=stages,
        requeue_after=_requeue_after(observation, stages, why),
        pending=records,
    )


def _state(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, why: ReadFailure, stopped_for: str | None
) -> tuple[Stop | None, JobState]:
    """Returns why the live attempt is stopped, if it is, and the state of the job."""
    live, over = stages.live, used_up(stages)
    what = "the job's pods are unknown" if why.excess else "the artifact store could not be read"
    wait = WaitCause(reason=WaitingReason.RETRY, message=f"{what}: {why.message.rstrip('.')}")
    active = JobState(phase=JobPhase.ACTIVE, wait=wait, running=live is not None and live.running)
    if live is None:
        requested = requested_stop(observation.job["spec"])
        if requested:
            waits = _not_ended() if requested.reason == CANCELLED else None
            return None, JobState(phase=JobPhase.SUSPENDED, over=waits)
        if stopped_for == RUN_FOLDER_UNREADABLE and why.alone:
            return None, JobState(phase=JobPhase.SUSPENDED, over=halted(why))
        if over and not over.fails and _was_suspended(observation, stopped_for):
            return None, JobState(phase=JobPhase.SUSPENDED, over=over)
        return None, active
    if due := stop_of(planned_limits(observation, stages, over, why), live):
        stopping = JobState(phase=due.phase, running=live.running, over=due.over)
        return due, active if due.phase is JobPhase.ACTIVE else stopping
    late = deadlines.AttemptDeadlines(
        attempt=live, plan=stages.plan, progress=None, now=observation.now
    ).overdue
    if late and late.reason == deadlines.STAGE_TIMEOUT:
        # The only timeout that the pods alone show.
        return Stop(record=late), active
    queue = queue_status(
        live.jobset, live.workload, served=observation.workloads is not None, now=observation.now
    )
    return None, replace(active, queue=queue)


def _was_suspended(observation: Observation, stopped_for: str | None) -> bool:
    """Returns whether the budget is the reason for the suspension; other reasons are unknown now."""
    return stopped_for == Reason.BUDGET_EXHAUSTED or any(
        each.type == ConditionType.SUSPENDED and each.reason == Reason.BUDGET_EXHAUSTED
        for each in observation.status.conditions or ()
    )


def _visible_stages(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...], live: Attempt | None
) -> JobStages:
    """Returns the stage that runs, or else the one that the status contains."""
    last = observation.status.stage or Stage.PREFLIGHT
    stage_state = (
        StageState(stage=live.key.stage, phase=StagePhase.RUNNING, attempts=(live,))
        if live
        else StageState(stage=last, phase=StagePhase.PENDING)
    )
    # Attempts that have ended are classified when their records can be read.
    return replace(
        derive_stages(observation, plan, attempts, stop=None), stages=(stage_state,), classified=()
    )


def _known(attempt: Attempt, observation: Observation, plan: Plan) -> Attempt:
    """Returns the attempt with its ordinal from the status: without the run folder, earlier ones cannot be counted."""
    name = jobset_name(plan.job.name, attempt.key.stage, attempt.key.number)
    known = next((each for each in observation.status.stages or () if each.job_set == name), None)
    if known is None or known.attempt is None:
        return attempt
    return replace(attempt, ordinal=known.attempt + attempt.key.restart - (known.restart or 0))


def _requeue_after(observation: Observation, stages: JobStages, why: ReadFailure) -> float:
    """Seconds."""
    live = stages.live
    due = (
        (
            deadlines.active_left(stages.plan.limits, stages.used),
            seconds_left(stages, live),
            blind_left(observation, stages.plan.limits.blind, why),
        )
        if live and not (live.jobset and live.jobset.deleting)
        else ()
    )
    regular = observation.pace(_EXCESS_SECONDS if why.excess else _STORE_SECONDS)
    return max(1.0, min([regular, *(each for each in due if each is not None)]))
