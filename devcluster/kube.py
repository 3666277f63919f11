"""A thin asyncio client for the Kubernetes API: plain dicts in, plain dicts out.

The node agent patches statuses and watches objects whose fields may be newer than any generated model, so it calls the
API the way kubectl does: by path, with dicts. One session per client; close it.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

type Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
#: Seconds after which the API server ends a watch; a fresh list follows, which recovers missed changes.
WATCH_SECONDS = 300


class KubeError(Exception):
    """The API server's refusal: HTTP status, reason and message, as in its Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """API path of the objects of one kind: ``/api/v1/…/pods`` or ``/apis/<group>/<version>/…``."""

    api_version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        middle = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "")


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change seen by ``watch``: ADDED, MODIFIED, DELETED, or SYNCED with every object that exists now."""

    type: str
    objects: Sequence[Object]


class Kube:
    """A client with the identity of one kubeconfig file."""

    def __init__(self, server: str, context: ssl.SSLContext, token: str | None = None) -> None:
        self.server = server
        self.context = context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._kinds: dict[str, dict[str, Resource]] = {}

    @classmethod
    def of(cls, kubeconfig: Path) -> Self:
        """A client for the current context of ``kubeconfig``, which names its certificates as files."""
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        if "client-certificate" in user:
            tls.load_cert_chain(user["client-certificate"], user["client-key"])
        return cls(cluster["server"], tls, user.get("token"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self.context, limit=64)
            # trust_env stays off: loopback must never go through a proxy
            self._session = aiohttp.ClientSession(
                self.server,
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=30),
            )
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One API call; returns the decoded answer.

        Raises KubeError for a refusal, aiohttp.ClientError if there is no answer.
        """
        data = None if body is None else json.dumps(body, ensure_ascii=False)
        headers = {"Content-Type": content_type} if body is not None else None
        async with self.session().request(method, path, data=data, params=params, headers=headers) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise _refusal(answer.status, text)
            return _decoded(text)

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def find(self, path: str) -> Object | None:
        """The object; None if there is none."""
        try:
            return await self.get(path)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, path: str, **params: str) -> list[Object]:
        return list((await self.request("GET", path, params=params))["items"])

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, content_type: str = MERGE) -> Object:
        return await self.request("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, *, options: Object | None = None) -> None:
        """Requests deletion; an object that is already gone is no error."""
        try:
            await self.request("DELETE", path, options)
        except KubeError as error:
            if error.status != 404:
                raise

    async def apply(self, manifest: Object, *, manager: str = "devcluster") -> Object:
        """Server-side apply of a whole manifest; takes over fields from other field managers."""
        resource = await self.resource(manifest["apiVersion"], manifest["kind"])
        meta = manifest["metadata"]
        return await self.request(
            "PATCH",
            resource.path(meta.get("namespace"), meta["name"]),
            manifest,
            params={"fieldManager": manager, "force": "true", "fieldValidation": "Strict"},
            content_type=APPLY,
        )

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Discovers the resource of ``kind``. Raises KubeError 404 if the server does not have it."""
        if kind not in self._kinds.get(api_version, {}):
            root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            self._kinds[api_version] = {
                entry["kind"]: Resource(
                    api_version=api_version, plural=entry["name"], namespaced=entry["namespaced"]
                )
                for entry in (await self.get(root))["resources"]
                if "/" not in entry["name"]
            }
        try:
            return self._kinds[api_version][kind]
        except KeyError:
            raise KubeError(404, "NotFound", f"no kind {kind} in {api_version}") from None

    async def watch(self, path: str, **selectors: str) -> AsyncGenerator[WatchEvent]:
        """Lists and then watches; starts again from the list whenever the stream ends. Never returns.

        The first event is SYNCED with all objects, and so is the first after each interruption: callers that keep state
        must compare against it, as deletions may have been missed.
        """
        while True:
            try:
                listed = await self.request("GET", path, params=selectors)
                yield WatchEvent("SYNCED", listed["items"])
                version = listed["metadata"]["resourceVersion"]
                # a caller that stops iterating must not leave the connection open until garbage collection
                async with contextlib.aclosing(self._stream(path, selectors, version)) as events:
                    async for event in events:
                        yield event
            except (aiohttp.ClientError, TimeoutError, KubeError, json.JSONDecodeError):
                await asyncio.sleep(0.5)

    async def _stream(
        self, path: str, selectors: Mapping[str, str], version: str
    ) -> AsyncGenerator[WatchEvent]:
        params = {
            **selectors,
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SECONDS + 30)
        async with self.session().get(path, params=params, timeout=timeout) as answer:
            if answer.status >= 400:
                raise _refusal(answer.status, await answer.text())
            try:
                rest = b""
                # chunks rather than lines: aiohttp refuses a line longer than its buffer, and an object may be long
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        change = json.loads(line)
                        if change["type"] == "ERROR":
                            status = change["object"]
                            raise KubeError(
                                status.get("code", 500), status.get("reason", ""), status.get("message", "")
                            )
                        yield WatchEvent(change["type"], (change["object"],))
            finally:
                # a watch has no regular end: a graceful close may outlive the loop
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()


def _refusal(status: int, text: str) -> KubeError:
    try:
        body = json.loads(text)
        return KubeError(status, body.get("reason", ""), body.get("message", text))
    except (ValueError, AttributeError):
        return KubeError(status, "", text.strip())


def _decoded(text: str) -> Object:
    decoded: Object = json.loads(text) if text else {}
    return decoded
