"""The HTTP endpoints of the operator's pod: /healthz and /readyz on one port, /metrics on another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from time import monotonic

from aiohttp import web

from finetune_operator.runtime.metrics import CONTENT_TYPE, OperatorMetrics

log = logging.getLogger(__name__)

#: Share of the time that rendering of metrics may take.
_RENDERING = 0.1


class ProbeServer:
    """Serves the endpoints until stopped.

    Args:
        healthy: problems for /healthz; the kubelet restarts the container if there are any.
        ready: problems for /readyz: why the process neither leads nor could lead at once. Which one leads is a metric.
        metrics_tls: TLS of /metrics; None: plain HTTP.
    """

    def __init__(
        self,
        *,
        healthy: Callable[[], tuple[str, ...]],
        ready: Callable[[], tuple[str, ...]],
        metrics: OperatorMetrics,
        metrics_tls: SSLContext | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._healthy = healthy
        self._ready = ready
        self._metrics = metrics
        self._metrics_tls = metrics_tls
        self._clock = clock
        self._rendered, self._stale = b"", float("-inf")
        self._rendering = asyncio.Lock()
        self._runners: list[web.AppRunner] = []

    async def start(self, host: str, health_port: int, metrics_port: int) -> tuple[int, int]:
        """Starts to listen and returns both ports; 0 selects a free one. Raises OSError if a port is in use."""
        health = await self._serve(
            host, health_port, {"/healthz": self._answer(self._healthy), "/readyz": self._answer(self._ready)}
        )
        metrics = await self._serve(host, metrics_port, {"/metrics": self._render}, self._metrics_tls)
        log.info("health on port %d, metrics on port %d", health, metrics)
        return health, metrics

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(
        self, host: str, port: int, routes: "dict[str, Handler]", tls: SSLContext | None = None
    ) -> int:
        app = web.Application()
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        # No access log: probes every few seconds carry no information.
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    def _answer(self, probe: Callable[[], tuple[str, ...]]) -> "Handler":
        async def handler(_request: web.Request) -> web.Response:
            problems = probe()
            text = "".join(f"{problem}\n" for problem in problems or ("ok",))
            return web.Response(status=503 if problems else 200, text=text)

        return handler

    async def _render(self, _request: web.Request) -> web.Response:
        """Renders anew after nine times as long as the last rendering took, and once for all who ask meanwhile.

        It needs the event loop, which also renews the Lease: a client of the port must not occupy it.
        """
        async with self._rendering:
            if (begun := self._clock()) >= self._stale:
                self._rendered = await self._metrics.render()
                ended = self._clock()
                self._stale = ended + (ended - begun) * (1 / _RENDERING - 1)
        return web.Response(body=self._rendered, headers={"Content-Type": CONTENT_TYPE})


type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
