"""Versions of the contract, and what an older reader makes of a newer record.

A version is ``major.minor``. A record carries its major version as ``version``; the minor versions of one major live
side by side, because operator and trainer are upgraded at different times:

* A reader ignores keys that it does not know, at every level, and a writer leaves out fields at their default. So a
  default never changes within a major version, a field never goes and never changes its type, and a new field always
  has a default (``tests/unit/contract`` compares the schemas of all versions).
* A field that comes after 1.0 is annotated with the version that introduced it: ``Annotated[float | None,
  Since("1.1")] = None``; a value that an enumeration gains, likewise: ``Annotated[Literal["A", "B"], Since("1.1",
  "B")]``; and a record that a union gains, by its ``type``: ``Annotated[A | B, Field(discriminator="type"),
  Since("1.1", "B")]``.
* Nothing is accepted and ignored. A request names the least version that understands everything in it
  (``StageRequest.requires``, computed by :func:`required_version`). The operator refuses to start a stage whose request
  needs more than its trainer image speaks, and a trainer that still gets such a request refuses it before anything
  runs (exit code 76, reason ``ContractUnsupported``, class Platform). Until preflight's result says what the
  image ``speaks``, it is taken to speak what the operator spoke when it admitted the job.
* Records of the trainer are not negotiated: an enumeration that only they use never gains a value within a major
  version, a new field says it instead. Findings of a stage that a reader does not understand all the same are read as
  absent (:class:`.result.StageResult`), and the operator fails the job with class Platform.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

VersionText = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}\.(0|[1-9][0-9]{0,3})$")]
"""``1.0``"""


class ContractVersion(NamedTuple):
    """Ordered by major, then minor."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``1.0``. Raises ValueError."""
        major, _, minor = text.partition(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: What this code speaks.
CONTRACT_VERSION = ContractVersion(1, 0)
#: The first minor version of the same major: what every reader of it understands.
FIRST_VERSION = ContractVersion(CONTRACT_VERSION.major, 0)


class Since:
    """Marks a field, or with ``values`` only those values of it, with the version that introduced it.

    In the JSON schema it stands as ``x-since`` (the field) or ``x-values-since`` (each value).
    """

    def __init__(self, version: str, *values: str) -> None:
        self.version = ContractVersion.parse(version)
        self.values = values

    def used(self, value: Any, default: Any) -> bool:
        """Whether a field that holds ``value`` needs the version."""
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
    """Of a union of records, the ``type`` that discriminates it; of anything else, the value."""
    return getattr(value, "type", None) if isinstance(value, BaseModel) else value


def newer_parts(record: BaseModel, path: str = "") -> Iterator[tuple[str, ContractVersion]]:
    """Path and version of everything in ``record`` that came after the first version and is used."""
    for name, field in type(record).model_fields.items():
        value, place = getattr(record, name), f"{path}{name}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        for mark in field.metadata:
            if isinstance(mark, Since) and mark.used(value, default):
                yield place, mark.version
        yield from _inside(value, place)


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
    """The least version that understands everything that ``record`` says."""
    return max((version for _, version in newer_parts(record)), default=FIRST_VERSION)


def major_of(content: bytes | str) -> int | None:
    """The major version of a record as it was written; None where ``content`` is no record of any version.

    A record without ``version`` is of the first major version.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    major = document.get("version", 1) if isinstance(document, dict) else None
    return major if isinstance(major, int) and not isinstance(major, bool) else None
