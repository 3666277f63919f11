"""Uses kopf only to list and watch: it keeps the connections open, retries, and lists again after a gap.

kopf gets no objects. The HTTP session that it is given passes them to the cache and the event handlers, and kopf gets
empty pages, and a bookmark for each event, by which it continues. kopf would start a task for each object, copy the
object several times and remember it until it is deleted. It also writes nothing: no finalizers, no annotations, no
Events. No other module depends on kopf.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import kopf

from finetune_operator.cluster.connect import ServiceAccountFolder
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, WORKLOADS, ResourceKind, WatchStream
from finetune_operator.cluster.requests import error_from
from finetune_operator.objects import Object
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_objects import parse_page
from finetune_operator.reconcile.watch_streams import INACTIVITY_SECONDS, SERVER_SECONDS
from finetune_operator.rendering.labels import UID_LABEL
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.watch_responses import Body, Lines, bookmark, empty_page, read_body

log = logging.getLogger(__name__)

#: Number of objects of the first page of a listing, and the most of any.
FIRST_PAGE_OBJECTS = 100
PAGE_OBJECTS = 500
#: Maximum size of a page. An object may have 1.5 MiB or more; parsing takes a multiple.
PAGE_BYTES = 2 * 2**20
#: Maximum delay in seconds of the listing of children until the jobs are listed, whose children alone are cached.
_JOBS_SECONDS = 20.0
#: After this line of a watch kopf lists again.
_GONE = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}'
#: Seconds before the listing that follows an error of the API server, which may be overloaded: they double with each
#: error without an event in between, up to the maximum.
ERROR_PAUSE_SECONDS = 5.0
MAX_ERROR_PAUSE_SECONDS = 20.0
#: Seconds until a list or watch is sent again that was refused (403) in one namespace.
REFUSED_PAUSE_SECONDS = 10.0
#: Maximum size of the message of a refusal.
_REFUSAL_BYTES = 2**16
#: Seconds for kopf's tasks to end after they were cancelled. Some never do (nolar/kopf#1034).
_END_SECONDS = 2.0
#: Number of pages that are read concurrently; there is one listing per kind and namespace.
_PAGES_AT_ONCE = 4


class WatchesEndedError(Exception):
    """kopf has ended its watches. The process must exit and be restarted."""


class WatchManager:
    """Runs the watches.

    Args:
        served: namespaces to watch; notified of those in which the API server refuses it.
        intake: receives every event.
        cache: parses and receives every object before its event.
    """

    def __init__(
        self,
        account: ServiceAccountFolder,
        served: ServedNamespaces,
        intake: EventHandlers,
        cache: WatchCache,
    ) -> None:
        self._account = account
        self._served = served
        self._intake = intake
        self._cache = cache
        self._streams = {stream.path: stream for stream in cache.streams.all}
        """By path."""
        self._handlers: Mapping[ResourceKind, Callable[[str | None, Object], None]] = {
            JOBS: intake.job,
            JOBSETS: intake.jobset,
            PODS: intake.pod,
            WORKLOADS: intake.workload,
            PROFILES: intake.profile,
        }
        self._page_objects: dict[str, int] = {}
        """Page size by path: the number of objects that fitted last time."""
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._failed: set[str] = set()
        """Paths whose watch has ended with an error of the API server and has not been listed since."""
        self._pauses: dict[str, float] = {}
        """Last pause by path, until the watch delivers an event."""
        self._opened: set[str] = set()
        """Paths whose watch was opened after their last listing."""

    async def run(self, started: Callable[[], None]) -> None:
        """Watches until cancelled. Raises kopf's error, or WatchesEndedError.

        kopf's own ``operator()`` and ``run_tasks()`` are not used: at their end they cancel every task of the event
        loop that was created after them, which would interrupt reconciles. ``started`` is called after kopf has
        installed its signal handlers, which the caller may replace.
        """
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            # Unused without peering. kopf's default requires a user name, which a pod's user does not have.
            identity="finetune-operator",  # type: ignore[arg-type]  # a NewType of str that kopf keeps to itself
            clusterwide=not self._served.names,
            namespaces=list(self._served.names),
        )
        started()
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            _, stuck = await asyncio.wait(tasks, timeout=_END_SECONDS)
            if stuck:
                log.warning("%d tasks of kopf do not end, and are left behind", len(stuck))
        for task in done:
            task.result()
        raise WatchesEndedError("kopf has ended without an error")

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)

        async def unused(**_: Any) -> None:
            """kopf watches the kinds that have a handler."""

        for kind in {stream.kind for stream in self._streams.values()}:
            kopf.on.event(
                group=kind.group, version=kind.version, plural=kind.plural, id=kind.plural, registry=registry
            )(unused)
        return registry

    @staticmethod
    def _settings() -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        # CRDs and namespaces are not watched, so the role is smaller. Prerequisites are checked before kopf starts.
        settings.scanning.disabled = True
        # The operator's Lease decides leadership. Peering is not a lock, and equal priorities would pause all peers.
        settings.peering.standalone = True
        # Events result from decisions and are written with the status, not from log records.
        settings.posting.enabled = False
        settings.networking.connect_timeout = 5
        # Includes the waits of _cut, before the request is sent.
        settings.networking.request_timeout = 30 + MAX_ERROR_PAUSE_SECONDS + _JOBS_SECONDS
        # About a minute of retries; then kopf ends, and a restarted process reports the cause.
        settings.networking.error_backoffs = (0.5, 1, 2, 3, 5, 8, 13, 21)
        settings.watching.connect_timeout = 5
        settings.watching.server_timeout = SERVER_SECONDS
        # The server must end a watch before the client does, or its last bookmark would be lost.
        settings.watching.client_timeout = SERVER_SECONDS + 30
        settings.watching.inactivity_timeout = INACTIVITY_SECONDS
        # Lists in pages. Streaming lists would require a newer API server.
        settings.watching.chunk_size = FIRST_PAGE_OBJECTS
        # Only the operator's own JobSets and pods, so that the cost does not grow with others in the cluster.
        for kind in (JOBSETS, PODS):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = UID_LABEL
        # Otherwise kopf kills the process this long after a cancellation, even after a clean shutdown.
        settings.process.ultimate_exiting_timeout = None
        return settings

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """Returns a session that reads the token for each request and reports every sign of activity of a watch."""

        async def authorize(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers["Authorization"] = f"Bearer {self._account.token()}"
            response = await handler(request)
            if response.status == 200:
                self._cache.streams.accepted(request.url.path)
            return response

        context = ssl.create_default_context(cafile=self._account.ca)
        return kopf.AiohttpSession(
            server=self._account.server(),
            aiohttp_session=aiohttp.ClientSession(
                # One connection per stream: no limit, or watches would queue for one another.
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                middlewares=(self._cut, authorize),
            ),
        )

    async def _cut(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Takes the objects out of listings and watches; passes everything else (discovery, errors) unchanged.

        Raises ClientPayloadError, after a pause, if one namespace is refused: kopf would end all watches, but it sends
        a request again after an error of the transport.
        """
        stream = self._streams.get(request.url.path)
        if request.method != "GET" or stream is None:
            return await handler(request)
        response = await self._without_objects(stream, request, handler)
        if response.status == HTTPStatus.OK:
            self._served.answered(stream)
        elif response.status == HTTPStatus.FORBIDDEN and stream.namespace is not None:
            answer = await read_body(response, _REFUSAL_BYTES) or b""
            self._served.refused(stream, str(error_from(403, f"GET {stream.path}", answer)))
            # The watch is not dead: /healthz must not fail.
            self._cache.streams.accepted(stream.path)
            await asyncio.sleep(REFUSED_PAUSE_SECONDS)
            raise aiohttp.ClientPayloadError(f"{stream} may not be read")
        return response

    async def _without_objects(
        self, stream: WatchStream, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" not in request.url.query:
            self._opened.discard(stream.path)
            if stream.path in self._failed:
                self._failed.discard(stream.path)
                last = self._pauses.get(stream.path, ERROR_PAUSE_SECONDS / 2)
                self._pauses[stream.path] = min(2 * last, MAX_ERROR_PAUSE_SECONDS)
                await asyncio.sleep(self._pauses[stream.path])
            await self._cache.listed(stream.path, seconds=_JOBS_SECONDS)
            async with self._pages:
                return await self._page(stream, request, handler)
        if stream.path in self._opened and (ended := await self._ended(stream, request, handler)):
            return ended
        self._opened.add(stream.path)
        response = await handler(request)
        if response.status == 200:
            response.content = cast(
                "aiohttp.StreamReader", Lines(response.content, partial(self._line, stream))
            )
        return response

    async def _ended(
        self, stream: WatchStream, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse | None:
        """Returns the response for kopf if a watch cannot be continued; None if it can.

        After a cluster was restored from a backup, the API server delivers nothing on a watch that continues at a newer
        version than it has, without an error, until it has reached that version. So its version is read before.
        """
        watch = request.url
        # Any object will do: with a selector, the API server might read all to find one.
        request.url = watch.with_query(limit=1)
        response = await handler(request)
        request.url = watch
        if response.status != HTTPStatus.OK:
            return response
        page = parse_page(stream.kind, await response.read())
        if not self._cache.was_restored(stream.path, page.version):
            return None
        response.content = cast("aiohttp.StreamReader", Body(response.content, _GONE + b"\n"))
        return response

    async def _page(
        self, stream: WatchStream, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Requests one page of a listing, with fewer objects if it is too large.

        The page size grows again after small pages. The page's own continue token refers to the next one. Raises
        ClientPayloadError if the listing is to begin again: the continue token has expired, or the API server has not
        read from etcd what it must return (504).
        """
        path = stream.path
        while True:
            objects = self._page_objects.get(path, FIRST_PAGE_OBJECTS)
            request.url = request.url.update_query(limit=objects)
            response = await handler(request)
            if response.status == HTTPStatus.GONE and "continue" in request.url.query:
                response.close()
                # kopf ends with this status, but lists again after an error of the transport.
                raise aiohttp.ClientPayloadError(f"the continue token of {stream} has expired")
            if response.status == HTTPStatus.GATEWAY_TIMEOUT:
                answer = await read_body(response, PAGE_BYTES)
                log.warning("%s cannot be listed yet: %s", stream, (answer or b"").decode(errors="replace"))
                self._failed.add(path)
                raise aiohttp.ClientPayloadError(f"{stream} cannot be listed yet")
            if response.status != 200:
                return response
            text = await read_body(response, PAGE_BYTES if objects > 1 else None)
            if text is None:
                self._page_objects[path] = max(1, objects // 4)
                continue
            if len(text) < PAGE_BYTES // 4:
                self._page_objects[path] = min(2 * objects, PAGE_OBJECTS)
            first = "continue" not in request.url.query
            again = first and self._cache.streams.at(path).begun
            page = self._cache.page(path, text, first=first)
            if again:
                # kopf lists again only if the server no longer has the version of the watch: events were missed.
                self._intake.missed()
            for each in page.items:
                self._handle(stream, None, each)
            response.content = cast("aiohttp.StreamReader", Body(response.content, empty_page(page)))
            return response

    def _line(self, stream: WatchStream, line: bytearray) -> bytes:
        """Handles one line of a watch. Returns the line that kopf gets."""
        event = self._cache.line(stream.path, line)
        if event is None:
            return _GONE
        if event.version is None:
            # kopf ends with any error but an outdated version, although a listing recovers from all of them.
            if event.object.get("code") != HTTPStatus.GONE:
                log.warning("the watch of %s has ended, and is listed again: %s", stream, event.object)
                self._failed.add(stream.path)
            return _GONE
        self._pauses.pop(stream.path, None)
        if event.type != "BOOKMARK":
            self._handle(stream, event.type, event.object)
        return bookmark(event)

    def _handle(self, stream: WatchStream, event_type: str | None, found: Object) -> None:
        """Calls the handler of an event; an error must not stop the events of other objects."""
        try:
            self._handlers[stream.kind](event_type, found)
        except Exception:
            log.exception("internal error of the operator, at an event of %s", stream)
