"""Parses the responses of watches and listings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune_operator.cluster.json_depth import parse_json
from finetune_operator.cluster.port import JOBS, ResourceKind
from finetune_operator.lifecycle.job import reduced_job
from finetune_operator.objects import Object


@dataclass(frozen=True, slots=True)
class WatchLine:
    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    version: int | None
    """Resource version of the object, and so of the stream; None for an error."""
    object: Object
    """A FineTuneJob is reduced. Of an error, the API server's Status."""


@dataclass(frozen=True, slots=True)
class ListPage:
    items: Sequence[Object]
    version: int
    """Resource version of the whole listing."""
    token: str
    """From which the next page continues; empty if this is the last one."""

    @property
    def last(self) -> bool:
        return not self.token


def parse_line(kind: ResourceKind, line: bytes | bytearray) -> WatchLine:
    """Parses one line of a watch. Raises ValueError or KeyError."""
    event = _parsed(line)
    found = event["object"]
    if event["type"] == "ERROR":
        return WatchLine("ERROR", None, found)
    return WatchLine(event["type"], version_of(found), reduced(kind, found))


def parse_page(kind: ResourceKind, text: bytes | bytearray) -> ListPage:
    """Parses one page of a listing. Raises ValueError or KeyError."""
    parsed = _parsed(text)
    metadata = parsed["metadata"]
    return ListPage(
        items=[reduced(kind, each) for each in parsed.get("items") or ()],
        version=int(metadata["resourceVersion"]),
        token=metadata.get("continue", ""),
    )


def reduced(kind: ResourceKind, found: Object) -> Object:
    """Returns what handlers and cache may keep of an object: they keep no other objects than FineTuneJobs."""
    return reduced_job(found) if kind == JOBS else found


def version_of(found: Object) -> int:
    """Returns the resource version of an object.

    Versions of one kind are comparable as numbers (KEP-5504). Raises ValueError if it is not a number.
    """
    return int(found["metadata"]["resourceVersion"])


def _parsed(text: bytes | bytearray) -> Mapping[str, Any]:
    parsed = parse_json(text)
    if not isinstance(parsed, dict):
        raise ValueError("the response is not an object")
    return parsed
