"""One Kubernetes Event for each transition that a person may need to know."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from finetune_contract import FailureClass
from finetune_operator.api import Condition, ConditionStatus, ConditionType, FineTuneJobStatus
from finetune_operator.api.status_stages import AttemptRecord, AttemptsStatus
from finetune_operator.api.timestamps import stamp
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


def job_events(previous: FineTuneJobStatus, status: FineTuneJobStatus) -> tuple[JobEvent, ...]:
    """Returns the Events of what a new status changes."""
    return (
        *transitions(previous.conditions or (), status.conditions or ()),
        *attempts_ended(previous.attempts, status.attempts),
    )


def transitions(before: Sequence[Condition], after: Sequence[Condition]) -> tuple[JobEvent, ...]:
    """Returns an Event for each condition that has become one of the above, and for each new reason of the same
    False."""
    return tuple(_transitions(before, after))


def _transitions(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[JobEvent]:
    known = {each.type: each for each in before}
    for each in after:
        kind = _REPORTED.get((each.type, each.status))
        old = known.get(each.type)
        same = (
            old is not None
            and old.status == each.status
            and (each.status is ConditionStatus.TRUE or old.reason == each.reason)
        )
        if kind is not None and not same:
            yield JobEvent(
                type=kind,
                reason=each.reason,
                message=each.message,
                since=stamp(old.last_transition_time) if old else "",
            )


def attempts_ended(before: AttemptsStatus | None, after: AttemptsStatus | None) -> tuple[JobEvent, ...]:
    """Returns an Event for each unsuccessful attempt that is new in the history of attempts."""
    events = []
    for each, number in new_failures(before, after):
        text = f"{each.stage}, attempt {each.attempt}, ended: {each.reason} ({each.failure_class})."
        # A second Event with the same text needs another name.
        since = str(number) if number > 1 else ""
        events.append(JobEvent(type=EventType.WARNING, reason=each.reason, message=text, since=since))
    return tuple(events)


def new_failures(
    before: AttemptsStatus | None, after: AttemptsStatus | None
) -> Iterator[tuple[AttemptRecord, int]]:
    """Yields each unsuccessful attempt that is new in the history, and which of its ends of that kind it is."""
    # Kueue may evict an attempt more than once; it ends in any other way only once.
    known = Counter(_which_end(each) for each in _history(before))
    seen = Counter[tuple[str, int, bool]]()
    for each in _history(after):
        which = _which_end(each)
        seen[which] += 1
        if each.failure_class is not None and seen[which] > known[which]:
            yield each, seen[which]


def _history(attempts: AttemptsStatus | None) -> Sequence[AttemptRecord]:
    return (attempts.history if attempts else None) or ()


def _which_end(entry: AttemptRecord) -> tuple[str, int, bool]:
    return entry.stage, entry.attempt, entry.failure_class is FailureClass.QUOTA
