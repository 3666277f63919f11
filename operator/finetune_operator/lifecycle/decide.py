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


def decide(observation: Observation) -> Decision:
    """One decision from one look. It raises nothing but what is a fault of the operator itself.

    A fault over what the run folder holds must not keep a job from being stopped: the decision is then the one of a run
    folder that cannot be read, and names the fault.
    """
    try:
        return _decide_whole(observation)
    except Exception as error:
        if observation.folder == RunFolderView(unreadable=observation.folder.unreadable):
            raise
        message = (
            f"What the run folder holds cannot be judged ({type(error).__name__}): one of its records is damaged, or "
            "the operator has a fault. The operator's log has the details."
        )
        why = ReadFailure(reason=Reason.RECORD_MALFORMED, message=message)
        decision = _decide_whole(replace(observation, folder=RunFolderView(unreadable=why)))
        return replace(decision, fault=error)


def _decide_whole(observation: Observation) -> Decision:
    observation, unwritten = without_damaged_records(observation)
    decision = _decide(observation)
    if observation.snapshot is None or observation.folder.unreadable or children.deleting(observation.job):
        return decision
    if decision.status_before_deletions or finished(observation.job):
        # The folder is another job's, or it is not known which one it is; or there is nothing left to record.
        return decision
    # Records are written before the status that no longer holds them.
    records = {**dict(unwritten), **dict(decision.records)}
    return replace(decision, status=with_pending(decision.status, ()), records=tuple(records.items()))


def _decide(observation: Observation) -> Decision:  # noqa: PLR0911  one per case
    job = observation.job
    if children.deleting(job):
        return Decision(status=job.get("status") or {})
    ended = finished(job) and not retry.revived(observation)
    if ended and retry.requested_generation(observation) is None:
        return _keep(observation)
    attempts = attempts_of(observation)
    try:
        snapshot = stored_plan(observation)
        if snapshot is None:
            return _keep(observation) if ended else _admit(observation)
        plan, refused = _plan(observation, snapshot, attempts)
    except Refused as error:
        return _keep(observation) if ended else _within_limits(observation, error)
    try:
        takeover = takeover_record(observation, plan, attempts)
    except Refused as error:
        return _kept_from_retry(observation, error) if ended else _refuse(observation, error)
    if takeover is not None:
        # The note comes first: from the next look on, what was there before is not this job's.
        return Decision(status=job.get("status") or {}, takeover=takeover, requeue_after=0.0)
    generation = retry.requested_generation(observation)
    if not ended:
        decision = advance(observation, plan, attempts, refused)
        if generation is None or decision.deletions:
            # A note on a retry that cannot be written must not keep waiting what is to be stopped.
            return decision
    assert generation is not None, "a job that has ended is looked at no further unless it is to be retried"
    try:
        note = retry.retry_record(
            observation, derive_stages(observation, plan, attempts, suspend=False), generation
        )
    except Refused as error:
        return _not_retried(_keep(observation) if ended else decision, error)
    if note is not None:
        # The note comes first: the next look acts by it, whatever becomes of this operator.
        return Decision(status=job.get("status") or {}, retry=note, requeue_after=0.0)
    decision = _keep(observation) if ended else decision
    return replace(decision, status={**decision.status, "retryGeneration": generation})


def finished(job: Object) -> bool:
    """Whether the status says that the job has ended. That is final: a finished job never starts again by itself."""
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def _keep(observation: Observation) -> Decision:
    """A finished job: its status speaks of the newest spec, nothing of it runs, and its children go when it is time."""
    status = observation.job["status"]
    generation = observation.job["metadata"].get("generation", 1)
    left = _children_left(observation)
    expired = left is not None and left <= 0
    return Decision(
        status={
            **status,
            "observedGeneration": generation,
            "conditions": [{**each, "observedGeneration": generation} for each in status["conditions"]],
        },
        deletions=tuple(
            deletion(each)
            for each in observation.jobsets
            if stoppable(each) or (expired and not children.deleting(each))
        ),
        requeue_after=left if left is not None and left > 0 and observation.jobsets else None,
    )


def _kept_from_retry(observation: Observation, refused: Refused) -> Decision:
    """An ended job that was asked to go on and cannot."""
    return _not_retried(_keep(observation), refused)


