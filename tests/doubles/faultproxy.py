"""A proxy between one client and the API server that injects network and server faults.

    with FaultProxy(cluster.state, cluster.ports["kube-apiserver"], choose) as proxy:
        …a client of https://127.0.0.1:{proxy.port}, with the cluster's CA and its own token…

``choose`` gets each request before it is forwarded and may return a fault for it. Watches are streamed. They can be
delayed, reset, or ended as by a server that has compacted their version. The proxy runs in a thread of the caller's
process.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web

from devcluster.layout import StateFolder
from tests.doubles.proxy import Proxy, end_to_end

#: What differs between two attempts at the same write.
_MOVING = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)|\"(resourceVersion|lastUpdateTime)\": ?\"[^\"]*\"")
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedRequest:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def watches(self) -> bool:
        return self.query.get("watch", "") not in ("", "false", "0")

    @property
    def what(self) -> tuple[str, str, bytes]:
        """A key that is equal for two attempts at the same request: times and versions in the body do not count."""
        return self.method, self.path, _MOVING.sub(b"", self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """The fault of one request."""

    done: bool
    """Whether the API server has processed the request before the fault."""
    status: int | None = None
    """The answer instead of the server's own; None: the connection is reset."""
    retry_after: int | None = None
    """Seconds that the answer asks the client to wait."""
    act: Callable[[], None] | None = None
    """Called at that moment, for example to kill the client."""


class FaultProxy(Proxy):
    """A context manager.

    Args:
        state: the cluster's files, whose certificates the proxy uses, too.
        server: the API server's port.
        choose: called for every request except those that open a watch, one at a time.
    """

    def __init__(
        self, state: StateFolder, server: int, choose: Callable[[ProxiedRequest], InjectedFault | None]
    ) -> None:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(state.pki / "tls.crt", state.pki / "tls.key")
        upstream = ssl.create_default_context(cafile=str(state.pki / "ca.crt"))
        super().__init__("fault proxy", body_bytes=1 << 24, upstream=upstream, serving=serving)
        self._server = f"https://127.0.0.1:{server}"
        self._choose = choose
        self._streams: dict[asyncio.Task[Any], str] = {}
        self._gaps: dict[str, asyncio.Event] = {}
        self._lags: Mapping[str, float] = {}
        self._held: dict[str, asyncio.Event] = {}

    def forget(self, path: str) -> None:
        """Ends the watches of that collection with 410, and blocks lists and watches of it until ``remember``."""
        self.run(self._forget(path))

    def remember(self, path: str) -> None:
        """Ends the gap that ``forget`` began."""
        self.open(self._gaps.pop(path))

    def delay(self, lags: Mapping[str, float]) -> None:
        """Delays what the watches of these collections deliver by so many seconds from now on; others are prompt."""
        self._lags = lags

    def cut(self, path: str) -> None:
        """Resets the connections of the watches of that collection."""
        self.run(self._cut(path))

    @contextmanager
    def held(self, text: str) -> Iterator[None]:
        """Inside the block no request is answered that contains ``text`` in its path or body."""
        gate = self._held[text] = asyncio.Event()
        try:
            yield
        finally:
            del self._held[text]
            self.open(gate)

    # --- internals ------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        for stream in self._streams:
            stream.cancel()
        await super().stop()

    async def _forget(self, path: str) -> None:
        self._gaps[path] = asyncio.Event()
        await self._cut(path)

    async def _cut(self, path: str) -> None:
        for stream, watched in self._streams.items():
            if watched == path:
                stream.cancel()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except aiohttp.ClientConnectionError:
            # the API server is away, or has ended while it answered
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = ProxiedRequest(
            method=request.method, path=request.path, query=dict(request.query), body=await request.read()
        )
        if not call.writes and (gap := self._gaps.get(call.path)):
            await gap.wait()
        for text, gate in list(self._held.items()):
            if text in call.path or text.encode() in call.body:
                await gate.wait()
        if call.watches:
            return await self._watch(request, call)
        fault = self._choose(call)
        if fault and not fault.done:
            return self._strike(request, fault)
        async with self._forward(request, call) as answer:
            content = await answer.read()
        if fault:
            return self._strike(request, fault)
        return web.Response(status=answer.status, headers=end_to_end(answer.headers), body=content)

    async def _copy(self, source: aiohttp.StreamReader, target: web.StreamResponse, path: str) -> None:
        """Passes on the chunks in their order, each after the collection's delay."""
        chunks: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

        async def read() -> None:
            async for chunk in source.iter_any():
                chunks.put_nowait((self.loop.time() + self._lags.get(path, 0.0), chunk))
            chunks.put_nowait(None)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(read())
                while (received := await chunks.get()) is not None:
                    due, chunk = received
                    await asyncio.sleep(due - self.loop.time())
                    await target.write(chunk)
        except* aiohttp.ClientError:
            pass  # either side has ended: a client that was killed, or the API server

    def _forward(self, request: web.Request, call: ProxiedRequest) -> "aiohttp.client._RequestContextManager":
        headers = end_to_end(request.headers)
        return self.session.request(
            call.method, f"{self._server}{request.raw_path}", headers=headers, data=call.body or None
        )

    def _strike(self, request: web.Request, fault: InjectedFault) -> web.StreamResponse:
        if fault.act is not None:
            fault.act()
        if fault.status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else None
        return web.json_response(_status(fault.status), status=fault.status, headers=headers)

    async def _watch(self, request: web.Request, call: ProxiedRequest) -> web.StreamResponse:
        async with self._forward(request, call) as answer:
            response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
            await response.prepare(request)
            stream = asyncio.ensure_future(self._copy(answer.content, response, call.path))
            self._streams[stream] = call.path
            try:
                await asyncio.wait({stream})
            finally:
                del self._streams[stream]
                stream.cancel()
                # a watch has no regular end: a graceful close may outlive the loop
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()
            if stream.cancelled() and call.path in self._gaps:
                error = {"type": "ERROR", "object": _status(410)}
                await response.write(json.dumps(error).encode() + b"\n")
        return response


def _status(code: int) -> dict[str, object]:
    """The body of a refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"fault injected by the test: {HTTPStatus(code).phrase}",
        "reason": _REASONS[code],
        "code": code,
    }
