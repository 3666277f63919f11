"""An admitted job's next move: watch what runs, start the next attempt, or call it the end."""

from dataclasses import replace

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage
from finetune_operator.lifecycle import children, contract_mismatch, deadlines, live
from finetune_operator.lifecycle.attempts import Attempt, attempts_of, next_number
from finetune_operator.lifecycle.classify import RUN_FOLDER_UNREADABLE
from finetune_operator.lifecycle.conclude import SAFETY_LOOK, conclude, deletion
from finetune_operator.lifecycle.decision import Decision, Deletion
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.kueue import queue_status
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.preflight_memory import too_small
from finetune_operator.lifecycle.retry_budget import too_many_attempts
from finetune_operator.lifecycle.spending import BudgetExceeded, budget_exceeded
from finetune_operator.lifecycle.stages import JobStages, derive_stages
from finetune_operator.lifecycle.unreadable_folder import blind_left, decide_without_run_folder, halted
from finetune_operator.lifecycle.waiting import NO_PODS_SECONDS, input_wait, recovering, retry_wait
from finetune_operator.planning import Plan, Refused, judge_findings
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import CpuPoolTooSmall, render_jobset


def advance(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...], refused: Refused | None
) -> Decision:
    """``refused``: why the spec as it reads now cannot be; what runs goes on by the plan that was admitted."""
    suspend = bool(observation.job["spec"].get("suspend", False))
    if observation.folder.unreadable:
        return decide_without_run_folder(observation, plan, attempts, observation.folder.unreadable, refused)
    stages = derive_stages(observation, plan, attempts, suspend=suspend)
    records = tuple((attempt.key, verdict.record) for attempt, verdict in stages.judged if verdict.record)
    decision = _next(observation, stages, refused, suspend=suspend)
    return replace(
        decision,
        records=(*records, *decision.records),
        deletions=(*decision.deletions, *_outdated_checks(stages)),
    )


def _next(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, refused: Refused | None, *, suspend: bool
) -> Decision:
    left = deadlines.active_left(stages.plan.limits, stages.used)
    expired = left is not None and left <= 0
    over = budget_exceeded(stages)
    if stages.live:
        return _of_live(observation, stages, stages.live, refused, over, suspend=suspend, expired=expired)
    if stages.succeeded:
        return conclude(observation, JobState(course=JobPhase.SUCCEEDED), stages)
    if stages.failed:
        return conclude(observation, JobState(course=JobPhase.FAILED, failure=_final(stages)), stages)
    if broken := judge_findings(stages.plan, stages.findings):
        return conclude(observation, JobState(course=JobPhase.FAILED, failure=_not_allowed(broken)), stages)
    if stages.plan.plan_only and stages[Stage.PREFLIGHT].done:
        return conclude(observation, JobState(course=JobPhase.PLANNED), stages)
    if suspend:
        return conclude(observation, JobState(course=JobPhase.SUSPENDED, refused=refused), stages)
    if refused:
        return conclude(observation, JobState(course=JobPhase.INVALID, refused=refused), stages)
    none_left = deadlines.no_capacity_left(stages.plan, stages.current.stage, stages.fresh)
    failure = deadlines.active_exceeded(stages.plan.limits.active) if expired else none_left
    if failure or (over and over.fails):
        failure = failure or (over.failure if over else None)
        return conclude(observation, JobState(course=JobPhase.FAILED, failure=failure), stages)
    if over:
        return conclude(observation, JobState(course=JobPhase.SUSPENDED, over=over), stages)
    if unknown := _progress_still_unknown(observation, stages):
        return conclude(
            observation, JobState(course=JobPhase.SUSPENDED, over=halted(unknown)), stages, SAFETY_LOOK
        )
    due = stages.current.retry_at
    if due is not None and due > observation.now:
        left = (due - observation.now).total_seconds()
        return conclude(
            observation,
            JobState(course=JobPhase.ACTIVE, recovering=recovering(stages), wait=retry_wait(stages)),
            stages,
            left,
        )
    return _create(observation, stages)


