"""An HTTP proxy that runs in a thread of the caller's process."""

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

#: Headers that apply to one connection only, or that are set again.
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})


class Proxy(ABC):
    """A context manager: inside the block, :meth:`answer` answers all requests to ``port``.

    Args:
        name: name of the thread.
        body_bytes: maximum size of a request's body.
        upstream: TLS of the requests to the server behind the proxy; None: plain HTTP.
        serving: TLS of the proxy itself; None: plain HTTP.
    """

    session: aiohttp.ClientSession

    def __init__(
        self,
        name: str,
        *,
        body_bytes: int,
        upstream: ssl.SSLContext | None = None,
        serving: ssl.SSLContext | None = None,
    ) -> None:
        self._body_bytes, self._upstream_tls, self._serving_tls = body_bytes, upstream, serving
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @abstractmethod
    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one request, in the proxy's thread."""

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` in the proxy's thread and waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def open(self, gate: asyncio.Event) -> None:
        """Sets an event that answers wait for."""
        self.loop.call_soon_threadsafe(gate.set)

    async def _start(self) -> None:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._upstream_tls or True),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )
        app = web.Application(client_max_size=self._body_bytes)
        app.router.add_route("*", "/{path:.*}", self.answer)
        # The streams of a killed client end with it.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._serving_tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stops to answer, in the proxy's thread."""
        await self._runner.cleanup()
        await self.session.close()
        # Cancelled streams close their sockets in the next iteration of the loop.
        await asyncio.sleep(0)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a proxy passes on."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}
