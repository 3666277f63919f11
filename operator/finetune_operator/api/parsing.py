"""Parses plain objects into models, and reports the path of every error.

Objects may have been stored under an older schema, so nothing that the API server validates today is assumed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from finetune_operator.api.common import WITHOUT_RULES, ApiModel, DistinctKeys, RuleCheck
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.meta import METADATA_FIELDS
from finetune_operator.api.numbers import canonical
from finetune_operator.api.paths import known_fields
from finetune_operator.api.profile import FineTuneProfile
from finetune_operator.api.wording import too_many, worded
from finetune_operator.objects import Object

#: What pydantic checks of objects, lists and maps whose fields and items are valid.
type Check = RuleCheck | DistinctKeys | MaxLen
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
    details: Sequence[ErrorDetails] = ()
    parsed = None
    try:
        parsed = model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults = _field_errors(model, details)
    wrong = {fault.location for fault in faults}
    faults += [
        FieldError(location=location, message="is null: leave the field out, or give it a value")
        for location in _nulls(document)
        if not any(location[:end] in wrong for end in range(len(location) + 1))
    ]
    if parsed is not None and not faults:
        return parsed
    broken: list[FieldError] = []
    _as_rules_read(model, document, (), broken)
    # A rule on a value of the wrong type or form would repeat the same error in a less helpful way.
    faults += [fault for fault in broken if fault.location not in wrong]
    # Where that keeps a rule that pydantic has found broken, the first broken one is known.
    raise InvalidObject(faults or [_fault(model, detail) for detail in details])


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
        raise InvalidObject(_field_errors(model, error.errors(include_url=False))) from None


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
            known = METADATA_FIELDS if location == ("metadata",) else known_fields(model, location)
            return {
                key: without_nulls(model, item, (*location, str(key)))
                for key, item in value.items()
                if item is not None or (known and key not in known)
            }
        case list() | tuple():
            return [without_nulls(model, item, (*location, index)) for index, item in enumerate(value)]
    return value


def _field_errors(model: type[BaseModel], details: Sequence[ErrorDetails]) -> list[FieldError]:
    """Returns pydantic's errors without those of rules."""
    return [
        _fault(model, detail)
        for detail in details
        if detail["type"] != "rule"
        and not (detail["type"] == "too_short" and _holds_another(detail, details))
    ]


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

    pydantic asks an object's rules, and whether a list has repetitions or too many items, only if all fields or items
    are valid, and stops at the first rule that is broken. Here a rule that cannot be asked, because a value is missing
    or of another type, counts as kept. A field that is null counts as missing, as the API server drops it.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _as_rules_read(arguments[0], value, location, broken)
    read = value
    checks: list[Check] = []
    if origin is Annotated:
        read = _as_rules_read(arguments[0], value, location, broken)
        checks = list(_checks(arguments[1:]))
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
            if value.get(alias := field.alias or name) is not None
        })  # fmt: skip
        checks = [RuleCheck(getattr(annotation, "rules", ()))]
    broken += [
        FieldError(location=(*location, *at), message=message)
        for check in checks
        for at, message in _violations(check, read)
    ]
    return read


def _checks(annotations: Sequence[Any]) -> Iterator[Check]:
    for annotation in annotations:
        if isinstance(annotation, FieldInfo):
            yield from _checks(annotation.metadata)
        elif isinstance(annotation, MaxLen):
            yield annotation
        elif isinstance(annotation, AfterValidator) and isinstance(annotation.func, RuleCheck | DistinctKeys):
            yield annotation.func


def _violations(check: Check, value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields path below the value, and message, of each violation."""
    match check:
        case MaxLen(max_length=most):
            if isinstance(value, tuple | Mapping) and len(value) > most:
                yield (), too_many(len(value), most)
        case DistinctKeys():
            if message := _answer(check.repetition, value):
                yield (), message
        case RuleCheck(rules=rules):
            for rule in rules:
                if rule.holds is not None and _answer(rule.holds, value) is False:
                    yield rule.at, rule.message


def _answer[T](question: Callable[[Any], T], value: Any) -> T | None:
    """Returns None if the question does not expect such a value, whose own error is reported."""
    try:
        return question(value)
    except Exception:  # noqa: BLE001
        return None


def render_path(location: Sequence[int | str]) -> str:
    """``("spec", "train", 0, "uri")`` → ``spec.train[0].uri``"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