def _of_live(
    observation: Observation,
    stages: JobStages,
    attempt: Attempt,
    refused: Refused | None,
    over: BudgetExceeded | None,
    *,
    suspend: bool,
    expired: bool,
) -> Decision:
    """``over``: why it may not spend more. ``expired``: the job has run for as long as it may."""
    if expired and not stages.succeeded and not suspend:
        return live.end(observation, stages, attempt, deadlines.active_exceeded(stages.plan.limits.active))
    if stages.failed or stages.succeeded:
        # A leftover: stopped before the job is called finished.
        return live.stop(observation, stages, attempt, refused)
    if suspend:
        return live.suspend(observation, stages, attempt, refused)
    if over and attempt.key.stage.on_tpu:
        return live.stop_spending(observation, stages, attempt, over)
    unknown = observation.folder.progress_unknown if attempt.key.stage is Stage.TRAIN else None
    left = blind_left(observation, stages.plan.limits, unknown)
    if unknown and left is not None and left <= 0:
        return live.stop_unseen(observation, stages, attempt, unknown)
    return live.watch(observation, stages, refused)


def _progress_still_unknown(observation: Observation, stages: JobStages) -> ReadFailure | None:
    """Why a training is not started again that was stopped because its progress could not be seen: the next one could
    not be seen either."""
    verdict = stages.current.last_verdict
    stopped = stages.current.stage is Stage.TRAIN and verdict and verdict.purpose == RUN_FOLDER_UNREADABLE
    unknown = observation.folder.progress_unknown
    return unknown if stopped and unknown and unknown.alone else None


def _not_allowed(broken: Refused) -> Failure:
    """What preflight counted is more than the profile allows; no edit of the job can change it."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=broken.reason,
        message=broken.message,
        fix="Create a job within the limits under another name.",
    )


def _create(observation: Observation, stages: JobStages) -> Decision:
    """The next attempt of the current stage. Every stage before it is green."""
    stage = stages.current.stage
    number = next_number(
        stages.current.attempts, stage, observation.folder.takeovers, observation.folder.strangers
    )
    if number > MAX_ATTEMPT:
        return conclude(
            observation, JobState(course=JobPhase.FAILED, failure=too_many_attempts(stage)), stages
        )
    try:
        jobset = render_jobset(stages.plan, stage, number, stages.findings)
    except Refused as error:
        return conclude(observation, JobState(course=JobPhase.INVALID, refused=error), stages)
    except ContractUnsupported as error:
        failure = contract_mismatch.refused_by_operator(error)
        return conclude(observation, JobState(course=JobPhase.FAILED, failure=failure), stages)
    except CpuPoolTooSmall as error:
        return conclude(observation, JobState(course=JobPhase.FAILED, failure=too_small(error)), stages)
    # What the status tells of this look is what the next look will see: the attempt exists.
    created = derive_stages(
        replace(observation, jobsets=(*observation.jobsets, jobset)),
        stages.plan,
        attempts_of(replace(observation, jobsets=(*observation.jobsets, jobset))),
        suspend=False,
    )
    situation = JobState(
        course=JobPhase.ACTIVE,
        starting=True,
        recovering=recovering(stages),
        wait=input_wait(stages),
        queue=queue_status(jobset, None, served=True, now=observation.now),
    )
    decision = conclude(observation, situation, created, NO_PODS_SECONDS)
    return replace(decision, jobset=jobset)


def _final(stages: JobStages) -> Failure:
    """Why the job failed, with the budget that it used up where there was one."""
    view = stages.failed
    assert view is not None, "called for a job that failed"
    assert view.failure is not None, "a stage that failed has a failure"
    used_up = view.exhausted
    if used_up is None or used_up.allowed == 0:
        return view.failure
    return view.failure.model_copy(
        update={
            "reason": used_up.reason.value,
            "message": f"{view.failure.message} That was number {used_up.used}, and {used_up.field} is "
            f"{used_up.allowed}.",
        }
    )


def _outdated_checks(stages: JobStages) -> tuple[Deletion, ...]:
    """JobSets of preflights that looked in vain; the newest one stays for people to look at."""
    view = stages[Stage.PREFLIGHT]
    return tuple(
        deletion(attempt.jobset)
        for attempt in view.attempts[:-1]
        if attempt.jobset is not None
        and not attempt.restarted
        and not attempt.live
        and not children.deleting(attempt.jobset)
    )
