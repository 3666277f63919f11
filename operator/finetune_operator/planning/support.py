"""What the API accepts and this version does not do yet. Setting such a field is refused by name, never ignored."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused


@dataclass(frozen=True, slots=True)
class Later:
    """A path whose values other than ``now`` come later. ``[]`` in a path stands for every item of a list."""

    path: str
    now: tuple[Any, ...] = ()
    instead: str = ""
    """What to do until then."""


JOB: tuple[Later, ...] = (Later("preflight.smoke"),)

PROFILE: tuple[Later, ...] = (Later("storage.optimizerStateTTLSeconds"),)


def refuse_later_fields(spec: Mapping[str, Any]) -> None:
    """Raise Refused naming every path of a job's spec, as its user wrote it, whose behaviour comes later."""
    _refuse([*_found(spec, JOB, "spec")], "this version of the operator")


def refuse_later_profile_fields(name: str, spec: Mapping[str, Any]) -> None:
    """Raise Refused naming every path of a profile whose behaviour comes later, its ``defaults`` included."""
    found = [*_found(spec, PROFILE, "spec"), *_found(spec.get("defaults", {}), JOB, "spec.defaults")]
    _refuse(found, f'profile "{name}": this version of the operator')


def _found(document: Mapping[str, Any], table: tuple[Later, ...], root: str) -> Iterator[str]:
    for later in table:
        steps = re.sub(r"\[\]", ".[]", later.path).split(".")
        for where, value in _values(document, steps, root):
            if value is None or value in later.now:
                continue
            saw = "" if isinstance(value, Mapping | list) else f" = {value}"
            hint = f" ({later.instead})" if later.instead else " (remove it)"
            yield f"{where}{saw}{hint}"


def _values(value: Any, steps: list[str], where: str) -> Iterator[tuple[str, Any]]:
    """Every value that the steps lead to, with its JSON path."""
    if not steps:
        yield where, value
        return
    head, *rest = steps
    if head == "[]":
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from _values(item, rest, f"{where}[{index}]")
    elif isinstance(value, Mapping) and head in value:
        yield from _values(value[head], rest, f"{where}.{head}")


def _refuse(found: list[str], who: str) -> None:
    if found:
        raise Refused(Reason.NOT_YET_SUPPORTED, f"{who} does not support yet: {'; '.join(found)}.")
