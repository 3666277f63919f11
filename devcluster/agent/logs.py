"""The kubelet's HTTPS endpoint, as far as ``kubectl logs`` and readiness checks need it."""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from aiohttp import web

#: Seconds between two reads of a followed log.
FOLLOW_SECONDS = 0.1
CHUNK = 64 * 1024
#: Options that this endpoint supports; any other is refused rather than ignored.
OPTIONS = frozenset({"follow", "tailLines", "limitBytes", "previous"})


class LogSource(Protocol):
    """A pod whose containers write logs."""

    @property
    def over(self) -> bool: ...

    def log(self, container: str, *, previous: bool = False) -> Path: ...


class LogServer:
    """Serves ``/containerLogs/{namespace}/{pod}/{container}`` to clients with a certificate of the cluster's CA."""

    def __init__(self, pods: Mapping[tuple[str, str], LogSource]) -> None:
        self._pods = pods

    async def start(self, *, port: int, certificate: str, key: str, authority: str) -> web.AppRunner:
        """Listens on loopback; clean up the runner to end it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_get("/healthz", _healthy)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        return runner

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if strange := set(request.query) - OPTIONS:
            return web.Response(
                status=501,
                text=f"the local node agent's logs have no option {', '.join(sorted(strange))}\n",
            )
        where = request.match_info
        pod = self._pods.get((where["namespace"], where["pod"]))
        if pod is None:
            return web.Response(status=404, text=f"pod {where['pod']} is not on a local node\n")
        try:
            path = pod.log(where["container"], previous=request.query.get("previous") == "true")
        except KeyError:
            return web.Response(status=404, text=f"no container {where['container']} in pod {where['pod']}\n")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        limit = int(request.query["limitBytes"]) if "limitBytes" in request.query else None
        lines = int(request.query["tailLines"]) if "tailLines" in request.query else None
        with contextlib.suppress(ConnectionError):
            await _stream(response, path, pod, lines, limit, follow=request.query.get("follow") == "true")
        return response


async def _stream(
    response: web.StreamResponse,
    path: Path,
    pod: LogSource,
    lines: int | None,
    limit: int | None,
    *,
    follow: bool,
) -> None:
    position = tail_position(path, lines) if lines is not None else 0
    left = limit
    while True:
        over = pod.over  # checked before reading: everything written until then is read below
        while chunk := _read(path, position, CHUNK if left is None else min(CHUNK, left)):
            await response.write(chunk)
            position += len(chunk)
            left = None if left is None else left - len(chunk)
        if not follow or over or left == 0:
            return
        await asyncio.sleep(FOLLOW_SECONDS)


def _read(path: Path, position: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(size)
    except FileNotFoundError:  # not started yet
        return b""


def tail_position(path: Path, lines: int, *, block: int = CHUNK) -> int:
    """Offset at which the last ``lines`` lines begin; reads blocks from the end, as logs may be long."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        end = file.seek(0, 2)
        if lines == 0:
            return end
        # the line break at the very end closes the last line and begins none
        position, wanted, first = end, lines, True
        while position > 0:
            size = min(block, position)
            position -= size
            file.seek(position)
            content = file.read(size)
            stop = len(content) - 1 if first and content.endswith(b"\n") else len(content)
            first = False
            while (found := content.rfind(b"\n", 0, stop)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return position + found + 1
                stop = found
    return 0


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok")
