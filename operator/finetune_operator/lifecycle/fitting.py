"""Makes a status one that the API server stores, whatever the trainer has measured or written.

A patch with one value that the schema refuses is refused whole, and the job would stand still: a loss that is not a
number, a name of ten thousand characters or a step beyond 32 bits must not do that. This is the one place that
decides: prose is cut with an ellipsis, lists are cut to their bound, and anything else that the schema refuses is
left out, with the object around it where that object is nothing without it.
"""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from finetune_operator.api import FineTuneJobStatus

type Place = tuple[int | str, ...]

#: An address that was cut would lead elsewhere.
_ADDRESSES = ("uri", "runFolder", "jobSet")


def fit_schema(status: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``status`` that follows the schema. Same status, same copy; one that fits is unchanged.

    Raises ValidationError where what the operator itself writes into every status is wrong.
    """
    fitted = copy.deepcopy(dict(status))
    while True:
        try:
            FineTuneJobStatus.model_validate(fitted, by_alias=True, by_name=False)
        except ValidationError as error:
            if not _mend(fitted, error.errors(include_url=False)):
                raise
        else:
            return fitted


def _mend(status: dict[str, Any], faults: list[ErrorDetails]) -> bool:
    """Mends what can be; False: nothing could."""
    removals: set[Place] = set()
    cut = False
    for fault in faults:
        place, kind = fault["loc"], fault["type"]
        if kind == "missing" or place[-1] == "[key]":
            removals.add(place[:-1])
        elif kind in ("string_too_long", "too_long") and not _is_address(place):
            cut |= _cut(status, place, fault["ctx"]["max_length"])
        else:
            removals.add(place)
    # From the end, so that the indices of those before stay right; what goes with its parent goes once.
    inner = {place for place in removals if any(place[:size] in removals for size in range(len(place)))}
    outer = sorted(removals - inner, key=lambda place: [(isinstance(part, str), part) for part in place])
    for place in reversed(outer):
        if not place:
            return False
        container = _at(status, place[:-1])
        del container[place[-1]]
    return cut or bool(outer)


def _is_address(place: Place) -> bool:
    return str(place[-1]).lower().endswith(tuple(each.lower() for each in _ADDRESSES))


def _cut(status: dict[str, Any], place: Place, limit: int) -> bool:
    container, key = _at(status, place[:-1]), place[-1]
    value = container[key]
    if isinstance(value, str):
        container[key] = f"{value[: limit - 1]}…"
    elif isinstance(value, Mapping):
        container[key] = dict(list(value.items())[:limit])
    else:
        container[key] = value[:limit]
    return True


def _at(value: Any, place: Place) -> Any:
    for part in place:
        value = value[part]
    return value
