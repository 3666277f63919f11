"""Adapter for a real API server, built on the raw calls of ``kubernetes.aio``.

The typed models of that library reject unknown fields, so objects stay plain dicts. Deadlines, retries and bounds are
in this module; paths, content types, errors and the values of the bounds are in :mod:`.requests`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from time import monotonic
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from finetune_operator.cluster.clock import ServerClock
from finetune_operator.cluster.port import (
    Conflict,
    Keep,
    Labels,
    NotFound,
    NotLeading,
    Rejected,
    ResourceKind,
    ResponseTooLarge,
    Unavailable,
)
from finetune_operator.cluster.requests import (
    JSON,
    METADATA_LIST,
    CallLimits,
    Query,
    Request,
    error_from,
    parsed,
    selectors,
)
from finetune_operator.objects import Object

FIELD_MANAGER = "finetune-operator"
_MANAGER: Query = [("fieldManager", FIELD_MANAGER)]

type RequestObserver = Callable[[str, str, int, float], None]
"""Called once per HTTP request with the verb (get, list, create, apply, patch, delete), the resource as in RBAC rules,
the HTTP status (0 if there is no response) and the duration in seconds."""


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
        self._configuration = configuration
        self._http = RESTClientObject(configuration)
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
        await self._http.close()

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        return await self.call(Request("get", kind, namespace, name))

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Sequence[Object]:
        async def every() -> Sequence[Object]:
            pages = self.kept(kind, namespace, labels=labels, fields=fields, keep=lambda found: found)
            return [found async for page in pages for found in page]

        try:
            return await every()
        except Rejected as error:
            # The continue token may have expired. A second listing from the start then completes in time.
            if error.status != HTTPStatus.GONE:
                raise
        return await every()

    def pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        accept = METADATA_LIST if metadata_only else JSON
        return self._pages(kind, namespace, selectors(labels, None), accept=accept)

    def kept[T](
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
        keep: Keep[T],
    ) -> AsyncIterator[Sequence[T]]:
        return self._pages(kind, namespace, selectors(labels, fields), keep=keep)

    async def _pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        chosen: Query,
        *,
        accept: str = JSON,
        keep: Keep[Any] | None = None,
    ) -> AsyncIterator[Sequence[Any]]:
        """Yields the objects of each page; with ``keep``, what it returns of them, within the limits of a listing.

        Requests a page that is too large again with fewer objects, and grows small pages again.
        """
        limits = self._limits
        most = objects = limits.metadata_page_size if accept == METADATA_LIST else limits.page_size
        token: str | None = None
        total = count = 0
        while True:
            query = [("limit", str(objects)), *chosen, *([("continue", token)] if token else ())]
            request = Request("list", kind, namespace, query=query, accept=accept, limit=limits.page_bytes)
            try:
                answer, size = await self._sized_call(request)
            except ResponseTooLarge:
                if objects == 1:
                    raise
                objects = max(1, objects // 4)
                continue
            token = answer.get("metadata", {}).get("continue")
            # The items of an empty metadata list are null.
            items = answer.pop("items", None) or []
            if keep is not None:
                total += size
                count += len(items)
                if total > limits.list_bytes or count > limits.list_objects:
                    raise _too_large_listing(request, chosen, limits)
                items = [kept for each in items if (kept := keep(each)) is not None]
            yield items
            # The caller has released the page by now; do not hold it here while the next one is fetched.
            del items
            if not token:
                return
            if size < limits.page_bytes // 4:
                objects = min(2 * objects, most)

    async def apply(self, kind: ResourceKind, manifest: Object) -> Object:
        metadata = manifest["metadata"]
        namespace, name, query = metadata.get("namespace"), metadata["name"], [*_MANAGER, ("force", "true")]
        return await self.call(Request("apply", kind, namespace, name, query=query, body=manifest))

    async def create(self, kind: ResourceKind, manifest: Object) -> Object:
        namespace = manifest["metadata"].get("namespace")
        return await self.call(Request("create", kind, namespace, query=_MANAGER, body=manifest))

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
        return await self.call(Request("patch", kind, namespace, name, "status", query=_MANAGER, body=patch))

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
            answer = await self.call(Request("delete", kind, namespace, name, body=options))
        except (NotFound, Conflict):
            # Conflict: another object has this name now, so the one to delete is already gone.
            return None
        # The answer to the deletion of an object that is gone at once is a Status.
        return answer if answer.get("metadata", {}).get("uid") == uid else None

    async def call(self, request: Request) -> dict[str, Any]:
        """Sends one request, with its retries, and returns the response. Raises ClusterError."""
        return (await self._sized_call(request))[0]

    async def _sized_call(self, request: Request) -> tuple[dict[str, Any], int]:
        """Sends one call with its retries. Returns the response and its size in bytes.

        Reads are retried after any transient error, writes only if the server did not act on them (429).
        """
        limits = self._limits
        for earlier in range(limits.attempts - 1):
            try:
                return await self._send(request)
            except Unavailable as error:
                wait = max(limits.backoff_seconds * 2**earlier, error.retry_after or 0)
                repeatable = request.reads or error.status == HTTPStatus.TOO_MANY_REQUESTS
                if not repeatable or wait > limits.longest_wait_seconds:
                    raise
            await self._sleep(wait)
        return await self._send(request)

    async def _send(self, request: Request) -> tuple[dict[str, Any], int]:
        async with AsyncExitStack() as room:
            # Held until the response is parsed.
            status, headers, content = await self._answer(request, room)
            if len(content) > self._limits.large_bytes:
                # Parsing blocks the event loop for a while: let other tasks run between two large responses.
                await room.enter_async_context(self._parsing)
                await asyncio.sleep(0)
            if 200 <= status < 300:
                return parsed(content, request), len(content)
            raise error_from(status, request, content, headers.get("Retry-After"))

    async def _answer(
        self, request: Request, room: AsyncExitStack
    ) -> tuple[int, Mapping[str, str], bytearray]:
        """Returns status, headers and body. Raises Unavailable, NotLeading and ResponseTooLarge."""
        limits = self._limits
        timeout = aiohttp.ClientTimeout(
            total=limits.read_seconds if request.reads else limits.write_seconds,
            sock_connect=limits.connect_seconds,
        )
        headers = {"Accept": request.accept, "Content-Type": request.content_type}
        begun = monotonic()
        status = 0
        try:
            response = await self._open(
                request.method, request.path, request.query, timeout, headers=headers, body=request.body
            )
            status = response.status
            if self._clock is not None:
                self._clock.observe_date(response.headers.get("Date"))
            return status, response.headers, await self._read(response, request, room)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # OSError: name resolution, or a token or CA file that is being replaced.
            reason = "no response in time" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise Unavailable(f"{request}: {reason}") from error
        finally:
            self._observer(request.verb, request.resource, status, monotonic() - begun)

    async def _open(
        self,
        method: str,
        path: str,
        query: Query,
        within: aiohttp.ClientTimeout,
        *,
        headers: Mapping[str, str],
        body: Any = None,
    ) -> aiohttp.ClientResponse:
        """Sends a request and returns its response without the body. Raises NotLeading, and aiohttp's and OS errors."""
        configuration = self._configuration
        sent = {**headers, "User-Agent": FIELD_MANAGER}
        if token := await configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
            sent["Authorization"] = token
        if method != "GET" and not self._may_write():
            raise NotLeading(f"{method} {path}: not sent, because the Lease was not renewed in time")
        url = f"{configuration.host}{path}{f'?{urlencode(query)}' if query else ''}"
        answer = await self._http.request(  # type: ignore[no-untyped-call]
            method, url, headers=sent, body=body, _request_timeout=within
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _read(
        self, response: aiohttp.ClientResponse, request: Request, room: AsyncExitStack
    ) -> bytearray:
        """Returns the body. Raises ResponseTooLarge as soon as it exceeds the request's limit.

        A large body takes a place among ``large_answers``, which is held until ``room`` is closed.
        """
        limit = request.limit or self._limits.answer_bytes
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


def _too_large_listing(request: Request, chosen: Query, limits: CallLimits) -> ResponseTooLarge:
    values = ", ".join(value for _, value in chosen)
    return ResponseTooLarge(
        f"{request.path}{f' with {values}' if values else ''}: more than {limits.list_bytes >> 20} MiB or "
        f"{limits.list_objects} objects. Delete those without a controller, or remove these labels from them"
    )
