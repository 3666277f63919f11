"""Feeds a watch cache as the API server's responses do."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, ResourceKind, WatchStream
from finetune_operator.reconcile.watch_cache import WatchCache

KINDS = (JOBS, JOBSETS, PODS, PROFILES)


def at(version: int, found: Mapping[str, Any], uid: str | None = None) -> dict[str, Any]:
    """Returns the object with this resource version; its uid is its name by default."""
    metadata = {"uid": uid or found["metadata"]["name"], **found["metadata"], "resourceVersion": str(version)}
    return {**found, "metadata": metadata}


class Watched:
    """A cache that all streams feed."""

    def __init__(self, namespaces: Sequence[str | None] = (None,)) -> None:
        self.now = 0.0
        self.namespaces = namespaces
        streams = [WatchStream(kind, scope) for kind in KINDS[:3] for scope in namespaces]
        self.cache = WatchCache([*streams, WatchStream(PROFILES, None)], clock=lambda: self.now)

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
        for kind in KINDS:
            for namespace in self.namespaces if kind != PROFILES else (None,):
                self.listed(kind, version=version, namespace=namespace)

    def event(
        self, kind: ResourceKind, event: str, found: Mapping[str, Any], namespace: str | None = None
    ) -> bool:
        line = json.dumps({"type": event, "object": found})
        return self.cache.line(WatchStream(kind, namespace).path, line.encode())

    def bookmark(self, kind: ResourceKind, version: int) -> bool:
        return self.event(
            kind, "BOOKMARK", {"kind": "Any", "metadata": {"resourceVersion": str(version)}, "spec": {}}
        )
