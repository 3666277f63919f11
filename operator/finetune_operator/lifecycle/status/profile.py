"""The status of a profile: whether the profile is valid, and how many jobs use it. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from finetune_operator.api import Condition, ConditionType, FineTuneProfileStatus, Reason
from finetune_operator.api.conditions import ProfileConditionType
from finetune_operator.lifecycle.fitting import read_profile_status
from finetune_operator.lifecycle.status.conditions import FALSE, TRUE, ConditionState, as_conditions
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, check_ledger, check_profile_object, profile_remarks

#: Maximum length of a condition's message.
_MESSAGE = 1024
#: Maximum number of lost namespaces.
_MOST_LOST = 256


def profile_status(
    profile: Object,
    *,
    used_by: int | None,
    now: datetime,
    ledger: str | None = None,
    lost: Mapping[str, int] = MappingProxyType({}),
    release: str = "",
) -> FineTuneProfileStatus:
    """Returns the status of a profile. The same profile and number give the same status.

    Args:
        profile: the FineTuneProfile as it is stored.
        used_by: number of unfinished jobs that run under it; None if not all jobs are known.
        now: time of the observation.
        ledger: URI of the operator's ledger; None if it keeps none.
        lost: served namespaces that cannot be watched, and the chips that were at work in each.
        release: the operator's release.
    """
    generation = profile["metadata"].get("generation", 1)
    stored = read_profile_status(profile.get("status"))
    previous = stored.conditions or ()
    conditions = as_conditions(_condition_states(profile, ledger), previous, generation=generation, now=now)
    listed = profile["spec"].get("namespaces") or ("*",)
    own = {name: chips for name, chips in lost.items() if {name, "*"} & set(listed)}
    conditions |= _lost_condition(previous, own, release, generation=generation, now=now)
    others = stored.lost_namespaces if ProfileConditionType.NAMESPACE_LOST in conditions else None
    return FineTuneProfileStatus(
        observed_generation=generation,
        conditions=tuple(conditions.values()),
        lost_namespaces=tuple(own)[:_MOST_LOST] or others,
        used_by=used_by,
    )


def _lost_condition(
    previous: Sequence[Condition],
    lost: Mapping[str, int],
    release: str,
    *,
    generation: int,
    now: datetime,
) -> dict[str, Condition]:
    """``NamespaceLost``, only while it is True. That of another release, which serves other namespaces, stays."""
    own, kind = f"Release {release} cannot watch ", ProfileConditionType.NAMESPACE_LOST
    if not lost:
        return {
            last.type: last for last in previous if last.type == kind and not last.message.startswith(own)
        }
    named = ", ".join(f"{name} ({chips} chips were at work)" for name, chips in lost.items())
    message = (
        f"{own}{named}. Nothing starts there, and they count on. Give the operator its Role and RoleBinding there "
        "again (helm upgrade, setup.sh operator), or take the namespace out of the release."
    )
    states = {kind: (TRUE, Reason.NAMESPACE_REFUSED, _cut(message))}
    return as_conditions(states, previous, generation=generation, now=now)


def _condition_states(profile: Object, ledger: str | None) -> dict[ConditionType, ConditionState]:
    """``Valid`` for people, and its opposite for kstatus, which would call a profile with a mistake current."""
    try:
        spec = check_profile_object(profile)
        check_ledger(profile["metadata"]["name"], spec, ledger)
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
