"""Parses plain objects into models, and reports the path of every error.

Objects may have been stored under an older schema, so nothing that the API server validates today is assumed.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from finetune_operator.api.common import WITHOUT_RULES, ApiModel
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.numbers import canonical, unquoted
from finetune_operator.api.profile import FineTuneProfile
from finetune_operator.api.string_formats import form
from finetune_operator.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One error in an object."""

    location: tuple[str | int, ...]
    """``("spec", "datasets", "train", 0, "weight")``"""
    message: str

    @property
    def path(self) -> str:
        """``spec.datasets.train[0].weight``"""
        return render_path(self.location)


class InvalidObject(ValueError):
    """Raised for an object that does not follow the API. ``path`` and ``message`` are those of the first error."""

    def __init__(self, faults: Sequence[FieldError]) -> None:
        self.faults = tuple(faults)
        self.path = faults[0].path
        self.message = faults[0].message
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in faults))


def parse_job(obj: Object) -> FineTuneJob:
    """Returns the job without its status, which is a report and never an input. Raises only InvalidObject."""
    return _parse(FineTuneJob, obj)


def parse_profile(obj: Object) -> FineTuneProfile:
    """Returns the profile without its status. Raises only InvalidObject."""
    return _parse(FineTuneProfile, obj)


def _parse[M: BaseModel](model: type[M], obj: Object) -> M:
    if not isinstance(obj, Mapping):
        raise InvalidObject([FieldError(location=(), message=f"must be an object, not {type(obj).__name__}")])
    document = {key: value for key, value in obj.items() if key != "status"}
    nulls = [
        FieldError(location=location, message="is null: leave the field out, or give it a value")
        for location in _nulls(document)
    ]
    if nulls:
        raise InvalidObject(nulls)
    try:
        return model.model_validate(canonical(document), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidObject(_faults(model, error)) from None


def parse_merged[M: ApiModel](model: type[M], document: Object) -> M:
    """Returns the model of a document that consists of validated objects. Raises only InvalidObject.

    The objects may have been validated under an older schema: unknown fields are ignored.
    Rules between fields are not checked again, because each object follows them, but their merge may not.
    """
    try:
        return _validated(model, document)
    except ValidationError:
        # Rare, so that most documents are not rewritten: whole numbers with a fraction of 0.
        document = canonical(document)
    try:
        return _validated(model, document)
    except ValidationError as error:
        raise InvalidObject(_faults(model, error)) from None


def _validated[M: ApiModel](model: type[M], document: Object) -> M:
    return model.model_validate(document, extra="ignore", context=WITHOUT_RULES, by_alias=True, by_name=False)


def _nulls(value: Any, location: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields the places of nulls outside metadata, which Kubernetes owns."""
    match value:
        case None:
            yield location
        case Mapping():
            for key, item in value.items():
                if location or key != "metadata":
                    yield from _nulls(item, (*location, str(key)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _nulls(item, (*location, index))


def without_nulls(model: type[BaseModel], value: Any, location: tuple[str | int, ...] = ()) -> Any:
    """Returns a document of ``model`` without the nulls that the API server drops: of known fields, and in maps.

    Unknown fields and items of lists keep theirs, which the server refuses.
    """
    match value:
        case Mapping():
            known = known_fields(model, location) if location != ("metadata",) else ()
            return {
                key: without_nulls(model, item, (*location, str(key)))
                for key, item in value.items()
                if item is not None or (known and key not in known)
            }
        case list() | tuple():
            return [without_nulls(model, item, (*location, index)) for index, item in enumerate(value)]
    return value


def _faults(model: type[BaseModel], error: ValidationError) -> list[FieldError]:
    details = error.errors(include_url=False)
    return [
        FieldError(
            location=(*detail["loc"], *_place_of_rule(detail)),
            message=_message(model, detail),
        )
        for detail in details
        if not (detail["type"] == "too_short" and _holds_another(detail, details))
    ]


def _holds_another(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether an item below has an error: pydantic reports a list as too short when none of its items is valid."""
    place = detail["loc"]
    return any(len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in details)


def _place_of_rule(detail: ErrorDetails) -> tuple[str, ...]:
    """Returns the place below the object that a rule refers to (``ValidationRule.at``)."""
    at = detail.get("ctx", {}).get("at", "")
    return tuple(at.split(".")) if at else ()


def _message(model: type[BaseModel], detail: ErrorDetails) -> str:
    location = detail["loc"]
    match detail["type"]:
        case "string_pattern_mismatch":
            return f"must be {form(detail['ctx']['pattern'])}"
        case "extra_forbidden":
            return unknown_field(location, detail["input"], known_fields(model, location[:-1]))
        case "missing":
            return "required, but not set"
        case "float_type" | "int_type" if isinstance(text := detail["input"], str) and (
            said := unquoted(text, whole=detail["type"] == "int_type")
        ):
            return said
        case _:
            return detail["msg"].removeprefix("Value error, ")


def known_fields(model: type[BaseModel], location: Sequence[int | str]) -> tuple[str, ...]:
    """Returns the fields, as users write them, of the object at ``location`` below ``model``; () if there is no
    object."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for f in current.model_fields.values() if f.alias == part), None) if current else None
        current = model_within(field.annotation) if field else None
    return tuple(field.alias or "" for field in current.model_fields.values()) if current else ()


def model_within(annotation: Any) -> type[BaseModel] | None:
    """Returns the model inside ``M``, ``M | None``, ``tuple[M, ...] | None`` and their annotated forms, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = model_within(argument)
        if found:
            return found
    return None


def unknown_field(location: Sequence[int | str], value: Any, known: Sequence[str]) -> str:
    """Returns the message for a field that its object, which has the fields ``known``, does not have."""
    name = str(location[-1])
    if location[-2:-1] == ("columns",) and value in known:
        return f"unknown field: write {{{value}: {name}}}, our name of the column first"
    return "unknown field" + did_you_mean(name, known)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns ``: did you mean learningRate?``, or the list of known words, or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6) or [
        name for name in known if name.lower() == word.lower().replace("_", "").replace("-", "")
    ]
    if close:
        return f": did you mean {close[0]}?"
    return f": expected one of {', '.join(known)}" if known else ""


#: difflib's ratio from which a value counts as a misspelling. Names of methods are short: GRPO shares three letters
#: with ORPO but is another method.
_MISTYPED = 0.8


def one_of(word: str, known: Sequence[str]) -> str:
    """Returns ``: expected one of SFT, DPO, ORPO``, preceded by the most similar word, if there is one."""

    def plain(value: str) -> str:
        return value.lower().replace("_", "").replace("-", "")

    close = [each for each in known if plain(each) == plain(word)] or difflib.get_close_matches(
        word, known, n=1, cutoff=_MISTYPED
    )
    listed = f"xpected one of {', '.join(known)}"
    return f": did you mean {close[0]}? E{listed}" if close else f": e{listed}"


def render_path(location: Sequence[int | str]) -> str:
    """``("spec", "train", 0, "uri")`` → ``spec.train[0].uri``"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
