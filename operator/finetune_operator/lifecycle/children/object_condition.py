"""Conditions of JobSets, pods, Workloads and nodes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from finetune_operator.lifecycle.children.fields import CONDITION_MESSAGE, items, message, text, time
from finetune_operator.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCondition:
    """One entry of ``status.conditions``."""

    type: str
    status: str
    """``True``, ``False`` or ``Unknown``."""
    reason: str | None
    message: str | None
    last_transition_time: datetime | None

    @classmethod
    def parse(cls, found: Object) -> "ObjectCondition":
        return cls(
            type=text(found, "type") or "",
            status=text(found, "status") or "",
            reason=text(found, "reason"),
            message=message(found, CONDITION_MESSAGE),
            last_transition_time=time(found, "lastTransitionTime"),
        )


def parse_conditions(status: Object) -> tuple[ObjectCondition, ...]:
    """Returns the conditions of an object's status, in its order."""
    return tuple(map(ObjectCondition.parse, items(status, "conditions")))


def parse_condition(conditions: Iterable[Object], type_: str, status: str) -> ObjectCondition | None:
    """Returns the first of plain conditions with this type and status; None if there is none."""
    wanted = (each for each in conditions if each.get("type") == type_ and each.get("status") == status)
    return next(map(ObjectCondition.parse, wanted), None)


def find_condition(
    conditions: Iterable[ObjectCondition], type_: str, status: str = "True"
) -> ObjectCondition | None:
    """Returns the first condition with this type and status; None if there is none."""
    return next((each for each in conditions if (each.type, each.status) == (type_, status)), None)