def _not_retried(decision: Decision, refused: Refused) -> Decision:
    return replace(decision, status={**decision.status, "summary": f"Not retried: {refused.message}"})


def _children_left(observation: Observation) -> float | None:
    """Seconds until JobSets and pods of a finished job are deleted; None: they stay."""
    ttl = observation.job["spec"].get("childTTLSecondsAfterFinished")
    completed = observation.job["status"].get("completionTime")
    if ttl is None or completed is None:
        return None
    return float(ttl - (observation.now - parse(completed)).total_seconds())


def _admit(observation: Observation) -> Decision:
    """The plan alone: nothing is started before the run folder that it names has been read.

    The plan may be that of a job that has run for days. Without it nothing of the job is started, and what runs is
    stopped where the user asks for that.
    """
    try:
        snapshot = plan_to_store(observation)
        plan = make_plan(_as_admitted(observation.job, snapshot), snapshot)
    except Refused as error:
        return _within_limits(observation, error)
    status = observation.job.get("status") or {}
    if "resolved" not in status:
        live = [attempt for attempt in attempts_of(observation) if attempt.live]
        stages = derive_stages(observation, plan, live, suspend=False)
        status = build_status(observation, JobState(course=JobPhase.ACTIVE, starting=True), stages)
    return Decision(
        status=status,
        snapshot=render_stored_plan(snapshot),
        requeue_after=0.0,
    )


def _within_limits(observation: Observation, refused: Refused) -> Decision:
    """A job without a plan that can be used. What runs of it stays within its deadline and its budgets."""
    decision = _refuse(observation, refused)
    stops = () if decision.deletions else stops_without_plan(observation, attempts_of(observation))
    if not stops:
        return decision
    ended = {(key.stage, key.number) for key, _ in stops}
    records = dict(stops) | dict(standing(observation))
    status = {**decision.status, "summary": stops[-1][1].message}
    return replace(
        decision,
        status=with_pending(status, records.items()),
        deletions=tuple(
            deletion(each)
            for each in observation.jobsets
            if stoppable(each) and (found := attempt_of(each)) and found[:2] in ended
        ),
        status_before_deletions=True,
    )


def _refuse(observation: Observation, refused: Refused) -> Decision:
    """Nothing can be planned. What runs is stopped only where the user asks for that; what the status knew stays."""
    situation = JobState(course=JobPhase.INVALID, refused=refused)
    if refused.reason in _MAY_COME:
        situation = replace(situation, wait=WaitCause(reason=WaitingReason.INPUT, message=refused.message))
    if refused.reason is Reason.SOURCE_JOB_RUNNING:
        # Nothing is wrong with the job: it has its turn when the other one is done.
        situation = replace(situation, course=JobPhase.ACTIVE, refused=None)
    decision = conclude(observation, situation, None, pace(observation.live_jobs, _PROFILE_LOOK))
    known = {
        name: value for name, value in (observation.job.get("status") or {}).items() if name != "waiting"
    }
    decision = replace(decision, status={**known, **decision.status})
    if refused.reason is Reason.RUN_FOLDER_TAKEN:
        # Of two jobs in one run folder the one that has lost it stops writing.
        stopped = tuple(deletion(each) for each in observation.jobsets if stoppable(each))
        return replace(decision, deletions=stopped)
    return stopped_by_user(observation, attempts_of(observation), decision)


def _plan(
    observation: Observation, snapshot: StoredPlan, attempts: tuple[Attempt, ...]
) -> tuple[Plan, Refused | None]:
    """The plan as the spec reads now; where that is refused, as it was admitted. Raises Refused.

    Where preflight had slices to choose from, what it has found decides which one; what it has compiled holds, too,
    where an edit has switched its check off since.
    """
    fresh = [each for each in attempts if since_retry(observation.folder.retry, each)]
    passed = deadlines.passed_capacities(fresh)
    plan, refused = _planned(observation.job, snapshot, passed, None)
    if plan.memory is not None and not plan.memory.candidates:
        return plan, refused
    found = preflight_found(observation, plan, attempts)
    if found is None or found.memory is None:
        return plan, refused
    return _planned(observation.job, snapshot, passed, found.memory)


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
