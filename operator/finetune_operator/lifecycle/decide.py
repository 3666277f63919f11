"""One decision: observation → attempts and their results → stages → one action → one status. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.api.conditions import is_true
from finetune_operator.lifecycle import retry
from finetune_operator.lifecycle.accounting.recorded import with_records
from finetune_operator.lifecycle.accounting.records import due_records
from finetune_operator.lifecycle.admission import admit_job, current_plan, stored_plan
from finetune_operator.lifecycle.attempts.attempt import attempts_of
from finetune_operator.lifecycle.attempts.damaged_records import without_damaged_records
from finetune_operator.lifecycle.cancellation import cancelled, ends_unstarted, is_cancelled, not_retried
from finetune_operator.lifecycle.changes import changes
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import (
    Admit,
    Create,
    Decision,
    Delete,
    Deletion,
    Finish,
    NextStep,
    Record,
    stop,
)
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.next_action import next_action
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.status.events import job_events
from finetune_operator.lifecycle.status.job_status import job_status
from finetune_operator.lifecycle.takeover import takeover_record
from finetune_operator.lifecycle.without_plan import without_plan
from finetune_operator.planning import Refused

type Object = Mapping[str, Any]

_FIRST = AttemptKey(Stage.PREFLIGHT, 1)


def decide(observation: Observation) -> Decision:
    """Returns the decision that follows from one observation. Raises only what is a fault of the operator itself.

    A fault that the contents of the run folder cause must not prevent a job from being stopped: the decision is then
    that of a run folder that cannot be read, and contains the fault.
    """
    try:
        return _decide(observation)
    except Exception as error:
        if observation.folder == RunFolderView(unreadable=observation.folder.unreadable):
            raise
        message = (
            f"The contents of the run folder cannot be evaluated ({type(error).__name__}): a record is damaged, or "
            "the operator has a bug. The operator's log has the details."
        )
        why = ReadFailure(reason=Reason.RECORD_MALFORMED, message=message)
        decision = _decide(replace(observation, folder=RunFolderView(unreadable=why)))
        return replace(decision, fault=error)


def finished(job: Object) -> bool:
    """Whether the status says that the job has ended. This is final: a finished job never starts again by itself."""
    return is_true(job, "Finished")


def unprocessed(job: Object) -> bool:
    """Whether the operator has written no status of the job yet. Plan and first JobSet may already exist."""
    observed = (job.get("status") or {}).get("observedGeneration", -1)
    return bool(observed == -1)


def _being_deleted(job: Object) -> bool:
    return "deletionTimestamp" in job["metadata"]


def _decide(observation: Observation) -> Decision:
    observation, unwritten = without_damaged_records(observation)
    step = _with_unwritten(observation, _next_step(observation), unwritten)
    if observation.report_later and _is_unreported_start(observation, step):
        return Decision(
            action=step.action,
            status=observation.status,
            requeue_after=step.requeue_after,
            reported=False,
        )
    status = job_status(observation, step)
    ledger = due_records(observation, step, status)
    if observation.ledger is not None:
        status = with_records(status, ledger)
    return Decision(
        action=step.action,
        status=status,
        ledger=ledger,
        events=job_events(changes(observation.status, status)) + step.events,
        obsolete=step.obsolete,
        requeue_after=step.requeue_after,
        details=step.details,
    )


def _is_unreported_start(observation: Observation, step: NextStep) -> bool:
    """Whether the step creates a job's first JobSet, and its status replaces none, not even an error's. The next
    decision gives the same status and Events, with a later time."""
    first = isinstance(step.action, Create) and AttemptKey.of(step.action.jobset) == _FIRST
    return first and unprocessed(observation.job) and not observation.status.conditions


def _next_step(observation: Observation) -> NextStep:
    if _being_deleted(observation.job):
        # A finalizer of another client may keep the job, and its JobSets with it: nothing may run on without limits.
        return NextStep(action=stop(observation.jobsets))
    ended = finished(observation.job) and not retry.revived(observation)
    generation = retry.requested_generation(observation)
    if is_cancelled(observation.job):
        if ended:
            refusal = not_retried() if generation is not None else None
            return replace(_finished(observation), not_retried=refusal)
        step = (
            NextStep(action=Finish(), state=JobState(phase=JobPhase.FAILED, failure=cancelled(None)))
            if ends_unstarted(observation)
            else _by_plan(observation, None, ended=False)
        )
        # A retry that was requested before the end needs no answer.
        return replace(step, retry_generation=generation) if isinstance(step.action, Finish) else step
    if ended and generation is None:
        return _finished(observation)
    return _by_plan(observation, generation, ended=ended)


def _by_plan(  # noqa: PLR0911  one per case
    observation: Observation, generation: int | None, *, ended: bool
) -> NextStep:
    """Decides about a job that has not ended, or is retried, which depends on its plan.

    ``generation``: of the retry to act on; None: there is none.
    """
    attempts = attempts_of(observation)
    try:
        stored = stored_plan(observation)
        if stored is None:
            return _finished(observation) if ended else admit_job(observation)
        plan, refused = current_plan(observation, stored, attempts)
    except Refused as error:
        return _finished(observation) if ended else without_plan(observation, attempts, error)
    try:
        takeover = takeover_record(observation, plan, attempts)
    except Refused as error:
        if ended:
            return replace(_finished(observation), not_retried=error)
        return without_plan(observation, attempts, error)
    if takeover is not None:
        # From the next observation on, what was in the run folder before is not this job's.
        return NextStep(action=Admit(write=takeover), requeue_after=0.0)
    step = _finished(observation) if ended else next_action(observation, plan, attempts, refused)
    if generation is None or (not ended and (isinstance(step.action, Delete) or step.obsolete)):
        # What is to be stopped does not wait for the record of a retry, which the run folder may not take.
        return step
    try:
        stages = derive_stages(observation, plan, attempts, stop=None)
        record = retry.retry_record(observation, stages, generation)
    except Refused as error:
        return replace(step, not_retried=error)
    if record is None:
        return replace(step, retry_generation=generation)
    # The next observation acts on the record, whatever becomes of this operator.
    return NextStep(action=Admit(write=record), requeue_after=0.0)


def _finished(observation: Observation) -> NextStep:
    """A finished job: nothing of it runs, and its JobSets are deleted when their time has come."""
    left = _seconds_to_cleanup(observation)
    expired = left is not None and left <= 0
    obsolete = [each for each in observation.jobsets if expired and not each.deleting]
    leftover = stop(observation.jobsets)
    running = leftover.jobsets if isinstance(leftover, Delete) else ()
    return NextStep(
        action=leftover if running else Finish(),
        requeue_after=left if left is not None and left > 0 and observation.jobsets else None,
        obsolete=tuple(each for each in map(Deletion.of, obsolete) if each not in running),
    )


def _seconds_to_cleanup(observation: Observation) -> float | None:
    """Seconds until the JobSets of a finished job are deleted; None: they stay."""
    ttl = observation.job["spec"].get("childTTLSecondsAfterFinished")
    completed = observation.status.completion_time
    if ttl is None or completed is None:
        return None
    return float(ttl - (observation.now - completed).total_seconds())


def _with_unwritten(observation: Observation, step: NextStep, unwritten: tuple[Record, ...]) -> NextStep:
    """Adds records that the run folder lacks and can take now; the status then no longer holds them.

    Records are written before the status that no longer holds them.
    """
    folder_is_known = observation.stored is not None and not observation.folder.unreadable
    if not folder_is_known or step.pending is not None or _being_deleted(observation.job):
        return step
    if finished(observation.job):
        return step
    records = {**dict(unwritten), **dict(step.action.records)}
    return replace(step, action=replace(step.action, records=tuple(records.items())), pending=())
