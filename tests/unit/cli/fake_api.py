"""A small API server for the command line: jobs and pods with list, watch and logs, over real HTTP.

Tests change objects through it and thereby decide what a watch sees and when.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from kubernetes.aio.client import Configuration

type Object = dict[str, Any]


class FakeApi:
    """Objects by (plural, name); every open watch hears of every change."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.logs: dict[str, str] = {}
        self.lists: list[str] = []
        """Query string of every list."""
        self.edits: list[tuple[str, Object, str]] = []
        """Name, merge patch and impersonated user of every edit."""
        self.refuse: int | None = None
        """Status code that every request gets."""
        self.absent: frozenset[str] = frozenset()
        """Resources that the server does not know."""
        self._version = 100
        self._watches: list[tuple[str, asyncio.Queue[Object | None]]] = []
        self._read: list[str] = []
        self._changed = asyncio.Event()

    async def put(self, plural: str, manifest: Object) -> None:
        key = (plural, manifest["metadata"]["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = manifest
        self._tell(plural, {"type": kind, "object": manifest})

    async def delete(self, plural: str, name: str) -> None:
        gone = self.objects.pop((plural, name))
        self._tell(plural, {"type": "DELETED", "object": gone})

    def send(self, plural: str, event: Object) -> None:
        """Any other event: BOOKMARK, ERROR."""
        self._tell(plural, event)

    def break_watches(self) -> None:
        """End every open watch, as a restart of the server does."""
        for _, queue in self._watches:
            queue.put_nowait(None)

    async def watched(self, plural: str, times: int = 1) -> None:
        """Returns once that many watches of the resource are open."""
        while sum(1 for watched, _ in self._watches if watched == plural) < times:
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, plural: str, event: Object) -> None:
        for watched, queue in self._watches:
            if watched == plural:
                queue.put_nowait(json.loads(json.dumps(event)))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.refuse:
            return web.json_response({"kind": "Status", "message": "no"}, status=self.refuse)
        plural, name = request.match_info["plural"], request.match_info.get("name")
        if plural in self.absent:
            return web.json_response({"kind": "Status", "message": "no such resource"}, status=404)
        if name is not None:
            found = self.objects.get((plural, name))
            missing = {"kind": "Status", "message": f"{plural} {name} not found"}
            return web.json_response(found) if found else web.json_response(missing, status=404)
        if request.query.get("watch") == "true":
            return await self._watch(request, plural)
        self.lists.append(request.query_string)
        return web.json_response(self._page(plural, request))

    def _page(self, plural: str, request: web.Request) -> Object:
        items = [item for (kind, _), item in self.objects.items() if kind == plural]
        begin, limit = (
            int(request.query.get("continue", 0)),
            int(request.query.get("limit", 0)) or len(items),
        )
        metadata = {"resourceVersion": str(self._version)}
        if begin + limit < len(items):
            metadata["continue"] = str(begin + limit)
        page = items[begin : begin + limit]
        if "as=PartialObjectMetadataList" in request.headers["Accept"]:
            page = [{"metadata": each["metadata"]} for each in page]
        return {"metadata": metadata, "items": page}

    async def discover(self, request: web.Request) -> web.StreamResponse:
        """The resources that objects are of, for every group."""
        if self.refuse:
            return await self.handle(request)
        known = {plural for plural, _ in self.objects} - self.absent
        return web.json_response({"resources": [{"name": each} for each in sorted(known)]})

    async def review(self, request: web.Request) -> web.StreamResponse:
        """Everything is allowed."""
        if self.refuse:
            return await self.handle(request)
        return web.json_response({"status": {"allowed": True}}, status=201)

    async def edit(self, request: web.Request) -> web.Response:
        """Merges a patch, as far as its depth is that of ``spec.retry``."""
        plural, name = request.match_info["plural"], request.match_info["name"]
        patch = await request.json()
        self.edits.append((name, patch, request.headers.get("Impersonate-User", "")))
        found = self.objects[plural, name]
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            return web.json_response(
                {"kind": "Status", "reason": "Conflict", "message": "changed"}, status=409
            )
        await self.put(plural, found | {"spec": found["spec"] | patch["spec"]})
        return web.json_response(self.objects[plural, name])

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Object | None] = asyncio.Queue()
        entry = (plural, queue)
        self._watches.append(entry)
        self._changed.set()
        try:
            while (event := await queue.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self._watches.remove(entry)
        return response

    async def log(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._read.append(name)
        self._changed.set()
        return web.Response(text=self.logs[name])

    async def logs_read(self, pod: str) -> None:
        """Returns once the pod's log was asked for."""
        while pod not in self._read:
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def serve(api: FakeApi, middlewares: Sequence[Middleware] = ()) -> AsyncIterator[Configuration]:
    """A client configuration for the server, which ends with the block."""
    app = web.Application(middlewares=middlewares)
    for prefix in ("/api/v1", "/apis/apps/v1", "/apis/tpu-finetune.dev/v1alpha1"):
        base = f"{prefix}/namespaces/{{namespace}}"
        app.router.add_get(f"{prefix}/{{plural}}", api.handle)
        app.router.add_get(f"{base}/{{plural}}", api.handle)
        app.router.add_patch(f"{base}/{{plural}}/{{name}}", api.edit)
        app.router.add_get(f"{base}/{{plural}}/{{name}}", api.handle)
        app.router.add_get(f"{base}/{{plural}}/{{name}}/log", api.log)
    app.router.add_get("/apis/{group}/{version}", api.discover)
    app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", api.review)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield configuration
    finally:
        api.break_watches()
        await runner.cleanup()
