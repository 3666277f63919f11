"""The next action of an admitted job: watch what runs, start the next attempt, or finish."""

from dataclasses import replace

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage
from finetune_operator.lifecycle import live_attempt as live
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import (
    Attempt,
    attempts_of,
    next_number,
    seconds_beside_others,
)
from finetune_operator.lifecycle.attempts.capacity import LONGEST_PAUSE, no_capacity_left, pause_after_refusal
from finetune_operator.lifecycle.attempts.pod_failures import refused_by_operator
from finetune_operator.lifecycle.attempts.stop_records import (
    CANCELLED,
    RUN_FOLDER_UNREADABLE,
    requested_stop,
)
from finetune_operator.lifecycle.cancellation import cancelled
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.kueue import queue_status
from finetune_operator.lifecycle.decision import SAFETY_SECONDS, Create, Deletion, Finish, NextStep, Wait
from finetune_operator.lifecycle.job_state import JobPhase, JobState, paused, waits_for_budget
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.stages.findings import too_small
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.retry_budget import too_many_attempts
from finetune_operator.lifecycle.stages.spending import (
    ForcedSuspension,
    budget_exceeded,
    monthly_stop,
    seconds_of_wait,
)
from finetune_operator.lifecycle.stops import planned_limits, stop_of
from finetune_operator.lifecycle.unknown_progress import halted
from finetune_operator.lifecycle.waiting import (
    NO_PODS_SECONDS,
    input_wait,
    recovering,
    refusal_wait,
    retry_wait,
)
from finetune_operator.lifecycle.without_run_folder import without_run_folder
from finetune_operator.planning import Plan, Refused, judge_findings
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import CpuPoolTooSmall, render_jobset


def next_action(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...], refused: Refused | None
) -> NextStep:
    """Returns the next step of an admitted job: its action, with the records of ended attempts, and obsolete JobSets.

    Args:
        observation: of the job.
        plan: its plan.
        attempts: its attempts.
        refused: why the spec in its present form is refused; what runs continues under the admitted plan.
    """
    stop = requested_stop(observation.job["spec"])
    if observation.folder.unreadable:
        return without_run_folder(observation, plan, attempts, observation.folder.unreadable, refused)
    attempts = tuple(
        replace(
            attempt,
            over=attempt.trainer_ended and seconds_beside_others(attempt, observation.now) == 0,
        )
        for attempt in attempts
    )
    stages = derive_stages(observation, plan, attempts, stop=stop)
    step = _next(observation, stages, refused, stop)
    ended = tuple((attempt.key, result.record) for attempt, result in stages.classified if result.record)
    action = replace(step.action, records=(*ended, *step.action.records))
    return replace(step, action=action, obsolete=_outdated_preflights(stages))


def _next(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, refused: Refused | None, stop: Failure | None
) -> NextStep:
    """Returns the next step; the first case that applies decides. ``stop``: the stop that the job's user requests.

    It comes before deadline and budget: a suspended or cancelled job does not fail for them.
    """
    exceeded = budget_exceeded(stages)
    if stages.live:
        return _of_live(observation, stages, stages.live, refused, exceeded)
    if stages.leftover:
        return live.stop_over(observation, stages, refused, stop)
    if stages.succeeded:
        return _end(stages, JobPhase.SUCCEEDED)
    if stages.failed:
        return _end(stages, JobPhase.FAILED, _final(stages))
    if broken := judge_findings(stages.plan, stages.findings):
        return _end(stages, JobPhase.FAILED, _not_allowed(broken))
    if stages.plan.plan_only and stages[Stage.PREFLIGHT].done:
        return _end(stages, JobPhase.PLANNED)
    if stop and stop.reason == CANCELLED:
        return _end(stages, JobPhase.FAILED, cancelled(stages))
    if stop:
        return _wait(stages, JobState(phase=JobPhase.SUSPENDED, refused=refused))
    if refused:
        return _wait(stages, JobState(phase=JobPhase.INVALID, refused=refused))
    return _next_attempt(observation, stages, exceeded)


def _next_attempt(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, exceeded: ForcedSuspension | None
) -> NextStep:
    """Creates the next attempt, unless a limit of the job forbids it or its time has not come."""
    left = deadlines.active_left(stages.plan.limits, stages.used)
    if left is not None and left <= 0:
        return _end(stages, JobPhase.FAILED, deadlines.active_exceeded(stages.plan.limits.active))
    if no_capacity := no_capacity_left(stages.plan, stages.current.stage, stages.fresh):
        return _end(stages, JobPhase.FAILED, no_capacity)
    if exceeded and exceeded.fails:
        return _end(stages, JobPhase.FAILED, exceeded.failure)
    if exceeded:
        return _wait(stages, JobState(phase=JobPhase.SUSPENDED, over=exceeded))
    if month := monthly_stop(stages):
        return _wait(stages, waits_for_budget(month), seconds_of_wait(observation, month))
    if unknown := _progress_still_unknown(observation, stages):
        return _wait(stages, JobState(phase=JobPhase.SUSPENDED, over=halted(unknown)), SAFETY_SECONDS)
    if observation.paused:
        return _wait(stages, paused())
    due = stages.current.retry_at
    if due is not None and due > observation.now:
        state = JobState(phase=JobPhase.ACTIVE, recovering=recovering(stages), wait=retry_wait(stages))
        return _wait(stages, state, (due - observation.now).total_seconds())
    pause = pause_after_refusal(stages.plan, stages.current.stage, stages.fresh)
    if pause and pause[1] > observation.now:
        record, due = pause
        long = record.written is not None and (due - record.written).total_seconds() >= LONGEST_PAUSE
        state = JobState(phase=JobPhase.ACTIVE, wait=refusal_wait(record, due), stuck=long)
        return _wait(stages, state, (pause[1] - observation.now).total_seconds())
    return _create(observation, stages)


