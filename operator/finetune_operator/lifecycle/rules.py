"""The rules that decide what is done about a job: one ordered list. The first that applies decides.

A plan or a run folder that is unknown is a value of :class:`.facts.Facts`. What is unknown starts nothing, and ends
nothing as succeeded or failed; what must stop, stops (:mod:`.stops`).
"""

from dataclasses import replace

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage
from finetune_operator.api import ConditionType, Reason, WaitingReason
from finetune_operator.lifecycle import live_attempt, retry
from finetune_operator.lifecycle.attempts import deadlines
from finetune_operator.lifecycle.attempts.attempt import attempts_of, next_number
from finetune_operator.lifecycle.attempts.capacity import LONGEST_PAUSE, no_capacity_left, pause_after_refusal
from finetune_operator.lifecycle.attempts.pending_records import confirmed_records
from finetune_operator.lifecycle.attempts.pod_failures import refused_by_operator
from finetune_operator.lifecycle.attempts.stop_records import RUN_FOLDER_UNREADABLE
from finetune_operator.lifecycle.cancellation import (
    cancelled,
    ends_unstarted,
    not_ended,
    not_retried,
)
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.kueue import queue_status
from finetune_operator.lifecycle.decision import (
    SAFETY_SECONDS,
    Admit,
    Create,
    Delete,
    Deletion,
    Finish,
    NextStep,
    Wait,
    stop,
)
from finetune_operator.lifecycle.facts import Facts
from finetune_operator.lifecycle.job_state import PAUSED, JobPhase, JobState, waits
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.stages.findings import too_small
from finetune_operator.lifecycle.stages.job_stages import StageState
from finetune_operator.lifecycle.stages.retry_budget import too_many_attempts
from finetune_operator.lifecycle.stages.spending import (
    ForcedSuspension,
    monthly_stop,
    seconds_of_wait,
)
from finetune_operator.lifecycle.stops import halted, stop_of
from finetune_operator.lifecycle.waiting import (
    NO_PODS_SECONDS,
    input_wait,
    recovering,
    refusal_wait,
    retry_wait,
)
from finetune_operator.planning import Refused, judge_findings
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import CpuPoolTooSmall, render_jobset


def next_step(observation: Observation) -> NextStep:
    """Returns the step of the first rule that applies, or the record of a requested retry."""
    facts = Facts(observation=observation)
    step = _of_job(facts) or _of_attempt(facts) or _of_stages(facts) or _next_attempt(facts)
    return _with_retry(facts, step if step.stages is None else _with_ends(facts, step))


def _of_job(facts: Facts) -> NextStep | None:
    """The rules for a job of which no stage is decided about."""
    observation, job = facts.observation, facts.observation.job
    if facts.deleted:
        # A finalizer of another client may keep the job, and its JobSets with it: nothing may run on without limits.
        return NextStep(action=stop(observation.jobsets))
    if facts.ended and (job.control.cancel or retry.requested_generation(observation) is None):
        return _ended(observation)
    if job.control.cancel and ends_unstarted(observation):
        return NextStep(action=Finish(), state=JobState(phase=JobPhase.FAILED, failure=cancelled(None)))
    if facts.stores:
        return facts.stores
    return _ended(observation) if facts.ended else None


def _of_attempt(facts: Facts) -> NextStep | None:
    """The rules for what runs, and for a job without a plan, of which nothing starts."""
    live = facts.live
    if facts.refused and not facts.plan and facts.refused.reason is Reason.RUN_FOLDER_TAKEN:
        # Of two jobs in one run folder, the one that has lost it stops writing, even records.
        return facts.step(stop(facts.observation.jobsets), facts.state())
    if live and (why := stop_of(facts.limits, live)):
        return live_attempt.carry_out(facts, live, why)
    if facts.stages is None:
        return facts.step(Wait(), facts.state())
    if live and facts.unknown:
        return live_attempt.watch_unseen(facts, live)
    if live:
        return live_attempt.watch(facts, live)
    return live_attempt.stop_over(facts, facts.stages.leftover) if facts.stages.leftover else None


