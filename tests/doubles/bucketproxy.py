"""A proxy in front of the object store that enforces each account's roles, as Cloud Storage does.

Requests without permission are answered with 403.

    with BucketProxy(grants) as store, LocalCluster.started(folder, store=store.url) as cluster:
        store.serve(cluster.gcs)
        …everything that the operator and stages read and write passes through it, each under its own account

An account is part of the endpoint's path, which the node gives to each pod: there is no metadata server here that would
issue tokens. The proxy runs in a thread of the caller's process.
"""

import asyncio
import io
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from yarl import URL

from devcluster import gcs
from tests.doubles.bucket_iam import BUCKET, Grant, ResourcePermission, is_granted, required_permissions

#: Headers that apply to one connection only, or that are set again.
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCheck:
    """One permission check of an account's request."""

    account: str
    need: ResourcePermission
    allowed: bool

    def __str__(self) -> str:
        need = self.need
        answer = "allowed" if self.allowed else "denied"
        return f"{self.account}: {need.permission} on {need.bucket}/{need.name} {answer}"


class BucketProxy:
    """A context manager.

    Args:
        grants: the initial IAM policy; ``grant`` adds to it.
    """

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants = list(grants)
        self._upstream = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bucket proxy", daemon=True)
        self._sessions: dict[str, str] = {}
        self._held: dict[tuple[str, str], asyncio.Event] = {}
        self._port = 0
        self.accesses: deque[AccessCheck] = deque()
        """All permission checks, in order."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """URL of the proxy, for LocalCluster.started."""
        return f"http://127.0.0.1:{self._port}"

    def endpoint(self, account: str) -> str:
        """The store's endpoint for ``namespace/serviceaccount``."""
        return gcs.account_endpoint(self.url, *account.split("/"))

    def serve(self, upstream: str) -> None:
        """Forwards requests to the store at ``upstream`` from now on."""
        self._upstream = upstream

    def grant(self, *grants: Grant) -> None:
        self._grants += grants

    @contextmanager
    def withdrawn(self, account: str, bucket: str, folder: str) -> Iterator[None]:
        """Inside the block the account has no role on the folder."""
        before = self._grants
        self._grants = [
            each for each in before if (each.account, each.bucket, each.folder) != (account, bucket, folder)
        ]
        try:
            yield
        finally:
            self._grants = before

    @contextmanager
    def held(self, bucket: str, folder: str) -> Iterator[None]:
        """Inside the block no request for a name below ``folder`` is answered."""
        gate = self._held[bucket, folder] = asyncio.Event()
        try:
            yield
        finally:
            del self._held[bucket, folder]
            self._loop.call_soon_threadsafe(gate.set)

    @property
    def denied(self) -> list[AccessCheck]:
        return [access for access in self.accesses if not access.allowed]

    # --- internals ------------------------------------------------------------------------------------------

    def _run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )
        app = web.Application(client_max_size=1 << 32)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        await asyncio.sleep(0)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        head, _, query = request.raw_path.partition("?")
        _, marker, namespace, name, *rest = [*head.split("/"), "", "", ""]
        account, path = f"{namespace}/{name}", "/" + "/".join(rest).rstrip("/")
        if marker != gcs.ACCOUNTS or not self._upstream:
            return _error(503, "no account, or the store behind the proxy has not started")
        body = await request.read()
        session = request.query.get("upload_id")
        if session is not None and self._sessions.get(session) == account:
            # checked when the upload began
            return await self._forward(request, account, path, query, body)
        asked = required_permissions(request.method, path, request.query, body)
        await self._released(asked)
        for need in asked:
            if not self._allowed(account, need):
                return _forbidden(account, need)
        return await self._forward(request, account, path, query, body)

    def _allowed(self, account: str, need: ResourcePermission) -> bool:
        allowed = is_granted(self._grants, account, need)
        self.accesses.append(AccessCheck(account=account, need=need, allowed=allowed))
        return allowed

    async def _released(self, asked: Iterable[ResourcePermission]) -> None:
        for (bucket, folder), gate in list(self._held.items()):
            if any(need.bucket == bucket and need.name.startswith(folder) for need in asked):
                await gate.wait()

    async def _forward(
        self, request: web.Request, account: str, path: str, query: str, body: bytes
    ) -> web.Response:
        url = f"{self._upstream}{path}" + (f"?{query}" if query else "")
        headers = _passed_on(request.headers)
        # as a file: large bytes would be sent at once
        data = io.BytesIO(body) if body else None
        async with self._session.request(
            request.method, URL(url, encoded=True), headers=headers, data=data
        ) as answer:
            content = await answer.read()
        passed = _passed_on(answer.headers)
        own = self.endpoint(account)
        if location := passed.get("Location"):
            passed["Location"] = location.replace(self._upstream, own)
            if session := URL(location).query.get("upload_id"):
                self._sessions[session] = account
        if answer.content_type == "application/json" and request.query.get("alt") != "media":
            # links to objects, which clients follow
            content = content.replace(self._upstream.encode(), own.encode())
        return web.Response(status=answer.status, headers=passed, body=content)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}


def _forbidden(account: str, need: ResourcePermission) -> web.Response:
    """A refusal with Cloud Storage's message."""
    where = "bucket" if need.permission == BUCKET else "object"
    return _error(
        403,
        f"{account} does not have {need.permission} access to the Google Cloud Storage {where}. Permission "
        f"'{need.permission}' denied on resource (or it may not exist).",
    )


def _error(code: int, message: str) -> web.Response:
    reason = {403: "forbidden"}.get(code, "backendError")
    body = {
        "error": {
            "code": code,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
        }
    }
    return web.json_response(body, status=code)
