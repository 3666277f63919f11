"""A fake API server that serves what kopf requests: discovery, paged listings and watches.

As a program with the arguments PORT LISTED EVENTS, it lists LISTED FineTuneJobs of 1.3 MB each, which a tenant may
store, and sends EVENTS watch events about changes of the first.
"""

import asyncio
import itertools
import json
import os
import string
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi
from aiohttp import web

from finetune_operator.cluster.connect import ServiceAccountFolder

JOBS_PATH = "/apis/tpu-finetune.dev/v1alpha1/finetunejobs"
_GROUPS = {
    "apiextensions.k8s.io": ("v1", {"customresourcedefinitions": "CustomResourceDefinition"}),
    "tpu-finetune.dev": ("v1alpha1", {"finetunejobs": "FineTuneJob", "finetuneprofiles": "FineTuneProfile"}),
    "jobset.x-k8s.io": ("v1alpha2", {"jobsets": "JobSet"}),
}
_CORE = {"pods": "Pod", "namespaces": "Namespace", "events": "Event"}
_CLUSTER_SCOPED = ("customresourcedefinitions", "finetuneprofiles", "namespaces")


def large_job(number: int, labels: int = 60_000) -> dict[str, Any]:
    """Returns a job with many valid labels and the managedFields that the API server adds for them."""
    letters = string.ascii_lowercase + string.digits
    keys = ["".join(key) for key in itertools.islice(itertools.product(letters, repeat=4), labels)]
    owned = {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in keys}}}}
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {
            "name": f"large-{number}",
            "namespace": "team-a",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "generation": 1,
            "resourceVersion": "1",
            "labels": dict.fromkeys(keys, ""),
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": owned}],
        },
        "spec": {"model": {"uri": "gs://models/tiny"}},
    }


class WatchedApi:
    """The fake server.

    Args:
        listed: returns the FineTuneJobs from the first index up to the second (exclusive) as JSON.
        count: number of FineTuneJobs.
        events: returns the lines of the watch of FineTuneJobs.
        cut: whether the first watch of FineTuneJobs ends after these lines.
        expired: whether the first continue token of FineTuneJobs has expired when it is used.
        lags: whether the first request for a page of FineTuneJobs fails because the server's own cache is behind etcd.
        children: other collections by path, each like ``listed`` and ``count``.
    """

    def __init__(
        self,
        listed: Callable[[int, int], Iterable[str]],
        count: int,
        events: Callable[[], Iterable[str]] = tuple,
        children: Mapping[str, tuple[Callable[[int, int], Iterable[str]], int]] | None = None,
        *,
        cut: bool = False,
        expired: bool = False,
        lags: bool = False,
    ) -> None:
        self._cut = cut
        self._expired = expired
        self._lags = lags
        self._collections = {JOBS_PATH: (listed, count), **(children or {})}
        self._events = events
        self.version = 1
        """Resource version of all collections: that of the last event."""
        self.restored: int | None = None
        """The version to which the data are set back when the first watch is cut."""
        self.writes: list[str] = []
        self.pages: list[int] = []
        """The limit in each request for a page of FineTuneJobs, apart from those for the version alone."""
        self.watches: list[Mapping[str, str]] = []
        """The query of each request to watch FineTuneJobs."""
        self.bookmark = asyncio.Event()
        """Every watch ends with a bookmark, at version 12, once this is set."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if request.method != "GET":
            self.writes.append(f"{request.method} {path} {await request.text()}")
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        found = _discovered(path)
        if found is not None:
            return web.json_response(found)
        if "watch" in request.query:
            return await self._watch(request)
        if path not in self._collections:
            head = {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": []}
            return web.json_response(head)
        if self._expired and path == JOBS_PATH and "continue" in request.query:
            self._expired = False
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        if self._lags and path == JOBS_PATH:
            self._lags = False
            message = "Too large resource version: 12, current: 1"
            status = {"kind": "Status", "code": 504, "reason": "Timeout", "message": message}
            return web.json_response(status, status=504)
        return self._page(path, int(request.query["limit"]), int(request.query.get("continue", 0)))

    def _page(self, path: str, limit: int, begin: int) -> web.Response:
        listed, count = self._collections[path]
        if path == JOBS_PATH and not (limit == 1 and self.watches):
            self.pages.append(limit)
        end = min(begin + limit, count)
        metadata = {"resourceVersion": str(self.version), "continue": str(end) if end < count else ""}
        # kopf adds apiVersion and kind of the items from those of the list.
        head = {"kind": "AnyList", "apiVersion": "any/v1", "metadata": metadata}
        items = ",".join(listed(begin, end))
        text = f'{json.dumps(head)[:-1]},"items":[{items}]}}'
        return web.Response(text=text, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        if request.path == JOBS_PATH:
            self.watches.append(request.query)
            for line in self._events():
                await stream.write(line.encode() + b"\n")
                metadata = json.loads(line)["object"].get("metadata", {})
                self.version = int(metadata.get("resourceVersion", self.version))
                await asyncio.sleep(0.02)
            if self._cut and len(self.watches) == 1:
                self.version = self.restored or self.version
                return stream
        await self.bookmark.wait()
        self.version = 12
        await stream.write(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}\n')
        return stream


def _discovered(path: str) -> dict[str, Any] | None:
    def group(name: str) -> dict[str, Any]:
        version = {"groupVersion": f"{name}/{_GROUPS[name][0]}", "version": _GROUPS[name][0]}
        return {"name": name, "versions": [version], "preferredVersion": version}

    def resources(kinds: dict[str, str]) -> dict[str, Any]:
        verbs = ["get", "list", "watch", "patch"]
        return {
            "resources": [
                {
                    "name": name,
                    "singularName": "",
                    "kind": kind,
                    "namespaced": name not in _CLUSTER_SCOPED,
                    "verbs": verbs,
                }
                for name, kind in kinds.items()
            ]
        }

    found: dict[str, dict[str, Any]] = {
        "/api": {"versions": ["v1"]},
        "/api/v1": resources(_CORE),
        "/apis": {"groups": [group(name) for name in _GROUPS]},
    }
    for name, (version, kinds) in _GROUPS.items():
        found[f"/apis/{name}"] = group(name)
        found[f"/apis/{name}/{version}"] = resources(kinds)
    return found.get(path)


@dataclass(frozen=True, slots=True)
class Account(ServiceAccountFolder):
    """The service account for a server without TLS."""

    url: str = ""

    @property
    def ca(self) -> Path:
        """Any valid file: the connection does not use TLS."""
        return Path(certifi.where())

    def token(self) -> str:
        return "token"

    def server(self, environ: Mapping[str, str] = os.environ) -> str:
        return self.url


def serve(port: int, listed: int, events: int) -> None:
    text = json.dumps(large_job(0), separators=(",", ":"))

    def job(number: int) -> str:
        return text.replace('"large-0"', f'"large-{number}"').replace(f'{0:012d}"', f'{number:012d}"')

    def lines() -> Iterable[str]:
        for version in range(2, events + 2):
            changed = text.replace('"resourceVersion":"1"', f'"resourceVersion":"{version}"')
            yield f'{{"type":"MODIFIED","object":{changed}}}'

    api = WatchedApi(lambda begin, end: map(job, range(begin, end)), listed, lines)
    web.run_app(api.app(), host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
