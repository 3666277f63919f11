"""The writes of a decision with any action: the fields that tests compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_operator.lifecycle.attempts.pending_records import Record
from finetune_operator.lifecycle.decision import Admit, Create, Decision, Delete, Deletion
from finetune_operator.lifecycle.observation import RetryRecord, TakeoverRecord

type Object = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Writes:
    retry: RetryRecord | None
    takeover: TakeoverRecord | None
    plan: Object | None
    jobset: Object | None
    deletions: tuple[Deletion, ...]
    """Those of the action, and of obsolete JobSets."""
    records: tuple[Record, ...]
    status_first: bool


def writes(decision: Decision) -> Writes:
    action = decision.action
    stored = action.write if isinstance(action, Admit) else None
    return Writes(
        retry=stored if isinstance(stored, RetryRecord) else None,
        takeover=stored if isinstance(stored, TakeoverRecord) else None,
        plan=stored if isinstance(stored, Mapping) else None,
        jobset=action.jobset if isinstance(action, Create) else None,
        deletions=(*(action.jobsets if isinstance(action, Delete) else ()), *decision.obsolete),
        records=action.records,
        status_first=isinstance(action, Delete) and action.status_first,
    )
