"""A node as decisions read it."""

from dataclasses import dataclass

from finetune_operator.lifecycle.children.fields import Object, items, section, text
from finetune_operator.lifecycle.children.object_condition import parse_condition

POOL_LABEL = "cloud.google.com/gke-nodepool"
MAINTENANCE_LABEL = "cloud.google.com/active-node-maintenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceNode:
    """A node of a slice."""

    name: str
    pool: str | None
    """GKE's node pool."""
    under_maintenance: bool
    taints: tuple[str, ...]
    """Their keys."""
    ready: bool

    @classmethod
    def parse(cls, found: Object) -> "SliceNode":
        """Never raises on an object that an API server may hold."""
        metadata = section(found, "metadata")
        labels = section(metadata, "labels")
        maintenance = text(labels, MAINTENANCE_LABEL) or "false"
        return cls(
            name=text(metadata, "name") or "",
            pool=text(labels, POOL_LABEL),
            under_maintenance=maintenance.lower() != "false",
            taints=tuple(text(each, "key") or "" for each in items(section(found, "spec"), "taints")),
            ready=parse_condition(items(section(found, "status"), "conditions"), "Ready", "True") is not None,
        )
