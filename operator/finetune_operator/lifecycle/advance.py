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
from finetune_operator.rendering import TPU_STAGES, CpuPoolTooSmall, render_jobset


def advance(
    observed: Observation, plan: Plan, attempts: tuple[Attempt, ...], refused: Refused | None
) -> Decision:
    """``refused``: why the spec as it reads now cannot be; what runs goes on by the plan that was admitted."""
    suspend = bool(observed.job["spec"].get("suspend", False))
    if observed.folder.unreadable:
        return decide_without_run_folder(observed, plan, attempts, observed.folder.unreadable, refused)
    look = derive_stages(observed, plan, attempts, suspend=suspend)
    records = tuple((attempt.key, verdict.record) for attempt, verdict in look.judged if verdict.record)
    decision = _next(observed, look, refused, suspend=suspend)
    return replace(
        decision,
        records=(*records, *decision.records),
        deletions=(*decision.deletions, *_outdated_checks(look)),
    )


def _next(  # noqa: PLR0911  one per case
    observed: Observation, look: JobStages, refused: Refused | None, *, suspend: bool
) -> Decision:
    left = deadlines.active_left(look.plan.limits, look.used)
    expired = left is not None and left <= 0
    over = budget_exceeded(look)
    if look.live:
        return _of_live(observed, look, look.live, refused, over, suspend=suspend, expired=expired)
    if look.succeeded:
        return conclude(observed, JobState(course=JobPhase.SUCCEEDED), look)
    if look.failed:
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=_final(look)), look)
    if broken := judge_findings(look.plan, look.findings):
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=_not_allowed(broken)), look)
    if look.plan.plan_only and look[Stage.PREFLIGHT].done:
        return conclude(observed, JobState(course=JobPhase.PLANNED), look)
    if suspend:
        return conclude(observed, JobState(course=JobPhase.SUSPENDED, refused=refused), look)
    if refused:
        return conclude(observed, JobState(course=JobPhase.INVALID, refused=refused), look)
    none_left = deadlines.no_capacity_left(look.plan, look.current.stage, look.fresh)
    failure = deadlines.active_exceeded(look.plan.limits.active) if expired else none_left
    if failure or (over and over.fails):
        failure = failure or (over.failure if over else None)
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=failure), look)
    if over:
        return conclude(observed, JobState(course=JobPhase.SUSPENDED, over=over), look)
    if unknown := _progress_still_unknown(observed, look):
        return conclude(
            observed, JobState(course=JobPhase.SUSPENDED, over=halted(unknown)), look, SAFETY_LOOK
        )
    due = look.current.retry_at
    if due is not None and due > observed.now:
        left = (due - observed.now).total_seconds()
        return conclude(
            observed,
            JobState(course=JobPhase.ACTIVE, recovering=recovering(look), wait=retry_wait(look)),
            look,
            left,
        )
    return _create(observed, look)


def _of_live(
    observed: Observation,
    look: JobStages,
    attempt: Attempt,
    refused: Refused | None,
    over: BudgetExceeded | None,
    *,
    suspend: bool,
    expired: bool,
) -> Decision:
    """``over``: why it may not spend more. ``expired``: the job has run for as long as it may."""
    if expired and not look.succeeded and not suspend:
        return live.end(observed, look, attempt, deadlines.active_exceeded(look.plan.limits.active))
    if look.failed or look.succeeded:
        # A leftover: stopped before the job is called finished.
        return live.stop(observed, look, attempt, refused)
    if suspend:
        return live.suspend(observed, look, attempt, refused)
    if over and attempt.key.stage in TPU_STAGES:
        return live.stop_spending(observed, look, attempt, over)
    unknown = observed.folder.progress_unknown if attempt.key.stage is Stage.TRAIN else None
    left = blind_left(observed, look.plan.limits, unknown)
    if unknown and left is not None and left <= 0:
        return live.stop_unseen(observed, look, attempt, unknown)
    return live.watch(observed, look, refused)


def _progress_still_unknown(observed: Observation, look: JobStages) -> ReadFailure | None:
    """Why a training is not started again that was stopped because its progress could not be seen: the next one could
    not be seen either."""
    verdict = look.current.last_verdict
    stopped = look.current.stage is Stage.TRAIN and verdict and verdict.purpose == RUN_FOLDER_UNREADABLE
    unknown = observed.folder.progress_unknown
    return unknown if stopped and unknown and unknown.alone else None


def _not_allowed(broken: Refused) -> Failure:
    """What preflight counted is more than the profile allows; no edit of the job can change it."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=broken.reason,
        message=broken.message,
        fix="Create a job within the limits under another name.",
    )


def _create(observed: Observation, look: JobStages) -> Decision:
    """The next attempt of the current stage. Every stage before it is green."""
    stage = look.current.stage
    number = next_number(look.current.attempts, stage, observed.folder.takeovers, observed.folder.strangers)
    if number > MAX_ATTEMPT:
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=too_many_attempts(stage)), look)
    try:
        jobset = render_jobset(look.plan, stage, number, look.findings)
    except Refused as error:
        return conclude(observed, JobState(course=JobPhase.INVALID, refused=error), look)
    except ContractUnsupported as error:
        failure = contract_mismatch.refused_by_operator(error)
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=failure), look)
    except CpuPoolTooSmall as error:
        return conclude(observed, JobState(course=JobPhase.FAILED, failure=too_small(error)), look)
    # What the status tells of this look is what the next look will see: the attempt exists.
    created = derive_stages(
        replace(observed, jobsets=(*observed.jobsets, jobset)),
        look.plan,
        attempts_of(replace(observed, jobsets=(*observed.jobsets, jobset))),
        suspend=False,
    )
    situation = JobState(
        course=JobPhase.ACTIVE,
        starting=True,
        recovering=recovering(look),
        wait=input_wait(look),
        queue=queue_status(jobset, None, served=True, now=observed.now),
    )
    decision = conclude(observed, situation, created, NO_PODS_SECONDS)
    return replace(decision, jobset=jobset)


def _final(look: JobStages) -> Failure:
    """Why the job failed, with the budget that it used up where there was one."""
    view = look.failed
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


def _outdated_checks(look: JobStages) -> tuple[Deletion, ...]:
    """JobSets of preflights that looked in vain; the newest one stays for people to look at."""
    view = look[Stage.PREFLIGHT]
    return tuple(
        deletion(attempt.jobset)
        for attempt in view.attempts[:-1]
        if attempt.jobset is not None
        and not attempt.restarted
        and not attempt.live
        and not children.deleting(attempt.jobset)
    )
