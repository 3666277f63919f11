"""A job whose run folder cannot be read: nothing is created, and the status keeps what it contains.

What the cluster and the job's own status show is enough to stop: suspension, cancellation, spec.activeDeadlineSeconds,
budgets, and spec.hangPolicy.blindSeconds act at once. The reason for a stop waits in the status until the run folder
can hold it (:mod:`finetune_operator.lifecycle.attempts.pending_records`). Whether the job has succeeded or failed is
decided when the folder can be read again.
"""

from dataclasses import replace
from datetime import datetime

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Condition, ConditionStatus, ConditionType, Reason, StagePhase, WaitingReason
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.pending_records import confirmed_records, newest_reason
from finetune_operator.lifecycle.attempts.stop_records import (
    CANCELLED,
    RUN_FOLDER_UNREADABLE,
    budget_stop,
    requested_stop,
)
from finetune_operator.lifecycle.attempts.usage import counted
from finetune_operator.lifecycle.attempts.wait_times import recorded_waits
from finetune_operator.lifecycle.children.kueue import queue_status
from finetune_operator.lifecycle.decision import NextStep, Wait, stop
from finetune_operator.lifecycle.job_state import ForcedSuspension, JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.stages.job_stages import JobStages, StageState
from finetune_operator.lifecycle.stages.monthly_budget import must_stop, seconds_to_limit
from finetune_operator.lifecycle.stages.spending import seconds_left, used_up
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.plan import TimeLimits
from finetune_operator.rendering import jobset_name

#: Seconds. No watch reports that the store is available again.
_STORE_SECONDS = 5.0
#: Seconds. Listing too many objects takes time, which other jobs need.
_EXCESS_SECONDS = 60.0


def blind_left(observation: Observation, limits: TimeLimits, why: ReadFailure | None) -> float | None:
    """Returns the seconds that a job may still run while its run folder cannot be read, counted from the transition of
    the condition RunFolderReadable. None: there is no limit, or the cause is not this run folder.

    Nothing runs while its pods are unknown: neither budgets nor deadlines could end it.
    """
    if why is not None and why.excess:
        return 0.0
    if limits.blind is None or why is None or not why.alone:
        return None
    known = _known_readable(observation)
    since = known.last_transition_time if known and known.status is ConditionStatus.FALSE else observation.now
    return (after(since, limits.blind) - observation.now).total_seconds()


def readable_since(observation: Observation) -> datetime | None:
    """Returns the time since which the run folder, which can be read now, could be read; None if the status does not
    say."""
    if observation.folder.progress_unknown:
        return observation.now
    known = _known_readable(observation)
    if known is None:
        return None
    return known.last_transition_time if known.status is ConditionStatus.TRUE else observation.now


def _known_readable(observation: Observation) -> Condition | None:
    """Returns the condition RunFolderReadable as it was written last."""
    conditions = observation.status.conditions or ()
    return next((each for each in conditions if each.type == ConditionType.RUN_FOLDER_READABLE), None)


def unseen(limits: TimeLimits, why: ReadFailure) -> Failure:
    """Returns the record of an attempt that is stopped because its progress cannot be read. No failure is counted."""
    when = "" if why.excess else f" after the {limits.blind} s of spec.hangPolicy.blindSeconds"
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
    failure, state = _state(observation, stages, why, newest_reason(held))
    records = held
    if live and failure and live.key not in dict(held):
        seen = counted(live, plan, observation.now) | recorded_waits(live, observation.now)
        records = (*held, (live.key, failure.model_copy(update=seen)))
    return NextStep(
        action=stop(observation.jobsets, status_first=True) if failure else Wait(),
        state=replace(state, refused=refused, unreadable=why),
        stages=stages,
        requeue_after=_requeue_after(observation, stages, why),
        pending=records,
    )


def _state(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, why: ReadFailure, stopped_for: str | None
) -> tuple[Failure | None, JobState]:
    """Returns why the live attempt is stopped, if it is, and the state of the job."""
    stop = requested_stop(observation.job["spec"])
    cancelled = stop is not None and stop.reason == CANCELLED
    limits, live = stages.plan.limits, stages.live
    over = used_up(stages)
    what = "the job's pods are unknown" if why.excess else "the artifact store could not be read"
    wait = WaitCause(reason=WaitingReason.RETRY, message=f"{what}: {why.message.rstrip('.')}")
    active = JobState(phase=JobPhase.ACTIVE, wait=wait, running=live is not None and live.running)
    if live is None:
        if stop:
            return None, JobState(phase=JobPhase.SUSPENDED, over=_not_ended() if cancelled else None)
        if stopped_for == RUN_FOLDER_UNREADABLE and why.alone:
            return None, JobState(phase=JobPhase.SUSPENDED, over=halted(why))
        if over and not over.fails and _was_suspended(observation, stopped_for):
            return None, JobState(phase=JobPhase.SUSPENDED, over=over)
        return None, active
    left = deadlines.active_left(limits, stages.used)
    unseen_left = blind_left(observation, limits, why)
    suspending = JobState(phase=JobPhase.SUSPENDING, running=live.running)
    if stop:
        return stop, replace(suspending, phase=JobPhase.CANCELLING) if cancelled else suspending
    if left is not None and left <= 0:
        return deadlines.active_exceeded(limits.active), active
    spent = over or must_stop(stages)
    if spent and live.key.stage.on_tpu:
        return budget_stop(spent.message), replace(suspending, over=spent)
    if unseen_left is not None and unseen_left <= 0:
        return unseen(limits, why), replace(suspending, over=halted(why))
    late = deadlines.overdue(live, stages.plan, None, observation.now)
    if late and late.reason == deadlines.STAGE_TIMEOUT:
        # The only timeout that the pods alone show.
        return late, active
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
            seconds_left(stages, live) if live.key.stage.on_tpu else None,
            seconds_to_limit(stages, live),
            blind_left(observation, stages.plan.limits, why),
        )
        if live and not (live.jobset and live.jobset.deleting)
        else ()
    )
    regular = observation.pace(_EXCESS_SECONDS if why.excess else _STORE_SECONDS)
    return max(1.0, min([regular, *(each for each in due if each is not None)]))
