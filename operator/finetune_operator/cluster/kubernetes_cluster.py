"""The adapter for a real API server, on the raw calls of ``kubernetes.aio``.

The typed models of that library refuse fields they do not know, so objects stay plain dicts here. Everything
that touches HTTP is in this module: paths, content types, deadlines, retries and the mapping of errors.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from finetune_operator.cluster.clock import ServerClock
from finetune_operator.cluster.port import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Kind,
    NotFound,
    Object,
    Rejected,
    TooLarge,
    Unavailable,
)

FIELD_MANAGER = "finetune-operator"

#: Content types of the three kinds of body that we send.
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"

type RequestObserver = Callable[[str, str, int, float], None]
"""Called once per HTTP request: verb (get, list, create, apply, patch, delete), resource as in RBAC rules,
HTTP status (0: no answer), seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """How long one call may take and how often it is tried."""

    connect_seconds: float = 5
    read_seconds: float = 15
    write_seconds: float = 30
    """Longer: a write waits for admission webhooks, which may take 10 s each."""
    attempts: int = 3
    backoff_seconds: float = 0.25
    """Doubles from try to try, unless the server names a longer wait."""
    longest_wait_seconds: float = 5
    """A server that asks for more than this gets its wish through the work queue, not by a blocked worker."""
    page_size: int = 100
    answer_bytes: int = 16 * 2**20
    """Of one answer; a page beyond it is asked for again with fewer objects. One object has about 2 MiB at most."""
    list_bytes: int = 64 * 2**20
    list_objects: int = 20_000
    """Of all pages of a listing that is held as a whole."""


def _ignore(_verb: str, _resource: str, _status: int, _seconds: float) -> None:
    """The observer of those who do not count."""


