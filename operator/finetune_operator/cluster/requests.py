"""A request to the API server, its limits and selectors, and what its response means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune_operator.cluster.json_depth import parse_json
from finetune_operator.cluster.port import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Labels,
    NotFound,
    Rejected,
    ResourceKind,
    Unavailable,
)

type Query = Sequence[tuple[str, str]]

#: Media types of responses: as asked for by default, and of metadata-only listings.
JSON = "application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "apply": "PATCH",
    "patch": "PATCH",
    "delete": "DELETE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call: time, attempts and size."""

    connect_seconds: float = 5
    read_seconds: float = 15
    write_seconds: float = 30
    """Longer than for reads: a write waits for admission webhooks, which may take 10 s each."""
    attempts: int = 3
    backoff_seconds: float = 0.25
    """Wait before the first retry; doubles with each retry, unless the server names a longer wait."""
    longest_wait_seconds: float = 5
    """If the server requires a longer wait, the call fails and the work queue waits, so no worker is blocked."""
    page_size: int = 100
    metadata_page_size: int = 500
    """Of pages with the objects' metadata alone, of which the comparison with the watches' cache reads many."""
    page_bytes: int = 2 * 2**20
    """Of one page; a larger page is requested again with fewer objects. While it is parsed, it takes up to 25 times as
    much memory. etcd stores no object of more than 1.5 MiB; the JSON of a pod may be larger."""
    answer_bytes: int = 8 * 2**20
    """Of a response that is not a page."""
    list_bytes: int = 64 * 2**20
    list_objects: int = 20_000
    """Together with ``list_bytes``, the limit of all pages of a listing that is held as a whole or in part."""
    large_bytes: int = 128 * 2**10
    large_answers: int = 4
    """Number of responses of more than ``large_bytes`` that are read concurrently."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call. ``str()`` is its method and path, for messages."""

    verb: str
    """get, list, create, apply, patch or delete."""
    kind: ResourceKind
    namespace: str | None
    name: str | None = None
    subresource: str | None = None
    query: Query = ()
    body: Any = None
    """Of a patch: the operations of a JSON patch, or an object to merge."""
    accept: str = JSON
    limit: int | None = None
    """Maximum size of the response in bytes; None: that of the client for a response that is not a page."""

    @property
    def method(self) -> str:
        return _METHODS[self.verb]

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name, self.subresource)

    @property
    def resource(self) -> str:
        """The resource as in RBAC rules."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    @property
    def content_type(self) -> str:
        if self.verb == "apply":
            return "application/apply-patch+yaml"
        if self.verb == "patch":
            return f"application/{'json' if isinstance(self.body, list) else 'merge'}-patch+json"
        return JSON

    @property
    def reads(self) -> bool:
        return self.method == "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def selectors(labels: Labels | None, fields: Mapping[str, str] | None) -> Query:
    """Returns the parameters of a listing that select objects."""
    chosen = {
        "labelSelector": [_requirement(key, value) for key, value in sorted((labels or {}).items())],
        "fieldSelector": [f"{key}={value}" for key, value in sorted((fields or {}).items())],
    }
    return [(name, ",".join(terms)) for name, terms in chosen.items() if terms]


def _requirement(key: str, value: str | frozenset[str] | None) -> str:
    if value is None:
        return key
    return f"{key}={value}" if isinstance(value, str) else f"{key} in ({','.join(sorted(value))})"


def parsed(content: bytes | bytearray, request: Request) -> dict[str, Any]:
    """Returns the object of a response. Raises Unavailable if it is none."""
    try:
        answer = parse_json(content)
    except ValueError as error:
        raise Unavailable(f"{request}: the response is not JSON (does a proxy intercept it?)") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{request}: the response is not an object")
    return answer


def error_from(
    status: int, request: object, content: bytes | bytearray, retry_after: str | None = None
) -> ClusterError:
    """Returns the exception for an HTTP error response. Its text has the server's message.

    ``request``: method and path. ``retry_after``: the response's header of that name.
    """
    try:
        answer = parse_json(content)
    except ValueError:
        answer = None
    # A Status object, unless a proxy has responded.
    said = answer if isinstance(answer, dict) else {}
    message = said.get("message") or content[:300].decode(errors="replace").strip()
    text = f"{request}: {status} {message}".rstrip()
    # 401: the token was just rotated, or cannot be reviewed now; it is read again every minute.
    if status in (401, 408, 429) or status >= 500:
        wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
        return Unavailable(text, status=status, retry_after=wait)
    if status == 409:
        taken = said.get("reason") == "AlreadyExists"
        return (AlreadyExists if taken else Conflict)(text, status=status)
    return (NotFound if status == 404 else Rejected)(text, status=status)