def _of_stages(facts: Facts) -> NextStep | None:  # noqa: PLR0911  one per rule
    """The rules for results, which come before stops, and for the stops that the job's user requests, which come before
    deadline and budget: a suspended or cancelled job does not fail for them."""
    stages = facts.planned
    if stages.succeeded:
        return _end(facts, JobPhase.SUCCEEDED)
    if stages.failed:
        return _end(facts, JobPhase.FAILED, _final(stages.failed))
    if broken := judge_findings(stages.plan, stages.findings):
        return _end(facts, JobPhase.FAILED, _not_allowed(broken))
    if stages.plan.plan_only and stages[Stage.PREFLIGHT].done:
        return _end(facts, JobPhase.PLANNED)
    if facts.observation.job.control.cancel:
        if facts.unknown:
            return facts.step(Wait(), JobState(phase=JobPhase.SUSPENDED, over=not_ended()))
        return _end(facts, JobPhase.FAILED, cancelled(stages))
    return facts.step(Wait(), JobState(phase=JobPhase.SUSPENDED)) if facts.requested else None


def _next_attempt(facts: Facts) -> NextStep:  # noqa: PLR0911  one per rule
    """The rules for the next attempt: it starts if no limit forbids it and its time has come."""
    observation, stages = facts.observation, facts.planned
    exceeded, left = facts.limits.exceeded, facts.limits.active_left
    if facts.unknown:
        return _still_held(facts, exceeded)
    if facts.refused:
        return facts.step(Wait(), JobState(phase=JobPhase.INVALID))
    if left is not None and left <= 0:
        return _end(facts, JobPhase.FAILED, deadlines.active_exceeded(facts.limits.active))
    if no_capacity := no_capacity_left(stages.plan, stages.current.stage, stages.fresh):
        return _end(facts, JobPhase.FAILED, no_capacity)
    if exceeded and exceeded.fails:
        return _end(facts, JobPhase.FAILED, exceeded.failure)
    if exceeded:
        return facts.step(Wait(), JobState(phase=JobPhase.SUSPENDED, over=exceeded))
    if month := monthly_stop(stages):
        return facts.step(
            Wait(), waits(WaitingReason.BUDGET, month.text), requeue_after=seconds_of_wait(observation, month)
        )
    last = stages.current.last_result if stages.current.stage is Stage.TRAIN else None
    if last and (blind := _still_blind(last.purpose, observation.folder.progress_unknown)):
        return facts.step(Wait(), blind, requeue_after=SAFETY_SECONDS)
    if observation.paused:
        return facts.step(Wait(), waits(WaitingReason.PAUSED, PAUSED))
    return _later(facts) or _create(facts)


def _later(facts: Facts) -> NextStep | None:
    """Waits for the time of the next attempt; None if it has come."""
    observation, stages = facts.observation, facts.planned
    due = stages.current.retry_at
    if due is not None and due > observation.now:
        state = JobState(phase=JobPhase.ACTIVE, recovering=recovering(stages), wait=retry_wait(stages))
        return facts.step(Wait(), state, requeue_after=(due - observation.now).total_seconds())
    pause = pause_after_refusal(stages.plan, stages.current.stage, stages.fresh)
    if pause and pause[1] > observation.now:
        record, due = pause
        long = record.written is not None and (due - record.written).total_seconds() >= LONGEST_PAUSE
        state = JobState(phase=JobPhase.ACTIVE, wait=refusal_wait(record, due), stuck=long)
        return facts.step(Wait(), state, requeue_after=(due - observation.now).total_seconds())
    return None


def _create(facts: Facts) -> NextStep:
    """Creates the next attempt of the current stage. Every stage before it has succeeded."""
    observation, stages = facts.observation, facts.planned
    stage, folder = stages.current.stage, observation.folder
    number = next_number(stages.current.attempts, stage, folder.takeovers, folder.foreign_attempts)
    if number > MAX_ATTEMPT:
        return _end(facts, JobPhase.FAILED, too_many_attempts(stage))
    try:
        jobset = render_jobset(stages.plan, stage, number, stages.findings)
    except Refused as error:
        return facts.step(Wait(), JobState(phase=JobPhase.INVALID, refused=error))
    except ContractUnsupported as error:
        return _end(facts, JobPhase.FAILED, refused_by_operator(error))
    except CpuPoolTooSmall as error:
        return _end(facts, JobPhase.FAILED, too_small(error))
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


def _end(facts: Facts, phase: JobPhase, failure: Failure | None = None) -> NextStep:
    # No event follows when the time has come to delete the children.
    return NextStep(
        action=Finish(ends_now=True),
        state=JobState(phase=phase, failure=failure),
        stages=facts.stages,
        requeue_after=facts.planned.plan.limits.child_ttl,
    )


