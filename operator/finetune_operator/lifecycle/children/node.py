"""A node as decisions read it."""

from dataclasses import dataclass
from datetime import datetime

from finetune_operator.lifecycle.children.fields import items, section, text, time
from finetune_operator.lifecycle.children.object_condition import parse_condition
from finetune_operator.objects import Object

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
    created: datetime | None
    """When the node's object was created."""
    ready_since: datetime | None
    """By the node's clock; None if it is not ready, or the time is unknown."""
    heartbeat: datetime | None = None
    """When the node last reported that it is ready, by its clock."""

    @classmethod
    def parse(cls, found: Object) -> "SliceNode":
        """Never raises on an object that an API server may hold."""
        metadata = section(found, "metadata")
        labels = section(metadata, "labels")
        conditions = items(section(found, "status"), "conditions", type="Ready")
        heartbeats = (time(each, "lastHeartbeatTime") for each in conditions)
        ready = parse_condition(conditions, "Ready", "True")
        maintenance = text(labels, MAINTENANCE_LABEL) or "false"
        return cls(
            name=text(metadata, "name") or "",
            pool=text(labels, POOL_LABEL),
            under_maintenance=maintenance.lower() != "false",
            taints=tuple(text(each, "key") or "" for each in items(section(found, "spec"), "taints")),
            ready=ready is not None,
            created=time(metadata, "creationTimestamp"),
            ready_since=ready.last_transition_time if ready else None,
            heartbeat=next(heartbeats, None),
        )
