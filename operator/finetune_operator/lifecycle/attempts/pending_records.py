"""Failure records that the run folder does not contain yet: ``status.pending``.

Before the operator stops an attempt, it writes a record with the reason (``failure.json``), which takes precedence over
later records of the trainer. Suspension, deadlines and budgets must also work while the store cannot be read or
written. The record then waits in the job's status, which outlives the operator. Besides the usage in the status, this
is the only case in which the status is an input.

No crash loses or invents a record:

- The status with the record is written before the JobSet is deleted. A crash before that write has changed nothing.
- After a crash between that write and the deletion, the JobSet is alive and not being deleted: the record describes a
  stop that has not happened, so it is dropped, and decided again if there is still a reason to stop.
- After the deletion, the JobSet is being deleted or is gone: the record is confirmed.
- When the folder can be read again, the record counts as if the folder contained it. It is written to the folder before
  the status without it: a crash in between writes the same record once more. An existing record is not written again.
- If the status is lost, the record is lost. The attempt is then classified by the remaining objects: at worst an
  intentional deletion is charged as a fault.
"""

from collections.abc import Iterable
from dataclasses import replace

from pydantic import ValidationError

from finetune_contract import Failure
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.status import PendingRecord
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import AttemptFiles, Observation, since

type Record = tuple[AttemptKey, Failure]
"""A failure record (``failure.json``) of an attempt whose trainer could not write one."""

#: Maximum number of entries of ``status.pending``; the newest are kept. One reconcile stops one attempt.
MOST = 16
#: Maximum number of characters of one record.
_LONGEST = 8192


def pending_records(status: FineTuneJobStatus) -> tuple[Record, ...]:
    """Returns the records that wait to be written, oldest first. An entry with an invalid record is ignored."""
    found: dict[AttemptKey, Failure] = {}
    for each in status.pending or ():
        try:
            failure = Failure.model_validate_json(each.record)
        except ValidationError:
            continue
        found[AttemptKey(each.stage, each.number, each.restart or 0)] = failure
    return tuple(found.items())


def with_pending(status: FineTuneJobStatus, records: Iterable[Record]) -> FineTuneJobStatus:
    """Returns ``status`` with exactly these pending records; if there are two for one attempt, with the last."""
    pending = tuple(
        PendingRecord.model_construct(
            stage=key.stage,
            number=key.number,
            restart=key.restart or None,
            reason=record.reason,
            record=_in_brief(record),
        )
        for key, record in dict(records).items()
    )
    return status.model_copy(update={"pending": pending[-MOST:] or None})


def confirmed_records(observation: Observation) -> tuple[Record, ...]:
    """Returns the pending records whose JobSet is being deleted, has ended or is gone."""
    live = {
        jobset.key.jobset
        for jobset in observation.jobsets
        if jobset.key and not jobset.deleting and not jobset.ended
    }
    return tuple(
        (key, record) for key, record in pending_records(observation.status) if key.jobset not in live
    )


def as_if_written(observation: Observation) -> tuple[Observation, tuple[Record, ...]]:
    """Returns the observation as if the run folder contained all confirmed records, and the records that it lacks."""
    held = confirmed_records(observation)
    if observation.folder.unreadable or not held:
        return observation, ()
    attempts = dict(observation.folder.attempts)
    missing: list[Record] = []
    for key, record in held:
        if not since(observation.folder.takeovers, key):
            # Another job has taken over the folder since.
            continue
        files = attempts.get(key, AttemptFiles())
        if files.failure != record:
            missing.append((key, record))
            attempts[key] = replace(files, failure=record)
    return replace(observation, folder=replace(observation.folder, attempts=attempts)), tuple(missing)


def _in_brief(record: Failure) -> str:
    """Returns the record as JSON, without the evidence; with shorter texts if it is still too long."""
    brief = record.model_copy(update={"evidence": ""}).to_json()
    if len(brief) <= _LONGEST:
        return brief
    cut = {
        "message": record.message[:128],
        "where": "",
        "actual": record.actual[:128],
        "expected": "",
        "fix": "",
    }
    return record.model_copy(update={"evidence": "", **cut}).to_json()
