"""Feeds a watch cache as the API server's responses do."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, WORKLOADS, ResourceKind, WatchStream
from finetune_operator.reconcile.watch_cache import WatchCache

KINDS = (JOBS, JOBSETS, PODS)


def at(version: int, found: Mapping[str, Any], uid: str | None = None) -> dict[str, Any]:
    """Returns the object with this resource version; its uid is its name by default."""
    metadata = {"uid": uid or found["metadata"]["name"], **found["metadata"], "resourceVersion": str(version)}
    return {**found, "metadata": metadata}


class Watched:
    """A cache that all streams feed. ``kueue``: whether Workloads are watched, too."""

    def __init__(self, namespaces: Sequence[str | None] = (None,), *, kueue: bool = False) -> None:
        self.missed: list[Mapping[str, Any]] = []
        """Jobs whose deletion no event has reported."""
        self.now = 0.0
        self.namespaces = namespaces
        kinds = (*KINDS, WORKLOADS) if kueue else KINDS
        streams = [WatchStream(kind, scope) for kind in kinds for scope in namespaces]
        self.streams = [*streams, WatchStream(PROFILES, None)]
        self.cache = WatchCache(self.streams, clock=lambda: self.now, missed=self.missed.append)

    def bytes_of(self, namespace: str | None = None) -> int:
        """Returns the size of what is kept of one namespace, or of all."""
        sizes = self.cache._entries._bytes
        assert sizes.total() == self.cache._entries._total
        return sizes[namespace] if namespace else sizes.total()

    def listed(
        self,
        kind: ResourceKind,
        *found: Mapping[str, Any],
        version: int = 100,
        namespace: str | None = None,
        pages: int = 1,
    ) -> None:
        """Lists these objects, the last ``pages`` - 1 of them on pages of their own."""
        path = WatchStream(kind, namespace).path
        split = len(found) - pages + 1
        parts = [found[:split], *([each] for each in found[split:])]
        for number, part in enumerate(parts):
            more = {"continue": "token"} if number < len(parts) - 1 else {}
            text = json.dumps({"metadata": {"resourceVersion": str(version), **more}, "items": part})
            self.cache.page(path, text.encode(), first=number == 0)

    def all_listed(self, *, version: int = 100) -> None:
        """Lists nothing of any kind."""
        for stream in self.streams:
            self.listed(stream.kind, version=version, namespace=stream.namespace)

    def event(
        self, kind: ResourceKind, event: str, found: Mapping[str, Any], namespace: str | None = None
    ) -> bool:
        """Returns False if the stream must be listed again."""
        line = json.dumps({"type": event, "object": found})
        return self.cache.line(WatchStream(kind, namespace).path, line.encode()) is not None

    def bookmark(self, kind: ResourceKind, version: int) -> bool:
        return self.event(
            kind, "BOOKMARK", {"kind": "Any", "metadata": {"resourceVersion": str(version)}, "spec": {}}
        )
