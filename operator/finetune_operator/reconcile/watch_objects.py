"""Parses the responses of watches and listings to the fields that decisions read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import SchemaValidator
from pydantic_core.core_schema import (
    CoreSchema,
    any_schema,
    list_schema,
    str_schema,
    typed_dict_field,
    typed_dict_schema,
)

from finetune_operator.cluster.json_depth import shallow
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, WORKLOADS, Object, ResourceKind
from finetune_operator.lifecycle.children.projection import (
    JOB_PARSER,
    JOBSET_PARSER,
    POD_PARSER,
    WORKLOAD_PARSER,
    optional_keys,
    reduced_job,
    reduced_jobset,
    reduced_pod,
    reduced_workload,
)


@dataclass(frozen=True, slots=True)
class WatchLine:
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    version: int | None
    """Resource version of the object, and so of the stream; None for an error."""
    object: Object
    """Reduced to what decisions read; of a bookmark only the metadata. Of an error, the API server's Status."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing."""

    items: Sequence[Object]
    version: int
    """Resource version of the whole listing."""
    token: str
    """From which the next page continues; empty if this is the last one."""

    @property
    def last(self) -> bool:
        return not self.token


_TYPE = SchemaValidator(optional_keys({"type": str_schema()}))
_STATUS = SchemaValidator(optional_keys({"object": any_schema()}))
_LIST_METADATA = typed_dict_schema(
    {
        "resourceVersion": typed_dict_field(str_schema()),
        "continue": typed_dict_field(str_schema(), required=False),
    },
    extra_behavior="ignore",
)


class ObjectParser:
    """Parses the objects of one kind.

    Args:
        schema: of the fields that are built as Python objects.
        reduce: shortens texts and lists.
    """

    def __init__(self, schema: CoreSchema, reduce: Callable[[Object], Object]) -> None:
        self.reduce = reduce
        self._event = SchemaValidator(optional_keys({"object": schema}))
        self._list = SchemaValidator(
            optional_keys({"metadata": _LIST_METADATA, "items": list_schema(schema)})
        )

    def event(self, line: bytes | bytearray) -> WatchLine:
        """Parses one line of a watch. Raises ValueError."""
        kind: str = validated(_TYPE, line)["type"]
        if kind == "ERROR":
            return WatchLine(kind, None, validated(_STATUS, line)["object"])
        found = validated(self._event, line)["object"]
        return WatchLine(kind, version_of(found), self.reduce(found))

    def page(self, text: bytes | bytearray) -> ListPage:
        """Parses one page of a listing. Raises ValueError."""
        parsed = validated(self._list, text)
        metadata = parsed["metadata"]
        return ListPage(
            items=[self.reduce(each) for each in parsed.get("items") or ()],
            version=int(metadata["resourceVersion"]),
            token=metadata.get("continue", ""),
        )


def version_of(found: Object) -> int:
    """Returns the resource version of an object.

    Versions of one kind are comparable as numbers (KEP-5504). Raises ValueError if it is not a number.
    """
    return int(found["metadata"]["resourceVersion"])


def validated(validator: SchemaValidator, text: bytes | bytearray) -> Any:
    """Returns what the validator makes of JSON of any depth, with any bytes in texts. Raises ValueError."""
    try:
        return validator.validate_json(text)
    except ValueError:
        # The parser also reads ignored values: it fails at 200 levels, and at bytes that are not UTF-8, which the API
        # server takes over from the ``managedFields`` of a client that creates a pod.
        return validator.validate_json(shallow(text).decode(errors="replace"))


#: Administrators write profiles, so they are kept whole.
PARSERS: Mapping[ResourceKind, ObjectParser] = {
    JOBS: ObjectParser(JOB_PARSER, reduced_job),
    JOBSETS: ObjectParser(JOBSET_PARSER, reduced_jobset),
    PODS: ObjectParser(POD_PARSER, reduced_pod),
    WORKLOADS: ObjectParser(WORKLOAD_PARSER, reduced_workload),
    PROFILES: ObjectParser(any_schema(), lambda found: found),
}
