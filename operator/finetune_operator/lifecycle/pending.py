"""Records of ends that the run folder does not hold yet: ``status.pending``.

An attempt that the operator stops gets a record of why (``failure.json``), written before the stop, so that whatever
the trainer says last, the attempt ended of that. While the store cannot be read or written, suspension, deadlines and
budgets act all the same. The record then waits in the job's status, which outlives the operator. This is the one place
besides the hours in ``status.cost`` where the status is an input.

Why no crash loses or invents a record:

- The status with the record is written before the JobSet is deleted. A crash before that write has changed nothing.
- After it and before the deletion, the JobSet is seen alive and not being deleted: the record speaks of a stop that has
  not happened, so it is dropped, and decided again if there still is a reason to stop.
- After the deletion the JobSet is seen being deleted, or is gone: the record holds.
- When the folder can be read again, the record counts as if it lay there. It is written there before the status without
  it is: a crash in between writes the same record once more. One that the folder holds already is not written again.
- A status that was wiped loses the record. The attempt is then judged by what is left of it: at worst a deletion on
  purpose is charged as a fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from finetune_contract import Failure, Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.observation import AttemptFiles, AttemptKey, Observation, since
from finetune_operator.rendering import attempt_of

type Object = Mapping[str, Any]
type Record = tuple[AttemptKey, Failure]

#: Of ``status.pending``; the newest are kept. One look stops one attempt.
MOST = 16
#: Characters of one entry.
_LONGEST = 8192


def pending_records(status: Object) -> tuple[Record, ...]:
    """What waits to be written, oldest first. An entry that cannot be understood is none."""
    found: dict[AttemptKey, Failure] = {}
    for each in status.get("pending", ()):
        try:
            key = AttemptKey(Stage(each["stage"]), int(each["number"]), int(each.get("restart", 0)))
            found[key] = Failure.model_validate_json(each["record"])
        except (KeyError, ValueError, ValidationError):
            continue
    return tuple(found.items())


def with_pending(status: Object, records: Iterable[Record]) -> Object:
    """``status`` where exactly these records wait; of two for one attempt the last."""
    told = [
        {
            "stage": str(key.stage),
            "number": key.number,
            **({"restart": key.restart} if key.restart else {}),
            "reason": record.reason,
            "record": _in_brief(record),
        }
        for key, record in dict(records).items()
    ]
    without = {name: value for name, value in status.items() if name != "pending"}
    return {**without, "pending": told[-MOST:]} if told else without


def standing(observation: Observation) -> tuple[Record, ...]:
    """Those of ``status.pending`` whose attempt is being deleted or gone, as far as the cluster tells."""
    going_on = {
        found[:2]
        for jobset in observation.jobsets
        if not children.deleting(jobset)
        and not children.jobset_ended(jobset)
        and (found := attempt_of(jobset))
    }
    return tuple(
        (key, record)
        for key, record in pending_records(observation.job.get("status") or {})
        if (key.stage, key.number) not in going_on
    )


def as_if_written(observation: Observation) -> tuple[Observation, tuple[Record, ...]]:
    """The look as it is when all that waits lies in the run folder, and what has to be written for that."""
    held = standing(observation)
    if observation.folder.unreadable or not held:
        return observation, ()
    attempts = dict(observation.folder.attempts)
    missing: list[Record] = []
    for key, record in held:
        if not since(observation.folder.takeovers, key):
            # The folder is another job's by now.
            continue
        files = attempts.get(key, AttemptFiles())
        if files.failure != record:
            missing.append((key, record))
            attempts[key] = replace(files, failure=record)
    return replace(observation, folder=replace(observation.folder, attempts=attempts)), tuple(missing)


def _in_brief(record: Failure) -> str:
    """As JSON, without what the status has no room for."""
    brief = record.model_copy(update={"evidence": ""}).to_json()
    if len(brief) <= _LONGEST:
        return brief
    cut = {"message": record.message[:128], "where": "", "saw": record.saw[:128], "expected": "", "fix": ""}
    return record.model_copy(update={"evidence": "", **cut}).to_json()


def newest_reason(records: Sequence[Record]) -> str | None:
    """Why the last of these attempts was stopped."""
    return records[-1][1].reason if records else None
