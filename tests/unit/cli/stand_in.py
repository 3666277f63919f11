"""A fake API server in a thread of its own, for commands that run in the thread of the test."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.typedefs import Handler

from tests.unit.cli.fake_api import FakeApi, serve

type Answer = Callable[[web.Request], web.Response | None]


class StandIn:
    """The server as a command sees it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.api = FakeApi()
        self.kubeconfig = folder / "kubeconfig"
        self.answer: Answer = lambda _request: None
        """Called before each request; its response takes the place of the server's."""
        self.interrupts = False
        """Whether the main thread gets Ctrl-C at the next request, which is never answered."""
        self.hangs = False
        """Whether no request is answered."""
        self._loop = loop

    @property
    def address(self) -> str:
        """Its URL."""
        return str(yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    def put(self, plural: str, manifest: dict[str, Any]) -> None:
        self._wait(self.api.put(plural, manifest))

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def before(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.interrupts:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        if self.interrupts or self.hangs:
            await asyncio.Event().wait()
        answer = self.answer(request)
        return await handler(request) if answer is None else answer


@contextmanager
def stand_in(folder: Path) -> Iterator[StandIn]:
    """Serves until the end of the block; ``folder`` gets the kubeconfig."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()
    server = StandIn(loop, folder)

    async def run() -> None:
        @web.middleware
        async def before(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await server.before(request, handler)

        async with serve(server.api, [before]) as configuration:
            server.kubeconfig.write_text(kubeconfig(configuration.host))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[run()])
    thread.start()
    try:
        ready.wait()
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def kubeconfig(server: str, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    """A kubeconfig with one context, ``test``, of namespace ``team-a``."""
    context = {"cluster": "test", "user": "test", "namespace": "team-a"}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, **cluster}}],
            "contexts": [{"name": "test", "context": context}],
            "users": [{"name": "test", "user": {"token": "none"} if user is None else user}],
        }
    )
