"""Versions of the contract, and how an older reader handles a newer record.

A version is ``major.minor``. A record carries its major version as ``version``. Minor versions of one major version
coexist, because operator and trainer are upgraded at different times:

* A reader ignores unknown keys at every level, and a writer omits fields at their default. So within a major version a
  default never changes, a field is never removed and never changes its type, and a new field always has a default
  (``tests/unit/contract`` compares the schemas of all versions).
* A field introduced after 3.0 is annotated with its version: ``Annotated[float | None, Since("3.1")] = None``. So is a
  new value of an enumeration, ``Annotated[Literal["A", "B"], Since("3.1", "B")]``, and, by its ``type``, a new member
  of a union of records, ``Annotated[A | B, Field(discriminator="type"), Since("3.1", "B")]``.
* No part of a request is accepted and then ignored. A request names the least version that understands all of it
  (``StageRequest.requires``, computed by :func:`required_version`). The operator refuses to start a stage whose request
  requires a newer version than its trainer image supports, and a trainer that still receives such a request refuses it
  before anything runs (exit code 76, reason ``ContractUnsupported``, class Platform). Until preflight's result reports
  the version that the image ``supports``, the operator assumes its own version at the job's admission.
* Records of the trainer are not negotiated: an enumeration that only they use never gains a value within a major
  version; a new field carries the information instead. Details that a reader still does not understand are read as
  absent (:class:`.result.StageResult`), and the operator fails the job with class Platform.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

VersionText = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}\.(0|[1-9][0-9]{0,3})$")]
"""Text of a version, such as ``3.0``."""


class ContractVersion(NamedTuple):
    """A version of the contract, ordered by major, then minor."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses text such as ``3.0``.

        Raises:
            ValueError: the text is not a version.
        """
        major, _, minor = text.partition(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: Version of the contract that this code implements.
CONTRACT_VERSION = ContractVersion(3, 0)
#: First minor version of the same major version, which all its readers understand.
FIRST_VERSION = ContractVersion(CONTRACT_VERSION.major, 0)


class Since:
    """Marks a field, or with ``values`` only these values of it, with the version that introduced it.

    The JSON schema shows it as ``x-since`` (the field) or ``x-values-since`` (each value).
    """

    def __init__(self, version: str, *values: str) -> None:
        self.version = ContractVersion.parse(version)
        self.values = values

    def used(self, value: Any, default: Any) -> bool:
        """Whether a field that holds ``value`` requires the version."""
        if not self.values:
            return bool(value != default)
        held = value if isinstance(value, list | tuple | set | frozenset | Mapping) else (_chosen(value),)
        return any(each in held for each in self.values)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(schema)
        if not self.values:
            return {**described, "x-since": str(self.version)}
        since = {**described.get("x-values-since", {}), **dict.fromkeys(self.values, str(self.version))}
        return {**described, "x-values-since": since}


def _chosen(value: Any) -> Any:
    """Returns the discriminating ``type`` of a record of a union, or any other value itself."""
    return getattr(value, "type", None) if isinstance(value, BaseModel) else value


def newer_parts(record: BaseModel, path: str = "") -> Iterator[tuple[str, ContractVersion]]:
    """Yields path and version of each used part of ``record`` that was introduced after the first version."""
    for name, marks, default in marked_fields(type(record)):
        value, place = getattr(record, name), f"{path}{name}"
        for mark in marks:
            if mark.used(value, default):
                yield place, mark.version
        yield from _inside(value, place)


@cache
def marked_fields(kind: type[BaseModel]) -> tuple[tuple[str, tuple[Since, ...], Any], ...]:
    """Returns name, versions and default of each field; None for the default of a required one."""
    return tuple(
        (
            name,
            tuple(mark for mark in field.metadata if isinstance(mark, Since)),
            None if field.is_required() else field.get_default(call_default_factory=True),
        )
        for name, field in kind.model_fields.items()
    )


def _inside(value: Any, place: str) -> Iterator[tuple[str, ContractVersion]]:
    if isinstance(value, BaseModel):
        yield from newer_parts(value, f"{place}.")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _inside(each, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _inside(each, f"{place}[{index}]")


def required_version(record: BaseModel) -> ContractVersion:
    """Returns the least version that understands all of ``record``."""
    return max((version for _, version in newer_parts(record)), default=FIRST_VERSION)


def major_of(content: bytes | str) -> int | None:
    """Returns the major version of a serialized record; None if ``content`` is not a record of any version.

    A record without ``version`` is read as one of this major version.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    major = document.get("version", CONTRACT_VERSION.major) if isinstance(document, dict) else None
    return major if isinstance(major, int) and not isinstance(major, bool) else None
