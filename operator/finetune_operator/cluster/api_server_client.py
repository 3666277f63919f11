"""Adapter for a real API server, built on the raw calls of ``kubernetes.aio``.

The typed models of that library reject unknown fields, so objects stay plain dicts. Everything that touches HTTP is
in this module: paths, content types, deadlines, retries and the mapping of errors.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from finetune_operator.cluster.clock import ServerClock
from finetune_operator.cluster.json_depth import parse_json
from finetune_operator.cluster.port import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Keep,
    Labels,
    NotFound,
    NotLeading,
    Object,
    Rejected,
    ResourceKind,
    ResponseTooLarge,
    Unavailable,
)

FIELD_MANAGER = "finetune-operator"

#: Media types of request bodies and of metadata-only listings.
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"

type RequestObserver = Callable[[str, str, int, float], None]
"""Called once per HTTP request with the verb (get, list, create, apply, patch, delete), the resource as in RBAC rules,
the HTTP status (0 if there is no response) and the duration in seconds."""


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


class ApiServerClient:
    """Implements :class:`.port.KubernetesClient`. Close it after use, or use it as a context manager.

    Args:
        configuration: the API server and the credentials.
        limits: of each call.
        observer: called once per request.
        clock: set from the dates of the responses.
        may_write: asked immediately before each write is sent; if it is not allowed, the call raises NotLeading.
        sleep: waits between two attempts of a call.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        limits: CallLimits | None = None,
        observer: RequestObserver = lambda *_: None,
        clock: ServerClock | None = None,
        may_write: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._api = ApiClient(configuration)
        self._api.user_agent = FIELD_MANAGER
        self._limits = limits or CallLimits()
        self._observer = observer
        self._clock = clock
        self._may_write = may_write
        self._sleep = sleep
        self._large = asyncio.Semaphore(self._limits.large_answers)
        self._parsing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        return await self._call("get", kind, namespace, name)

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Sequence[Object]:
        # A continue token may expire (410). A second listing from the start then completes in time.
        for final in (False, True):
            pages = self.kept(kind, namespace, labels=labels, fields=fields, keep=lambda found: found)
            try:
                return [found async for page in pages for found in page]
            except Rejected as error:
                if error.status != 410 or final:
                    raise
        raise AssertionError("unreachable")

    def pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        accept = _METADATA_LIST if metadata_only else _JSON
        return self._page_items(kind, namespace, _selectors(labels, None), accept)

    async def kept[T](
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
        keep: Keep[T],
    ) -> AsyncIterator[Sequence[T]]:
        selectors = _selectors(labels, fields)
        limits = self._limits
        size = count = 0
        async for page in self._pages(kind, namespace, selectors, keep=keep):
            size += page.bytes
            count += page.count
            if size > limits.list_bytes or count > limits.list_objects:
                chosen = ", ".join(value for _, value in selectors)
                raise ResponseTooLarge(
                    f"{_path(kind, namespace, None, None)}{f' with {chosen}' if chosen else ''}: more than "
                    f"{limits.list_bytes >> 20} MiB or {limits.list_objects} objects. Delete those without a "
                    "controller, or remove these labels from them"
                )
            yield page.items

    async def _page_items(
        self, kind: ResourceKind, namespace: str | None, selectors: Sequence[tuple[str, str]], accept: str
    ) -> AsyncIterator[Sequence[Object]]:
        async for page in self._pages(kind, namespace, selectors, accept):
            items = page.items
            del page
            yield items
            # The caller has released the page by now; do not hold it here while the next one is fetched.
            del items

    async def _pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        selectors: Sequence[tuple[str, str]],
        accept: str = _JSON,
        keep: Keep[Any] | None = None,
    ) -> AsyncIterator["_Page"]:
        """Yields pages. Requests a page that is too large again with fewer objects, and grows small pages again."""
        limits = self._limits
        most = size = limits.metadata_page_size if accept == _METADATA_LIST else limits.page_size
        continuation: str | None = None
        while True:
            query = [("limit", str(size)), *selectors]
            if continuation:
                query.append(("continue", continuation))
            try:
                answer, answer_bytes = await self._sized_call(
                    "list", kind, namespace, query=query, accept=accept, limit=limits.page_bytes
                )
            except ResponseTooLarge:
                if size == 1:
                    raise
                size = max(1, size // 4)
                continue
            continuation = answer.get("metadata", {}).get("continue")
            # The items of an empty metadata list are null.
            items = answer.pop("items", None) or []
            count = len(items)
            if keep is not None:
                items = [kept for each in items if (kept := keep(each)) is not None]
            page = _Page(items, count, answer_bytes)
            del answer, items
            yield page
            del page
            if not continuation:
                return
            if answer_bytes < limits.page_bytes // 4:
                size = min(2 * size, most)

    async def apply(self, kind: ResourceKind, manifest: Object) -> Object:
        metadata = manifest["metadata"]
        return await self._call(
            "apply",
            kind,
            metadata.get("namespace"),
            metadata["name"],
            query=[("fieldManager", FIELD_MANAGER), ("force", "true")],
            body=manifest,
            content_type=_APPLY,
        )

    async def create(self, kind: ResourceKind, manifest: Object) -> Object:
        return await self._call(
            "create",
            kind,
            manifest["metadata"].get("namespace"),
            query=[("fieldManager", FIELD_MANAGER)],
            body=manifest,
        )

    async def patch_status(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        status: Object,
        *,
        resource_version: str | None,
        uid: str | None = None,
    ) -> Object:
        # A JSON patch replaces the whole value; a merge patch would keep keys that the new status lacks.
        patch: list[Object] = [{"op": "add", "path": "/status", "value": status}]
        if resource_version is not None:
            # With the version in the patch, the server compares it: 409, where a "test" operation would give 422.
            patch.insert(0, {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version})
        elif uid is not None:
            # The server repeats this with each version that others write in between. It compares the bytes of JSON:
            # texts with characters that Go escapes would differ from themselves.
            patch.insert(0, {"op": "test", "path": "/metadata/uid", "value": uid})
        return await self._call(
            "patch",
            kind,
            namespace,
            name,
            subresource="status",
            query=[("fieldManager", FIELD_MANAGER)],
            body=patch,
            content_type=_JSON_PATCH,
        )

    async def delete(
        self, kind: ResourceKind, namespace: str | None, name: str, *, uid: str, foreground: bool
    ) -> Object | None:
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        try:
            answer = await self._call("delete", kind, namespace, name, body=options)
        except NotFound:
            return None
        except Conflict:
            # Another object has this name now: the one to delete is already gone.
            return None
        # The answer to the deletion of an object that is gone at once is a Status.
        return answer if answer.get("metadata", {}).get("uid") == uid else None

    async def _call(
        self, verb: str, kind: ResourceKind, namespace: str | None, name: str | None = None, **more: Any
    ) -> dict[str, Any]:
        answer, _ = await self._sized_call(verb, kind, namespace, name, **more)
        return answer

    async def _sized_call(
        self,
        verb: str,
        kind: ResourceKind,
        namespace: str | None,
        name: str | None = None,
        *,
        subresource: str | None = None,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        limit: int | None = None,
    ) -> tuple[dict[str, Any], int]:
        """Sends one call with its retries. Returns the response and its size in bytes.

        Reads are retried after any transient error, writes only if the server did not act on them (429).
        """
        request = _Request(
            verb=verb,
            resource=f"{kind.plural}/{subresource}" if subresource else kind.plural,
            path=_path(kind, namespace, name, subresource),
            query=query,
            body=body,
            content_type=content_type,
            accept=accept,
            limit=limit or self._limits.answer_bytes,
        )
        limits = self._limits
        backoff = limits.backoff_seconds
        for remaining in reversed(range(limits.attempts)):
            try:
                return await self._send(request)
            except Unavailable as error:
                wait = max(backoff, error.retry_after or 0)
                repeatable = request.reads or error.status == 429
                if not repeatable or not remaining or wait > limits.longest_wait_seconds:
                    raise
                await self._sleep(wait)
                backoff *= 2
        raise AssertionError("unreachable")

    async def _send(self, request: "_Request") -> tuple[dict[str, Any], int]:
        method, path = _METHODS[request.verb], request.path
        async with AsyncExitStack() as room:
            # Held until the response is parsed.
            status, headers, content = await self._answer(request, room)
            if len(content) > self._limits.large_bytes:
                # Parsing blocks the event loop for a while: let other tasks run between two large responses.
                await room.enter_async_context(self._parsing)
                await asyncio.sleep(0)
            if 200 <= status < 300:
                return _parsed(content, method, path), len(content)
            raise error_from(status, method, path, content, headers.get("Retry-After"))

    async def _answer(
        self, request: "_Request", room: AsyncExitStack
    ) -> tuple[int, Mapping[str, str], bytearray]:
        """Returns status, headers and body. Raises Unavailable, NotLeading and ResponseTooLarge."""
        method, path = _METHODS[request.verb], request.path
        limits = self._limits
        timeout = aiohttp.ClientTimeout(
            total=limits.read_seconds if request.reads else limits.write_seconds,
            sock_connect=limits.connect_seconds,
        )
        begun = monotonic()
        status = 0
        try:
            method, url, headers, body, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list(request.query),
                header_params={"Accept": request.accept, "Content-Type": request.content_type},
                body=request.body,
                auth_settings=["BearerToken"],
            )
            if not request.reads and not self._may_write():
                raise NotLeading(f"{method} {path}: not sent, because the Lease was not renewed in time")
            response = await self._api.call_api(
                method, url, header_params=headers, body=body, _request_timeout=timeout
            )
            status = response.status
            if self._clock is not None:
                self._clock.observe_date(response.headers.get("Date"))
            content = await self._read(response.response, request.limit, f"{method} {path}", room)
            return status, response.headers, content
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # OSError: name resolution, or a token or CA file that is being replaced.
            reason = "no response in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise Unavailable(f"{method} {path}: {reason}") from error
        finally:
            self._observer(request.verb, request.resource, status, monotonic() - begun)

    async def _read(
        self, response: aiohttp.ClientResponse, limit: int, request: str, room: AsyncExitStack
    ) -> bytearray:
        """Returns the body. Raises ResponseTooLarge as soon as it exceeds ``limit`` bytes.

        A large body takes a place among ``large_answers``, which is held until ``room`` is closed.
        """
        content = bytearray()
        large = False
        async with response:
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > limit:
                    # Closed, not drained: the rest of the response is not read.
                    response.close()
                    raise ResponseTooLarge(f"{request}: the response has more than {limit >> 20} MiB")
                if not large and len(content) > self._limits.large_bytes:
                    large = True
                    await room.enter_async_context(self._large)
        return content


