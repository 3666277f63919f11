"""The decision: what to create and delete, what to tell, when to look again. Pure."""

from dataclasses import replace

from finetune_contract import MemoryOutcome
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle import children, deadlines, retry
from finetune_operator.lifecycle.advance import advance
from finetune_operator.lifecycle.attempts import Attempt, attempts_of, since_retry
from finetune_operator.lifecycle.conclude import conclude, deletion, stoppable
from finetune_operator.lifecycle.damaged_records import without_damaged_records
from finetune_operator.lifecycle.decision import Decision, Object
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.limits_without_plan import stops_without_plan
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView
from finetune_operator.lifecycle.pending import standing, with_pending
from finetune_operator.lifecycle.stages import derive_stages, preflight_found
from finetune_operator.lifecycle.status import build_status, pace
from finetune_operator.lifecycle.stored_plan import plan_to_store, stored_plan
from finetune_operator.lifecycle.takeover import takeover_record
from finetune_operator.lifecycle.times import parse
from finetune_operator.lifecycle.unreadable_folder import stopped_by_user
from finetune_operator.planning import (
    Plan,
    Refused,
    StoredPlan,
    make_plan,
    render_stored_plan,
    replan,
)
from finetune_operator.planning.stored_plan import LIFECYCLE
from finetune_operator.rendering import attempt_of

#: What is missing, and may come without any change of the job.
_MAY_COME = (
    Reason.PROFILE_NOT_FOUND,
    Reason.NO_DEFAULT_PROFILE,
    Reason.CHAT_TEMPLATE_NOT_FOUND,
    Reason.SOURCE_JOB_NOT_FOUND,
    Reason.SOURCE_JOB_RUNNING,
    Reason.SOURCE_JOB_UNUSABLE,
    Reason.RUN_NOT_FOUND,
    Reason.RUN_FOLDER_IN_USE,
)
#: Seconds; nothing tells the job when a profile, a ConfigMap, a Secret or the model of another job comes.
_PROFILE_LOOK = 15.0


def decide(observed: Observation) -> Decision:
    """One decision from one look. It raises nothing but what is a fault of the operator itself.

    A fault over what the run folder holds must not keep a job from being stopped: the decision is then the one of a run
    folder that cannot be read, and names the fault.
    """
    try:
        return _decide_whole(observed)
    except Exception as error:
        if observed.folder == RunFolderView(unreadable=observed.folder.unreadable):
            raise
        message = (
            f"What the run folder holds cannot be judged ({type(error).__name__}): one of its records is damaged, or "
            "the operator has a fault. The operator's log has the details."
        )
        why = ReadFailure(reason=Reason.RECORD_MALFORMED, message=message)
        decision = _decide_whole(replace(observed, folder=RunFolderView(unreadable=why)))
        return replace(decision, fault=error)


def _decide_whole(observed: Observation) -> Decision:
    observed, unwritten = without_damaged_records(observed)
    decision = _decide(observed)
    if observed.snapshot is None or observed.folder.unreadable or children.deleting(observed.job):
        return decision
    if decision.status_before_deletions or finished(observed.job):
        # The folder is another job's, or it is not known which one it is; or there is nothing left to record.
        return decision
    # Records are written before the status that no longer holds them.
    records = {**dict(unwritten), **dict(decision.records)}
    return replace(decision, status=with_pending(decision.status, ()), records=tuple(records.items()))


def _decide(observed: Observation) -> Decision:  # noqa: PLR0911  one per case
    job = observed.job
    if children.deleting(job):
        return Decision(status=job.get("status") or {})
    ended = finished(job) and not retry.revived(observed)
    if ended and retry.requested_generation(observed) is None:
        return _keep(observed)
    attempts = attempts_of(observed)
    try:
        snapshot = stored_plan(observed)
        if snapshot is None:
            return _keep(observed) if ended else _admit(observed)
        plan, refused = _plan(observed, snapshot, attempts)
    except Refused as error:
        return _keep(observed) if ended else _within_limits(observed, error)
    try:
        takeover = takeover_record(observed, plan, attempts)
    except Refused as error:
        return _kept_from_retry(observed, error) if ended else _refuse(observed, error)
    if takeover is not None:
        # The note comes first: from the next look on, what was there before is not this job's.
        return Decision(status=job.get("status") or {}, takeover=takeover, requeue_after=0.0)
    generation = retry.requested_generation(observed)
    if not ended:
        decision = advance(observed, plan, attempts, refused)
        if generation is None or decision.deletions:
            # A note on a retry that cannot be written must not keep waiting what is to be stopped.
            return decision
    assert generation is not None, "a job that has ended is looked at no further unless it is to be retried"
    try:
        note = retry.retry_record(
            observed, derive_stages(observed, plan, attempts, suspend=False), generation
        )
    except Refused as error:
        return _not_retried(_keep(observed) if ended else decision, error)
    if note is not None:
        # The note comes first: the next look acts by it, whatever becomes of this operator.
        return Decision(status=job.get("status") or {}, retry=note, requeue_after=0.0)
    decision = _keep(observed) if ended else decision
    return replace(decision, status={**decision.status, "retryGeneration": generation})


