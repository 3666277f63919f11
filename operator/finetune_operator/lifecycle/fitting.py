"""Makes any status one that the schema allows, whatever a trainer has measured or written.

The API server rejects a patch as a whole if the schema refuses one value, and the job could not proceed: a loss that is
not a number, a name of ten thousand characters or a step beyond 32 bits must not cause that. This is the one place that
decides: texts are cut with an ellipsis, lists are cut to their bound, and any other value that the schema refuses is
left out, together with the object around it if that object requires the value.
"""

import copy
from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from finetune_operator.api import FineTuneJobStatus, FineTuneProfileStatus
from finetune_operator.api.common import ApiModel
from finetune_operator.api.numbers import decimal
from finetune_operator.objects import Object

type Place = tuple[int | str, ...]

#: An address that was cut would lead elsewhere.
_ADDRESSES = ("uri", "runfolder", "jobset")


def copied[M: ApiModel](kind: type[M], source: object, **values: object) -> M:
    """Returns a part of a status, not validated: ``values``, and what ``source`` has under the same name as a field. A
    floating-point number becomes a decimal of the API."""
    shared = {name: getattr(source, name) for name in kind.model_fields if hasattr(source, name)}
    decimals = {name: decimal(value) for name, value in shared.items() if isinstance(value, float)}
    return cast("M", kind.model_construct(**shared | decimals | values))


def fit_schema(status: FineTuneJobStatus) -> FineTuneJobStatus:
    """Returns a valid copy of a status that was built without validation. A status that fits is unchanged.

    Raises ValidationError if a value that the operator itself writes into every status is wrong.
    """
    # By way of JSON: pydantic does not validate the models inside a model again, and the schema is about the JSON.
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    return _valid(FineTuneJobStatus, document)


def read_status(stored: Object | None) -> FineTuneJobStatus:
    """Returns the stored status of a job. Never raises: values that the schema refuses, because another release or a
    person has written them, are cut or left out as by :func:`fit_schema`."""
    return _read(FineTuneJobStatus, stored)


def read_profile_status(stored: Object | None) -> FineTuneProfileStatus:
    """Returns the stored status of a profile, like :func:`read_status`."""
    return _read(FineTuneProfileStatus, stored)


def _read[M: ApiModel](kind: type[M], stored: Object | None) -> M:
    known, unobserved = dict(stored or {}), {"observedGeneration": -1}
    try:
        return _valid(kind, unobserved | known)
    except ValidationError:
        # The generation itself is invalid.
        return _valid(kind, known | unobserved)


def _valid[M: ApiModel](kind: type[M], document: Object) -> M:
    """Returns the valid part of ``document``. Raises ValidationError if there is none."""
    try:
        return kind.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        fault = error
    repaired = copy.deepcopy(dict(document))
    while _repair(repaired, fault.errors(include_url=False)):
        try:
            return kind.model_validate(repaired, by_alias=True, by_name=False)
        except ValidationError as error:
            fault = error
    raise fault


def _repair(status: dict[str, Any], faults: list[ErrorDetails]) -> bool:
    """Repairs the status in place. Returns False if nothing could be repaired."""
    removals: set[Place] = set()
    cut = False
    for fault in faults:
        place, kind = fault["loc"], fault["type"]
        if kind == "missing" or place[-1] == "[key]":
            removals.add(place[:-1])
        elif kind in ("string_too_long", "too_long") and not str(place[-1]).lower().endswith(_ADDRESSES):
            cut |= _cut(status, place, fault["ctx"]["max_length"])
        else:
            removals.add(place)
    # An object that is removed takes its own faults with it.
    inner = {place for place in removals if any(place[:size] in removals for size in range(len(place)))}
    # From the end, so that the indices of earlier items stay right.
    outer = sorted(removals - inner, key=lambda place: [(isinstance(part, str), part) for part in place])
    for place in reversed(outer):
        if not place:
            return False
        container = _at(status, place[:-1])
        del container[place[-1]]
    return cut or bool(outer)


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