@dataclass(frozen=True, slots=True)
class _Page:
    """Objects of one page that the caller keeps."""

    items: Sequence[Any]
    count: int
    """Number of objects in the page before filtering."""
    bytes: int
    """Size of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    verb: str
    resource: str
    path: str
    query: Sequence[tuple[str, str]]
    body: object
    content_type: str
    accept: str
    limit: int
    """Maximum size of the response in bytes."""

    @property
    def reads(self) -> bool:
        return self.verb in ("get", "list")


_METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "apply": "PATCH",
    "patch": "PATCH",
    "delete": "DELETE",
}


def _selectors(labels: Labels | None, fields: Mapping[str, str] | None) -> list[tuple[str, str]]:
    by_labels = ",".join(_requirement(key, value) for key, value in sorted((labels or {}).items()))
    by_fields = ",".join(f"{key}={value}" for key, value in sorted((fields or {}).items()))
    return [
        (name, value) for name, value in (("labelSelector", by_labels), ("fieldSelector", by_fields)) if value
    ]


def _requirement(key: str, value: str | frozenset[str] | None) -> str:
    if value is None:
        return key
    return f"{key}={value}" if isinstance(value, str) else f"{key} in ({','.join(sorted(value))})"


def _path(kind: ResourceKind, namespace: str | None, name: str | None, subresource: str | None) -> str:
    parts = [kind.prefix]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(kind.plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)


def _parsed(content: bytes | bytearray, method: str, path: str) -> dict[str, Any]:
    try:
        answer = parse_json(content)
    except ValueError as error:
        raise Unavailable(
            f"{method} {path}: the response is not JSON (does a proxy intercept it?)"
        ) from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{method} {path}: the response is not an object")
    return answer


def error_from(
    status: int, method: str, path: str, content: bytes | bytearray, retry_after: str | None
) -> ClusterError:
    """Returns the exception for an HTTP error response."""
    message = _message(content)
    text = f"{method} {path}: {status} {message}".rstrip()
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    match status:
        case 404:
            return NotFound(text, status=status)
        case 409:
            taken = _error_body(content).get("reason") == "AlreadyExists"
            return (AlreadyExists if taken else Conflict)(text, status=status)
        # 401: the token was just rotated, or cannot be reviewed now; it is read again every minute.
        case 401 | 408 | 429:
            return Unavailable(text, status=status, retry_after=wait)
        case _ if status >= 500:
            return Unavailable(text, status=status, retry_after=wait)
    return Rejected(text, status=status)


def _message(content: bytes | bytearray) -> str:
    """Returns the server's message: ``message`` of its Status object, or else the start of the body."""
    message = _error_body(content).get("message")
    return str(message) if message else content[:300].decode(errors="replace").strip()


def _error_body(content: bytes | bytearray) -> Object:
    """Returns the Status object of an error response; empty if the body is not a JSON object."""
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