def finished(job: Object) -> bool:
    """Whether the status says that the job has ended. That is final: a finished job never starts again by itself."""
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def _keep(observed: Observation) -> Decision:
    """A finished job: its status speaks of the newest spec, nothing of it runs, and its children go when it is time."""
    status = observed.job["status"]
    generation = observed.job["metadata"].get("generation", 1)
    left = _children_left(observed)
    expired = left is not None and left <= 0
    return Decision(
        status={
            **status,
            "observedGeneration": generation,
            "conditions": [{**each, "observedGeneration": generation} for each in status["conditions"]],
        },
        deletions=tuple(
            deletion(each)
            for each in observed.jobsets
            if stoppable(each) or (expired and not children.deleting(each))
        ),
        requeue_after=left if left is not None and left > 0 and observed.jobsets else None,
    )


def _kept_from_retry(observed: Observation, refused: Refused) -> Decision:
    """An ended job that was asked to go on and cannot."""
    return _not_retried(_keep(observed), refused)


def _not_retried(decision: Decision, refused: Refused) -> Decision:
    return replace(decision, status={**decision.status, "summary": f"Not retried: {refused.message}"})


def _children_left(observed: Observation) -> float | None:
    """Seconds until JobSets and pods of a finished job are deleted; None: they stay."""
    ttl = observed.job["spec"].get("childTTLSecondsAfterFinished")
    completed = observed.job["status"].get("completionTime")
    if ttl is None or completed is None:
        return None
    return float(ttl - (observed.now - parse(completed)).total_seconds())


def _admit(observed: Observation) -> Decision:
    """The plan alone: nothing is started before the run folder that it names has been read.

    The plan may be that of a job that has run for days. Without it nothing of the job is started, and what runs is
    stopped where the user asks for that.
    """
    try:
        snapshot = plan_to_store(observed)
        plan = make_plan(_as_admitted(observed.job, snapshot), snapshot)
    except Refused as error:
        return _within_limits(observed, error)
    status = observed.job.get("status") or {}
    if "resolved" not in status:
        live = [attempt for attempt in attempts_of(observed) if attempt.live]
        look = derive_stages(observed, plan, live, suspend=False)
        status = build_status(observed, JobState(course=JobPhase.ACTIVE, starting=True), look)
    return Decision(
        status=status,
        snapshot=render_stored_plan(snapshot),
        requeue_after=0.0,
    )


def _within_limits(observed: Observation, refused: Refused) -> Decision:
    """A job without a plan that can be used. What runs of it stays within its deadline and its budgets."""
    decision = _refuse(observed, refused)
    stops = () if decision.deletions else stops_without_plan(observed, attempts_of(observed))
    if not stops:
        return decision
    ended = {(key.stage, key.number) for key, _ in stops}
    records = dict(stops) | dict(standing(observed))
    status = {**decision.status, "summary": stops[-1][1].message}
    return replace(
        decision,
        status=with_pending(status, records.items()),
        deletions=tuple(
            deletion(each)
            for each in observed.jobsets
            if stoppable(each) and (found := attempt_of(each)) and found[:2] in ended
        ),
        status_before_deletions=True,
    )


def _refuse(observed: Observation, refused: Refused) -> Decision:
    """Nothing can be planned. What runs is stopped only where the user asks for that; what the status knew stays."""
    situation = JobState(course=JobPhase.INVALID, refused=refused)
    if refused.reason in _MAY_COME:
        situation = replace(situation, wait=WaitCause(reason=WaitingReason.INPUT, message=refused.message))
    if refused.reason is Reason.SOURCE_JOB_RUNNING:
        # Nothing is wrong with the job: it has its turn when the other one is done.
        situation = replace(situation, course=JobPhase.ACTIVE, refused=None)
    decision = conclude(observed, situation, None, pace(observed.live_jobs, _PROFILE_LOOK))
    known = {name: value for name, value in (observed.job.get("status") or {}).items() if name != "waiting"}
    decision = replace(decision, status={**known, **decision.status})
    if refused.reason is Reason.RUN_FOLDER_TAKEN:
        # Of two jobs in one run folder the one that has lost it stops writing.
        stopped = tuple(deletion(each) for each in observed.jobsets if stoppable(each))
        return replace(decision, deletions=stopped)
    return stopped_by_user(observed, attempts_of(observed), decision)


def _plan(
    observed: Observation, snapshot: StoredPlan, attempts: tuple[Attempt, ...]
) -> tuple[Plan, Refused | None]:
    """The plan as the spec reads now; where that is refused, as it was admitted. Raises Refused.

    Where preflight had slices to choose from, what it has found decides which one; what it has compiled holds, too,
    where an edit has switched its check off since.
    """
    fresh = [each for each in attempts if since_retry(observed.folder.retry, each)]
    passed = deadlines.passed_capacities(fresh)
    plan, refused = _planned(observed.job, snapshot, passed, None)
    if plan.memory is not None and not plan.memory.candidates:
        return plan, refused
    found = preflight_found(observed, plan, attempts)
    if found is None or found.memory is None:
        return plan, refused
    return _planned(observed.job, snapshot, passed, found.memory)


def _planned(
    job: Object, snapshot: StoredPlan, passed: frozenset[str], found: MemoryOutcome | None
) -> tuple[Plan, Refused | None]:
    try:
        return replan(job, snapshot, passed, found), None
    except Refused as refused:
        return make_plan(_as_admitted(job, snapshot), snapshot, passed, found), refused


def _as_admitted(job: Object, snapshot: StoredPlan) -> Object:
    """The job with the spec that was admitted, but for the fields that steer its life."""
    steering = {name: job["spec"][name] for name in LIFECYCLE if name in job["spec"]}
    return {**job, "spec": {**snapshot.spec, **steering}}
