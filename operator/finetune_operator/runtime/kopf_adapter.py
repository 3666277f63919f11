"""kopf as the host of our watches, and nothing more: events in, keys out.

Handlers only pass events on, so kopf writes nothing: no finalizers, no annotations, no Events. All that is
known of kopf is in this module.

kopf holds whole objects, copies each of them several times and queues them without end. So it does not get them: the
HTTP session that it is given cuts the answers to what :mod:`.projection` keeps, before kopf sees them. Nor
does kopf find a finalizer or an annotation of its own there that another client has put on an object.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

import aiohttp
import kopf
from yarl import URL

from finetune_operator.cluster.connect import ServiceAccountFolder
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, WORKLOADS, ResourceKind
from finetune_operator.rendering.labels import UID_LABEL
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.projection import project_event, project_list
from finetune_operator.runtime.watches import INACTIVITY_SECONDS, SERVER_SECONDS, WatchHealth, WatchStream

#: What is watched. Profiles are cluster-scoped, the others live in namespaces.
NAMESPACED = (JOBS, JOBSETS, PODS)
CHILDREN = (JOBSETS, PODS)

#: Objects of one page of a listing, at most, and bytes; an object may have 1.5 MiB and more. Parsing takes a multiple.
PAGE_OBJECTS = 25
PAGE_BYTES = 2 * 2**20
#: Pages that are read at once; there is a listing for each kind in each namespace.
_PAGES_AT_ONCE = 4


class WatchesEndedError(Exception):
    """kopf has given up; the process should end, and be started again."""


def watches(namespaces: Sequence[str], *, kueue: bool) -> tuple[WatchStream, ...]:
    """The streams that there must be; ``kueue``: whether there are Workloads to watch."""
    scopes = namespaces or (None,)
    kinds = (*NAMESPACED, WORKLOADS) if kueue else NAMESPACED
    return (*(WatchStream(kind, scope) for kind in kinds for scope in scopes), WatchStream(PROFILES, None))


class WatchManager:
    """Runs the watches.

    Args:
        account: identity and address of the API server.
        namespaces: where to watch; empty: everywhere.
        intake: hears of every event.
        ages: hears of every sign of life.
        environ: holds the API server's address.
        kueue: whether there are Workloads to watch.
    """

    def __init__(
        self,
        account: ServiceAccountFolder,
        namespaces: Sequence[str],
        intake: EventHandlers,
        ages: WatchHealth,
        environ: Mapping[str, str],
        *,
        kueue: bool,
    ) -> None:
        self._account = account
        self._environ = environ
        self._namespaces = namespaces
        self._kueue = kueue
        self._intake = intake
        self._ages = ages
        self._paths = frozenset(watch.path for watch in watches(namespaces, kueue=kueue))
        self._page_objects: dict[str, int] = {}
        """By path: as many as fitted last time."""
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._listed: set[str] = set()
        """Paths of collections that were listed before: each later time comes after a gap."""

    async def run(self, started: Callable[[], None]) -> None:
        """Watch until cancelled. Raises what kopf fails with, or WatchesEndedError.

        kopf's own ``operator()`` and ``run_tasks()`` are not used: when they end, they cancel every task of the
        event loop that is younger than they are, and so would cut our reconciles short.

        Args:
            started: called once kopf has taken the process's signal handlers, which the caller may take back.
        """
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            # Unused without peering. kopf's default asks for the name of the user, and a pod's user has none.
            identity="finetune-operator",  # type: ignore[arg-type]  # a NewType of str that kopf keeps to itself
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
        )
        started()
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            task.result()
        raise WatchesEndedError("kopf has ended without an error")

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)

        def watch(kind: ResourceKind, tell: Callable[[str | None, Any], None]) -> None:
            async def handler(event: kopf.RawEvent, namespace: str | None, **_: Any) -> None:
                self._ages.event(kind, namespace)
                tell(event["type"], event["object"])

            kopf.on.event(
                group=kind.group, version=kind.version, plural=kind.plural, id=kind.plural, registry=registry
            )(handler)

        watch(JOBS, self._intake.job)
        watch(JOBSETS, self._intake.jobset)
        watch(PODS, self._intake.pod)
        if self._kueue:
            watch(WORKLOADS, self._intake.workload)
        watch(PROFILES, self._intake.profile)
        return registry

    @staticmethod
    def _settings() -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        # No watching of CRDs and namespaces: a smaller role. What is needed is checked before kopf starts.
        settings.scanning.disabled = True
        # Leadership is a Lease of ours. Peering is no lock, and equal priorities would pause everyone.
        settings.peering.standalone = True
        # Events are written with the status, by decision, not from log lines.
        settings.posting.enabled = False
        settings.networking.connect_timeout = 5
        settings.networking.request_timeout = 30
        # About a minute of trying; then kopf gives up, and a fresh process says what is wrong.
        settings.networking.error_backoffs = (0.5, 1, 2, 3, 5, 8, 13, 21)
        settings.watching.connect_timeout = 5
        settings.watching.server_timeout = SERVER_SECONDS
        # The client must not be the first to end a watch: the server's last bookmark would be lost.
        settings.watching.client_timeout = SERVER_SECONDS + 30
        settings.watching.inactivity_timeout = INACTIVITY_SECONDS
        # Pages, that is. Streaming lists need a newer server than this does.
        settings.watching.chunk_size = PAGE_OBJECTS
        # Only our children, out of all JobSets and pods of the cluster: what lets this scale.
        for kind in CHILDREN:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = UID_LABEL
        # kopf would kill the process this long after a cancellation, also when it went well.
        settings.process.ultimate_exiting_timeout = None
        # Handlers only add keys: an idle object needs no worker for longer than a burst of events.
        settings.queueing.idle_timeout = 1
        settings.queueing.exit_timeout = 1
        return settings

    def _note_gap(self, url: URL) -> None:
        """kopf lists once, and again where the server no longer knows what a watch had seen."""
        if "continue" in url.query:
            return
        if url.path in self._listed:
            self._intake.missed()
        self._listed.add(url.path)

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """A session that reads the token anew for each request and notes every sign of life of a watch."""

        async def authorize(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers["Authorization"] = f"Bearer {self._account.token()}"
            response = await handler(request)
            if response.status == 200:
                self._ages.answered(request.url.path)
            return response

        context = ssl.create_default_context(cafile=self._account.ca)
        return kopf.AiohttpSession(
            server=self._account.server(self._environ),
            aiohttp_session=aiohttp.ClientSession(
                # One connection per stream: no limit, or watches would queue for one another.
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                middlewares=(self._cut, authorize),
            ),
        )

    async def _cut(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """What is watched reaches kopf as what is kept of it; everything else (discovery, errors) as it is."""
        if request.method != "GET" or request.url.path not in self._paths:
            return await handler(request)
        if "watch" not in request.url.query:
            async with self._pages:
                return await self._page(request, handler)
        response = await handler(request)
        if response.status == 200:
            response.content = cast("aiohttp.StreamReader", _ProjectedLines(response.content))
        return response

    async def _page(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """A page that is too large is asked for again with fewer objects; after small ones they become more again.
        It says itself where the next one begins."""
        path = request.url.path
        while True:
            objects = self._page_objects.get(path, PAGE_OBJECTS)
            request.url = request.url.update_query(limit=objects)
            response = await handler(request)
            if response.status != 200:
                return response
            text = await _read(response, PAGE_BYTES if objects > 1 else None)
            if text is None:
                self._page_objects[path] = max(1, objects // 4)
                continue
            if len(text) < PAGE_BYTES // 4:
                self._page_objects[path] = min(2 * objects, PAGE_OBJECTS)
            self._note_gap(request.url)
            response.content = cast(
                "aiohttp.StreamReader", _ProjectedBody(response.content, project_list(text))
            )
            return response


async def _read(response: aiohttp.ClientResponse, limit: int | None) -> bytearray | None:
    """The body; None as soon as it has more bytes than that."""
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if limit is not None and len(text) > limit:
            # Closed, not drained: what is left of the answer is not read.
            response.close()
            return None
    return text


class _Content:
    """In the place of a response's content: kopf reads from it, and aiohttp tells it that the connection is closed."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def exception(self) -> BaseException | None:
        return self._content.exception()

    def set_exception(self, *error: Any) -> None:
        self._content.set_exception(*error)


class _ProjectedLines(_Content):
    """What is kept of each line of a watch, one at a time."""

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        begun = bytearray()
        async for chunk in self._content.iter_any():
            first, *others = chunk.split(b"\n")
            begun += first
            for other in others:
                if begun:
                    yield project_event(begun) + b"\n"
                begun = bytearray(other)
        # What has no end was cut off with the connection. The next watch begins with it.


class _ProjectedBody(_Content):
    """What is kept of a page."""

    def __init__(self, content: aiohttp.StreamReader, text: bytes) -> None:
        super().__init__(content)
        self._text = text

    async def read(self) -> bytes:
        return self._text
