"""The status of a profile: whether it says what it seems to say, and how many jobs use it. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from finetune_operator.api import ConditionType, Reason
from finetune_operator.lifecycle.conditions import FALSE, TRUE, Told, write
from finetune_operator.planning import Refused, check_profile_object, profile_remarks

type Object = Mapping[str, Any]

#: What the schema lets a condition say.
_MESSAGE = 1024


def profile_status(profile: Object, *, used_by: int | None, now: datetime) -> dict[str, Any]:
    """``status`` of the profile. Same profile and number, same status.

    Args:
        profile: the FineTuneProfile as it is stored.
        used_by: jobs that run under it and have not finished; None where not all jobs are known.
        now: when it was looked at.
    """
    generation = profile["metadata"].get("generation", 1)
    previous = (profile.get("status") or {}).get("conditions", ())
    told = _judged(profile)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": [*write(told, previous, generation=generation, now=now).values()],
    }
    if used_by is not None:
        status["usedBy"] = used_by
    return status


def _judged(profile: Object) -> dict[ConditionType, Told]:
    """``Valid`` for people, and its opposite for kstatus, which would call a profile with a mistake current."""
    try:
        check_profile_object(profile)
    except Refused as refused:
        return {
            ConditionType.VALID: (FALSE, refused.reason, _cut(refused.message)),
            ConditionType.STALLED: (TRUE, refused.reason, "No job can run under the profile: see Valid."),
        }
    remarks = " ".join(profile_remarks(profile["spec"]))
    fine = (
        _cut(f"The profile's paths, keys and shapes are known ones. {remarks}")
        if remarks
        else "Jobs can run under the profile: its paths, keys and shapes are known ones."
    )
    return {
        ConditionType.VALID: (TRUE, Reason.ACCEPTED, fine),
        ConditionType.STALLED: (FALSE, Reason.ACCEPTED, fine),
    }


def _cut(message: str) -> str:
    return message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"
