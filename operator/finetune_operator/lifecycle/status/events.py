"""One Kubernetes Event for each transition that a person may need to know."""

from collections.abc import Mapping

from finetune_operator.api import ConditionType
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.changes import AttemptEnd, Changes, ConditionChange
from finetune_operator.lifecycle.decision import EventType, JobEvent

#: The Event's type by condition and status. All other conditions appear in the status only.
_REPORTED: Mapping[tuple[str, str], EventType] = {
    (ConditionType.VALID, "False"): EventType.WARNING,
    (ConditionType.DATA_READY, "True"): EventType.NORMAL,
    (ConditionType.DATA_READY, "False"): EventType.WARNING,
    (ConditionType.MEMORY_FITS, "False"): EventType.WARNING,
    (ConditionType.EXPORT_PROVEN, "True"): EventType.NORMAL,
    (ConditionType.EXPORT_PROVEN, "False"): EventType.WARNING,
    (ConditionType.QUOTA_RESERVED, "False"): EventType.NORMAL,
    (ConditionType.SUSPENDED, "True"): EventType.NORMAL,
    (ConditionType.SUCCEEDED, "True"): EventType.NORMAL,
    (ConditionType.SUCCEEDED, "False"): EventType.WARNING,
}


def job_events(changes: Changes) -> tuple[JobEvent, ...]:
    """Returns an Event for each condition that has become one of the above, and for each unsuccessful attempt."""
    turned = filter(None, map(_turned, changes.conditions))
    return (*turned, *map(_ended, changes.attempts))


def _turned(change: ConditionChange) -> JobEvent | None:
    before, after = change.before, change.after
    kind = _REPORTED.get((after.type, after.status))
    if kind is None:
        return None
    since = stamp(before.last_transition_time) if before else ""
    return JobEvent(type=kind, reason=after.reason, message=after.message, since=since)


def _ended(end: AttemptEnd) -> JobEvent:
    record = end.record
    text = f"{record.stage}, attempt {record.attempt}, ended: {record.reason} ({end.failure_class})."
    # A second Event with the same text needs another name.
    since = str(end.number) if end.number > 1 else ""
    return JobEvent(type=EventType.WARNING, reason=record.reason, message=text, since=since)
