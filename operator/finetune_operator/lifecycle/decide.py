"""One decision: observation → attempts and their results → stages → one action → one status. Pure."""

from dataclasses import replace

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.accounting.recorded import with_records
from finetune_operator.lifecycle.accounting.records import due_records
from finetune_operator.lifecycle.attempts.damaged_records import without_damaged_records
from finetune_operator.lifecycle.attempts.pending_records import Record
from finetune_operator.lifecycle.changes import changes
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Create, Decision, NextStep
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView
from finetune_operator.lifecycle.rules import next_step
from finetune_operator.lifecycle.status.events import job_events
from finetune_operator.lifecycle.status.job_status import job_status

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


def _decide(observation: Observation) -> Decision:
    observation, unwritten = without_damaged_records(observation)
    step = _with_unwritten(observation, next_step(observation), unwritten)
    if observation.report_later and _is_unreported_start(observation, step):
        return Decision(
            action=step.action,
            status=observation.status,
            requeue_after=step.requeue_after,
            reported=False,
        )
    status = job_status(observation, step)
    ledger = due_records(observation, step, status)
    if ledger is not None:
        status = with_records(status, ledger)
    return Decision(
        action=step.action,
        status=status,
        ledger=ledger or (),
        events=job_events(changes(observation.status, status)) + step.events,
        obsolete=step.obsolete,
        requeue_after=step.requeue_after,
        details=step.details,
    )


def _is_unreported_start(observation: Observation, step: NextStep) -> bool:
    """Whether the step creates a job's first JobSet, and its status replaces none, not even an error's. The next
    decision gives the same status and Events, with a later time."""
    first = isinstance(step.action, Create) and AttemptKey.of(step.action.jobset) == _FIRST
    return first and observation.job.unprocessed and not observation.status.conditions


def _with_unwritten(observation: Observation, step: NextStep, unwritten: tuple[Record, ...]) -> NextStep:
    """Adds records that the run folder lacks and can take now; the status then no longer holds them.

    Records are written before the status that no longer holds them.
    """
    folder_is_known = observation.stored is not None and not observation.folder.unreadable
    if not folder_is_known or step.pending is not None or observation.job.deleted or observation.job.finished:
        return step
    records = {**dict(unwritten), **dict(step.action.records)}
    return replace(step, action=replace(step.action, records=tuple(records.items())), pending=())
