"""The operator's client by path: what the cluster, its node agent and tests call of the Kubernetes API.

They patch statuses and watch objects of any kind, so an object is named by its path, as by ``kubectl get --raw``.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kubernetes.aio.client import Configuration

from finetune_operator.cluster.kubeconfig import read_kubeconfig
from finetune_operator.cluster.port import ClusterError, NotFound, ResourceKind
from finetune_operator.cluster.requests import JSON, CallLimits, Request
from finetune_operator.cluster.streams import SILENCE_SECONDS, StreamingClient
from finetune_operator.objects import Object

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
#: A cluster of one user: a collection is read as a whole, however large it is.
_LIMITS = CallLimits(read_seconds=30, answer_bytes=1 << 30, large_answers=64)


@dataclass(frozen=True)
class _Call(Request):
    """A call by its path, which is in ``kind.plural``."""

    media_type: str = JSON

    @property
    def path(self) -> str:
        return self.kind.plural

    @property
    def content_type(self) -> str:
        return self.media_type


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change seen by ``watch``: ADDED, MODIFIED, DELETED, or SYNCED with every object that exists now."""

    type: str
    objects: Sequence[Object]


class Kube:
    """A client with the identity of one kubeconfig file. Calls raise ClusterError."""

    def __init__(self, configuration: Configuration) -> None:
        self.client = StreamingClient(configuration, limits=_LIMITS)
        self._kinds: dict[str, dict[str, ResourceKind]] = {}

    @classmethod
    def of(cls, kubeconfig: Path) -> Self:
        """A client for the current context of ``kubeconfig``, which names its certificates as files."""
        content = read_kubeconfig(str(kubeconfig))
        context = content.context(content.current, None)
        configuration = Configuration(host=context.cluster["server"])
        configuration.ssl_ca_cert = context.cluster["certificate-authority"]
        configuration.cert_file = context.user["client-certificate"]
        configuration.key_file = context.user["client-key"]
        # loopback must never go through a proxy
        configuration.client_session_kwargs = {"trust_env": False}
        return cls(configuration)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.client.close()

    async def get(self, path: str, **parameters: str) -> Object:
        return await self._call("get", path, **parameters)

    async def find(self, path: str) -> Object | None:
        """The object; None if there is none."""
        with contextlib.suppress(NotFound):
            return await self.get(path)
        return None

    async def list(self, path: str, **selectors: str) -> list[Object]:
        return list((await self.get(path, **selectors))["items"])

    async def text(self, path: str) -> str:
        """A response that is not JSON."""
        return b"\n".join([line async for line in self.client.lines(path, (), SILENCE_SECONDS)]).decode()

    async def create(self, path: str, body: Object) -> Object:
        return await self._call("create", path, body)

    async def patch(self, path: str, body: Object | Sequence[Object], media_type: str = MERGE) -> Object:
        return await self._call("patch", path, body, media_type)

    async def delete(self, path: str, *, options: Object | None = None) -> None:
        """Requests deletion; an object that is already gone is no error."""
        with contextlib.suppress(NotFound):
            await self._call("delete", path, options)

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply of a whole manifest; takes over fields from other field managers."""
        kind = await self._kind(manifest["apiVersion"], manifest["kind"])
        path = kind.path(manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        options = {"fieldManager": "devcluster", "force": "true", "fieldValidation": "Strict"}
        return await self._call("apply", path, manifest, APPLY, **options)

    async def watch(self, path: str, **selectors: str) -> AsyncGenerator[WatchEvent]:
        """Lists and then watches; starts again from the list whenever the stream ends. Never returns.

        The first event is SYNCED with all objects, and so is the first after each interruption: callers that keep state
        must compare against it, as deletions may have been missed.
        """
        while True:
            with contextlib.suppress(ClusterError):
                listed = await self.get(path, **selectors)
                yield WatchEvent("SYNCED", listed["items"])
                version = listed["metadata"]["resourceVersion"]
                # a caller that stops iterating must not leave the connection open until garbage collection
                changes = self.client.changes(path, list(selectors.items()), version)
                async with contextlib.aclosing(changes):
                    async for kind, changed in changes:
                        yield WatchEvent(kind, (changed,))
            await asyncio.sleep(0.5)

    async def _call(
        self, verb: str, path: str, body: Any = None, media_type: str = JSON, /, **parameters: str
    ) -> Object:
        query = list(parameters.items())
        kind = ResourceKind("", "", path)
        return await self.client.call(_Call(verb, kind, None, query=query, body=body, media_type=media_type))

    async def _kind(self, api_version: str, kind: str) -> ResourceKind:
        """Discovers the resource of ``kind``. Raises NotFound if the server does not have it."""
        if kind not in self._kinds.get(api_version, {}):
            group, _, version = api_version.rpartition("/")
            resources = (await self.get(ResourceKind(group, version, "").prefix))["resources"]
            self._kinds[api_version] = {
                resource["kind"]: ResourceKind(group, version, resource["name"])
                for resource in resources
                if "/" not in resource["name"]
            }
        try:
            return self._kinds[api_version][kind]
        except KeyError:
            raise NotFound(f"no kind {kind} in {api_version}", status=404) from None