def _wait(stages: JobStages, state: JobState, requeue_after: float | None = None) -> NextStep:
    return NextStep(action=Wait(), state=state, stages=stages, requeue_after=requeue_after)


def _end(stages: JobStages, phase: JobPhase, failure: Failure | None = None) -> NextStep:
    # No event follows when the time has come to delete the children.
    cleanup = stages.plan.limits.child_ttl
    state = JobState(phase=phase, failure=failure)
    return NextStep(action=Finish(ends_now=True), state=state, stages=stages, requeue_after=cleanup)


def _of_live(
    observation: Observation,
    stages: JobStages,
    attempt: Attempt,
    refused: Refused | None,
    exceeded: ForcedSuspension | None,
) -> NextStep:
    """Decides about a job with a live attempt.

    Args:
        observation: of the job.
        stages: the state of its stages.
        attempt: the live one.
        refused: why the spec in its present form is refused.
        exceeded: why the job may spend no more.
    """
    unknown = observation.folder.progress_unknown if attempt.key.stage is Stage.TRAIN else None
    if stop := stop_of(planned_limits(observation, stages, exceeded, unknown), attempt):
        return live.carry_out(observation, stages, attempt, refused, stop)
    return live.watch(observation, stages, refused)


def _progress_still_unknown(observation: Observation, stages: JobStages) -> ReadFailure | None:
    """Returns why training is not started again after it was stopped because its progress could not be read: the
    progress of the next attempt could not be read either."""
    result = stages.current.last_result
    stopped = stages.current.stage is Stage.TRAIN and result and result.purpose == RUN_FOLDER_UNREADABLE
    unknown = observation.folder.progress_unknown
    return unknown if stopped and unknown and unknown.alone else None


def _not_allowed(broken: Refused) -> Failure:
    """The failure if preflight has counted more than the profile allows; no edit of the job can change that."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=broken.reason,
        message=broken.message,
        fix="Create a job within the limits under another name.",
    )


def _create(observation: Observation, stages: JobStages) -> NextStep:
    """Creates the next attempt of the current stage. Every stage before it has succeeded."""
    stage = stages.current.stage
    number = next_number(
        stages.current.attempts, stage, observation.folder.takeovers, observation.folder.foreign_attempts
    )
    if number > MAX_ATTEMPT:
        return _end(stages, JobPhase.FAILED, too_many_attempts(stage))
    try:
        jobset = render_jobset(stages.plan, stage, number, stages.findings)
    except Refused as error:
        return _wait(stages, JobState(phase=JobPhase.INVALID, refused=error))
    except ContractUnsupported as error:
        return _end(stages, JobPhase.FAILED, refused_by_operator(error))
    except CpuPoolTooSmall as error:
        return _end(stages, JobPhase.FAILED, too_small(error))
    # The status describes what the next observation will see: the attempt exists.
    created = JobSet.parse(jobset)
    after = replace(observation, jobsets=(*observation.jobsets, created))
    state = JobState(
        phase=JobPhase.ACTIVE,
        recovering=recovering(stages),
        wait=input_wait(stages),
        queue=queue_status(created, None, served=True, now=observation.now),
    )
    return NextStep(
        action=Create(jobset=jobset),
        state=state,
        stages=derive_stages(after, stages.plan, attempts_of(after), stop=None),
        requeue_after=NO_PODS_SECONDS,
    )


def _final(stages: JobStages) -> Failure:
    """Returns why the job failed, including the retry budget that it has used up, if any."""
    stage_state = stages.failed
    assert stage_state is not None, "called for a job that failed"
    assert stage_state.failure is not None, "a stage that failed has a failure"
    used_up = stage_state.exhausted
    if used_up is None or used_up.allowed == 0:
        return stage_state.failure
    return stage_state.failure.model_copy(
        update={
            "reason": used_up.reason.value,
            "message": f"{stage_state.failure.message} This was number {used_up.used}, and {used_up.field} is "
            f"{used_up.allowed}.",
        }
    )


def _outdated_preflights(stages: JobStages) -> tuple[Deletion, ...]:
    """JobSets of preflights that did not find their input. The newest one stays, so that people can inspect it."""
    stage_state = stages[Stage.PREFLIGHT]
    return tuple(
        Deletion.of(attempt.jobset)
        for attempt in stage_state.attempts[:-1]
        if attempt.jobset is not None
        and not attempt.restarted
        and not attempt.live
        and not attempt.jobset.deleting
    )
