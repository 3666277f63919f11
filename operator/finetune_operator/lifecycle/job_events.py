"""One Kubernetes Event per transition that a person would want to be told of."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune_contract import FailureClass
from finetune_operator.api import ConditionType
from finetune_operator.lifecycle.decision import EventType, JobEvent

type Object = Mapping[str, Any]

#: Condition and status -> the Event's type. What is not here is told by the status alone.
_TOLD: Mapping[tuple[str, str], EventType] = {
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


def transitions(before: Sequence[Object], after: Sequence[Object]) -> tuple[JobEvent, ...]:
    """Conditions whose status moved to one that is told; a further reason of the same False is told too."""
    return tuple(_transitions(before, after))


def _transitions(before: Sequence[Object], after: Sequence[Object]) -> Iterator[JobEvent]:
    known = {each["type"]: each for each in before}
    for each in after:
        kind = _TOLD.get((each["type"], each["status"]))
        old = known.get(each["type"], {})
        same = old.get("status") == each["status"] and (
            each["status"] == "True" or old.get("reason") == each["reason"]
        )
        if kind is not None and not same:
            yield JobEvent(
                type=kind,
                reason=each["reason"],
                message=each["message"],
                since=old.get("lastTransitionTime", ""),
            )


def attempts_ended(before: Sequence[Object], after: Sequence[Object]) -> tuple[JobEvent, ...]:
    """Bad ends that the history of attempts tells for the first time (``status.attempts.history``)."""
    # Kueue may take an attempt's quota away more than once; every other end comes once.
    known = Counter(_which_end(each) for each in before)
    told = Counter[tuple[str, int, bool]]()
    notices = []
    for each in after:
        which = _which_end(each)
        told[which] += 1
        if "class" in each and told[which] > known[which]:
            text = f"{each['stage']}, attempt {each['attempt']}, ended: {each['reason']} ({each['class']})."
            # The same text for a second time is another Event.
            since = str(told[which]) if told[which] > 1 else ""
            notices.append(JobEvent(type=EventType.WARNING, reason=each["reason"], message=text, since=since))
    return tuple(notices)


def _which_end(entry: Object) -> tuple[str, int, bool]:
    return entry["stage"], entry["attempt"], entry.get("class") == FailureClass.QUOTA
