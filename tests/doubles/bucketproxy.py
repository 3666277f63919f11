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
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from yarl import URL

from devcluster import gcs
from tests.doubles.bucket_iam import BUCKET, Grant, ResourcePermission, is_granted, required_permissions
from tests.doubles.proxy import Proxy, end_to_end


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


class BucketProxy(Proxy):
    """A context manager.

    Args:
        grants: the initial IAM policy; ``grant`` adds to it.
    """

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        super().__init__("bucket proxy", body_bytes=1 << 32)
        self._grants = list(grants)
        self._upstream = ""
        self._sessions: dict[str, str] = {}
        self._held: dict[tuple[str, str], asyncio.Event] = {}
        self.accesses: deque[AccessCheck] = deque()
        """All permission checks, in order."""

    @property
    def url(self) -> str:
        """URL of the proxy, for LocalCluster.started."""
        return f"http://127.0.0.1:{self.port}"

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
            self.open(gate)

    @property
    def denied(self) -> list[AccessCheck]:
        return [access for access in self.accesses if not access.allowed]

    # --- internals ------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
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
        headers = end_to_end(request.headers)
        # as a file: large bytes would be sent at once
        data = io.BytesIO(body) if body else None
        async with self.session.request(
            request.method, URL(url, encoded=True), headers=headers, data=data
        ) as answer:
            content = await answer.read()
        passed = end_to_end(answer.headers)
        own = self.endpoint(account)
        if location := passed.get("Location"):
            passed["Location"] = location.replace(self._upstream, own)
            if session := URL(location).query.get("upload_id"):
                self._sessions[session] = account
        if answer.content_type == "application/json" and request.query.get("alt") != "media":
            # links to objects, which clients follow
            content = content.replace(self._upstream.encode(), own.encode())
        return web.Response(status=answer.status, headers=passed, body=content)


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
