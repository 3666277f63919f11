"""Parses plain objects into models, and reports the path of every error.

Objects may have been stored under an older schema, so nothing that the API server validates today is assumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from finetune_operator.api.common import WITHOUT_RULES, ApiModel, RuleCheck
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.numbers import canonical
from finetune_operator.api.paths import known_fields
from finetune_operator.api.profile import FineTuneProfile
from finetune_operator.api.rules import ValidationRule
from finetune_operator.api.wording import worded
from finetune_operator.objects import Object

#: Stands in :func:`_as_rules_read` for a value in which a rule finds neither fields nor items.
_UNREADABLE: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One error in an object."""

    location: tuple[str | int, ...]
    """``("spec", "datasets", "train", 0, "weight")``"""
    message: str
    fix: str = ""
    """Remedy. Empty if the message includes it."""

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
    # Messages show an integer as it is written; the bounds of every field refuse one that not every reader holds.
    document = canonical({key: value for key, value in obj.items() if key != "status"}, large_as_float=False)
    parsed, faults = None, []
    try:
        parsed = model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = _faults(model, error, document)
    wrong = {fault.location for fault in faults}
    faults += [
        FieldError(location=location, message="is null: leave the field out, or give it a value")
        for location in _nulls(document)
        if not any(location[:end] in wrong for end in range(len(location) + 1))
    ]
    if parsed is None or faults:
        raise InvalidObject(faults)
    return parsed


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
        raise InvalidObject(_faults(model, error, {})) from None


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


def _faults(model: type[BaseModel], error: ValidationError, document: Object) -> list[FieldError]:
    """Returns each error once. ``document``: the object whose rules are asked; empty: none is."""
    details = error.errors(include_url=False)
    found = [
        _fault(model, detail)
        for detail in details
        if detail["type"] != "rule"
        and not (detail["type"] == "too_short" and _holds_another(detail, details))
    ]
    wrong = {fault.location for fault in found}
    broken: list[FieldError] = []
    if document:
        _as_rules_read(model, document, (), broken)
    # A rule on a value of the wrong type or form would repeat the same error in a less helpful way.
    faults = [*found, *(fault for fault in broken if fault.location not in wrong)]
    # Where that keeps a rule that pydantic has found broken, the first broken one is known.
    return faults or [_fault(model, detail) for detail in details]


def _fault(model: type[BaseModel], detail: ErrorDetails) -> FieldError:
    (message, fix), location = worded(model, detail), detail["loc"]
    if location[-1:] == ("[key]",):  # pydantic's mark of an error of a map's key, not of its value
        return FieldError(location=location[:-2], message=f"a key {message}")
    return FieldError(location=location, message=message, fix=fix)


def _holds_another(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Whether an item below has an error: pydantic reports a list as too short when none of its items is valid."""
    place = detail["loc"]
    return any(len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in details)


def _as_rules_read(
    annotation: Any, value: Any, location: tuple[str | int, ...], broken: list[FieldError]
) -> Any:
    """Returns a value of the type ``annotation``, valid or not, as rules read it; adds those that it breaks.

    pydantic asks an object's rules only if all its fields are valid, and stops at the first one that is broken. Here
    a rule that cannot be asked, because a value is missing or of another type, counts as kept.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    read = value
    rules: tuple[ValidationRule, ...] = ()
    if origin is Annotated:
        read = _as_rules_read(arguments[0], value, location, broken)
        checks = (each.func for each in arguments[1:] if isinstance(each, AfterValidator))
        rules = tuple(rule for check in checks if isinstance(check, RuleCheck) for rule in check.rules)
    elif origin in (Union, UnionType):
        return _as_rules_read(arguments[0], value, location, broken) if value is not None else None
    elif origin is tuple:
        if not isinstance(value, list | tuple):
            return _UNREADABLE
        read = tuple(
            _as_rules_read(arguments[0], item, (*location, index), broken) for index, item in enumerate(value)
        )
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not isinstance(value, Mapping):
            return _UNREADABLE
        read = annotation.model_construct(**{
            name: _as_rules_read(field.rebuild_annotation(), value[alias], (*location, alias), broken)
            for name, field in annotation.model_fields.items()
            if (alias := field.alias or name) in value
        })  # fmt: skip
        rules = getattr(annotation, "rules", ())
    for rule in rules:
        try:
            kept = rule.holds is None or rule.holds(read)
        except Exception:  # noqa: BLE001  a value that the rule does not expect, whose own error is reported
            kept = True
        if not kept:
            broken.append(FieldError(location=(*location, *rule.at), message=rule.message))
    return read


def render_path(location: Sequence[int | str]) -> str:
    """``("spec", "train", 0, "uri")`` → ``spec.train[0].uri``"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