def _ended(observation: Observation) -> NextStep:
    """Nothing of the job runs, and its JobSets are deleted when their time has come."""
    ttl = observation.job.control.child_ttl
    completed = observation.status.completion_time
    left = None
    if ttl is not None and completed is not None:
        left = ttl - (observation.now - completed).total_seconds()
    expired = left is not None and left <= 0
    obsolete = [each for each in observation.jobsets if expired and not each.deleting]
    leftover = stop(observation.jobsets)
    running = leftover.jobsets if isinstance(leftover, Delete) else ()
    return NextStep(
        action=leftover if running else Finish(),
        requeue_after=left if left is not None and left > 0 and observation.jobsets else None,
        obsolete=tuple(each for each in map(Deletion.of, obsolete) if each not in running),
    )


def _final(stage_state: StageState) -> Failure:
    """Returns why the stage failed, including the retry budget that the job has used up, if any."""
    failure, used_up = stage_state.failure, stage_state.exhausted
    assert failure is not None, "a stage that failed has a failure"
    if used_up is None or used_up.allowed == 0:
        return failure
    message = f"{failure.message} This was number {used_up.used}, and {used_up.field} is {used_up.allowed}."
    return failure.model_copy(update={"reason": used_up.reason.value, "message": message})


def _not_allowed(broken: Refused) -> Failure:
    """The failure if preflight has counted more than the profile allows; no edit of the job can change that."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=broken.reason,
        message=broken.message,
        fix="Create a job within the limits under another name.",
    )


def _still_held(facts: Facts, exceeded: ForcedSuspension | None) -> NextStep:
    """With an unknown run folder, nothing starts, and what holds the job by its status still does: an exhausted budget,
    or the newest stop whose record waits there."""
    before = facts.observation.status.condition(ConditionType.SUSPENDED)
    held = confirmed_records(facts.observation)
    reason = held[-1][1].reason if held else None
    suspended = Reason.BUDGET_EXHAUSTED in (reason, before.reason if before else None)
    state = _still_blind(reason, facts.observation.folder.unreadable)
    if state is None and exceeded and not exceeded.fails and suspended:
        state = JobState(phase=JobPhase.SUSPENDED, over=exceeded)
    return facts.step(Wait(), state or facts.state())


def _still_blind(stopped_for: str | None, unknown: ReadFailure | None) -> JobState | None:
    """Returns the state of a job that was stopped because its progress could not be read, and that of the next attempt
    could not be read either; None for any other."""
    if stopped_for == RUN_FOLDER_UNREADABLE and unknown and unknown.alone:
        return JobState(phase=JobPhase.SUSPENDED, over=halted(unknown))
    return None


def _with_ends(facts: Facts, step: NextStep) -> NextStep:
    """Adds the records of attempts that have ended, and deletes the JobSets of preflights that did not find their
    input. The newest one stays, so that people can inspect it."""
    stages = facts.planned
    ended = tuple((attempt.key, result.record) for attempt, result in stages.classified if result.record)
    outdated = tuple(
        Deletion.of(attempt.jobset)
        for attempt in stages[Stage.PREFLIGHT].attempts[:-1]
        if attempt.jobset is not None
        and not attempt.restarted
        and not attempt.live
        and not attempt.jobset.deleting
    )
    return replace(
        step, action=replace(step.action, records=(*ended, *step.action.records)), obsolete=outdated
    )


def _with_retry(facts: Facts, step: NextStep) -> NextStep:  # noqa: PLR0911  one per case
    """Records a requested retry instead: the next observation acts on the record, whatever becomes of this operator."""
    observation, generation = facts.observation, retry.requested_generation(facts.observation)
    if generation is None or facts.deleted:
        return step
    if observation.job.control.cancel:
        if facts.ended:
            return replace(step, not_retried=not_retried())
        # A retry that was requested before the end needs no answer.
        return replace(step, retry_generation=generation) if isinstance(step.action, Finish) else step
    if facts.plan is None or facts.stores:
        return replace(step, not_retried=facts.refused) if facts.ended else step
    if not facts.ended and (isinstance(step.action, Delete) or step.obsolete):
        # What is to be stopped does not wait for the record of a retry, which the run folder may not take.
        return step
    try:
        stages = derive_stages(observation, facts.plan, facts.attempts, stop=None)
        record = retry.retry_record(observation, stages, generation)
    except Refused as error:
        return replace(step, not_retried=error)
    if record is None:
        return replace(step, retry_generation=generation)
    return NextStep(action=Admit(write=record), requeue_after=0.0)