class KubernetesCluster:
    """Implements :class:`finetune_operator.cluster.port.Cluster`; to be closed, or used as a context manager."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        limits: CallLimits | None = None,
        observer: RequestObserver = _ignore,
        clock: ServerClock | None = None,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._api = ApiClient(configuration)
        self._api.user_agent = FIELD_MANAGER
        self._limits = limits or CallLimits()
        self._observer = observer
        self._clock = clock
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return await self._call("get", kind, namespace, name)

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str | frozenset[str]] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Sequence[Object]:
        selectors = _selectors(labels, fields)
        # A continuation may outlive the server's history (410); one list from the start is then within it.
        for final in (False, True):
            try:
                return await self._all(kind, namespace, selectors)
            except Rejected as error:
                if error.status != 410 or final:
                    raise
        raise AssertionError("unreachable")

    def pages(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str | frozenset[str]] | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        accept = _METADATA_LIST if metadata_only else _JSON
        return self._page_items(kind, namespace, _selectors(labels, None), accept)

    async def _all(
        self, kind: Kind, namespace: str | None, selectors: Sequence[tuple[str, str]]
    ) -> Sequence[Object]:
        """Every page at once, within the limits of a listing. Raises TooLarge beyond them."""
        limits = self._limits
        found: list[Object] = []
        size = 0
        async for page, page_bytes in self._pages(kind, namespace, selectors):
            found += page
            size += page_bytes
            if size > limits.list_bytes or len(found) > limits.list_objects:
                chosen = ", ".join(value for _, value in selectors)
                raise TooLarge(
                    f"{_path(kind, namespace, None, None)}{f' with {chosen}' if chosen else ''}: more than "
                    f"{limits.list_bytes >> 20} MiB or {limits.list_objects} objects. Delete those that no controller "
                    "made, or remove these labels from them"
                )
        return found

    async def _page_items(
        self, kind: Kind, namespace: str | None, selectors: Sequence[tuple[str, str]], accept: str
    ) -> AsyncIterator[Sequence[Object]]:
        async for page, _ in self._pages(kind, namespace, selectors, accept):
            yield page

    async def _pages(
        self,
        kind: Kind,
        namespace: str | None,
        selectors: Sequence[tuple[str, str]],
        accept: str = _JSON,
    ) -> AsyncIterator[tuple[Sequence[Object], int]]:
        """Each page with the bytes of its answer. A page that is too large is asked for again with fewer objects."""
        size = self._limits.page_size
        continuation: str | None = None
        while True:
            query = [("limit", str(size)), *selectors]
            if continuation:
                query.append(("continue", continuation))
            try:
                answer, answer_bytes = await self._sized_call(
                    "list", kind, namespace, query=query, accept=accept
                )
            except TooLarge:
                if size == 1:
                    raise
                size = max(1, size // 4)
                continue
            continuation = answer.get("metadata", {}).get("continue")
            # An empty list of metadata has null for its items.
            yield answer.get("items") or (), answer_bytes
            if not continuation:
                return

    async def apply(self, kind: Kind, manifest: Object) -> Object:
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

    async def create(self, kind: Kind, manifest: Object) -> Object:
        return await self._call(
            "create",
            kind,
            manifest["metadata"].get("namespace"),
            query=[("fieldManager", FIELD_MANAGER)],
            body=manifest,
        )

    async def patch_status(
        self, kind: Kind, namespace: str | None, name: str, status: Object, *, resource_version: str | None
    ) -> Object:
        # JSON patch replaces the value whole, where a merge patch would keep what the new status lacks.
        patch: list[Object] = [{"op": "add", "path": "/status", "value": status}]
        if resource_version is not None:
            # Writing the version makes the server compare it: 409, where a "test" operation would give 422.
            patch.insert(0, {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version})
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
        self, kind: Kind, namespace: str | None, name: str, *, uid: str, foreground: bool
    ) -> None:
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if foreground else "Background",
        }
        try:
            await self._call("delete", kind, namespace, name, body=options)
        except NotFound:
            return
        except Conflict:
            # Another object has taken the name: the one that was meant is gone.
            return

    async def _call(
        self, verb: str, kind: Kind, namespace: str | None, name: str | None = None, **more: Any
    ) -> dict[str, Any]:
        answer, _ = await self._sized_call(verb, kind, namespace, name, **more)
        return answer

    async def _sized_call(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None,
        name: str | None = None,
        *,
        subresource: str | None = None,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> tuple[dict[str, Any], int]:
        """One call with its retries: the answer and its bytes. Reads are tried again after any fault that may pass;
        writes only where the server said that it did not act (429)."""
        request = _Request(
            verb=verb,
            resource=f"{kind.plural}/{subresource}" if subresource else kind.plural,
            path=_path(kind, namespace, name, subresource),
            query=query,
            body=body,
            content_type=content_type,
            accept=accept,
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
            response = await self._api.call_api(
                method, url, header_params=headers, body=body, _request_timeout=timeout
            )
            status = response.status
            if self._clock is not None:
                self._clock.told(response.headers.get("Date"))
            content = await _read(response.response, limits.answer_bytes, f"{method} {path}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # OSError: name resolution, and the token or CA file that is being replaced.
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise Unavailable(f"{method} {path}: {reason}") from error
        finally:
            self._observer(request.verb, request.resource, status, monotonic() - begun)
        if 200 <= status < 300:
            return _parsed(content, method, path), len(content)
        raise error_from(status, method, path, content, response.headers.get("Retry-After"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    verb: str
    resource: str
    path: str
    query: Sequence[tuple[str, str]]
    body: object
    content_type: str
    accept: str

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


def _selectors(
    labels: Mapping[str, str | frozenset[str]] | None, fields: Mapping[str, str] | None
) -> list[tuple[str, str]]:
    by_labels = ",".join(
        f"{key}={value}" if isinstance(value, str) else f"{key} in ({','.join(sorted(value))})"
        for key, value in sorted((labels or {}).items())
    )
    by_fields = ",".join(f"{key}={value}" for key, value in sorted((fields or {}).items()))
    return [
        (name, value) for name, value in (("labelSelector", by_labels), ("fieldSelector", by_fields)) if value
    ]


def _path(kind: Kind, namespace: str | None, name: str | None, subresource: str | None) -> str:
    parts = [kind.prefix]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(kind.plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)


async def _read(response: aiohttp.ClientResponse, limit: int, request: str) -> bytearray:
    """The body. Raises TooLarge as soon as it has more than ``limit`` bytes."""
    content = bytearray()
    async with response:
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > limit:
                # Closed, not drained: what is left of the answer is not read.
                response.close()
                raise TooLarge(f"{request}: the answer has more than {limit >> 20} MiB")
    return content


def _parsed(content: bytes | bytearray, method: str, path: str) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise Unavailable(f"{method} {path}: the answer is not JSON (is there a proxy between?)") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{method} {path}: the answer is not an object")
    return answer


def error_from(
    status: int, method: str, path: str, content: bytes | bytearray, retry_after: str | None
) -> ClusterError:
    """The exception that an HTTP error answer stands for."""
    message = _message(content)
    text = f"{method} {path}: {status} {message}".rstrip()
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    match status:
        case 404:
            return NotFound(text, status=status)
        case 409:
            taken = _told(content).get("reason") == "AlreadyExists"
            return (AlreadyExists if taken else Conflict)(text, status=status)
        # 401: the token has just been rotated, or cannot be reviewed now; it is read anew every minute.
        case 401 | 408 | 429:
            return Unavailable(text, status=status, retry_after=wait)
        case _ if status >= 500:
            return Unavailable(text, status=status, retry_after=wait)
    return Rejected(text, status=status)


def _message(content: bytes | bytearray) -> str:
    """The server's own words: ``message`` of its Status object, or the start of whatever came."""
    message = _told(content).get("message")
    return str(message) if message else content[:300].decode(errors="replace").strip()


def _told(content: bytes | bytearray) -> Object:
    """The Status object of a refusal; empty where it is none."""
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
