"""Events about a pod that is not scheduled or does not start, and about a Job that creates no pods.

The autoscaler reports only in Events about pods: TriggeredScaleUp and NotTriggerScaleUp are those of Kubernetes'
cluster-autoscaler; FailedScaleUp is GKE's and contains the response of Google Cloud ("GCE out of resources",
"GCE quota exceeded" and the like; pkg/visibility/events of its autoscaler).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from finetune_operator.lifecycle.children.fields import message, section, text, time
from finetune_operator.objects import Object

_TRIGGERED, _NOT_TRIGGERED, _FAILED = "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp"
_CREATION_FAILED = "FailedCreate"
_REASONS = frozenset({_TRIGGERED, _NOT_TRIGGERED, _FAILED, _CREATION_FAILED})

#: Part of the JobSet controller's refusals of pods that wait for the first one of their slice.
_EXPECTED = "this is an expected, transient error"

#: What to do about a failed scale-up, by parts of Google Cloud's response.
_FIXES = {
    "GCE out of resources": "The zone has no such machines at the moment; the autoscaler retries automatically. Other "
    "kinds in spec.resources.capacity, another slice or a reservation may be available sooner.",
    "GCE quota exceeded": "Ask the platform team to raise the project's quota for this kind of TPU, or use another.",
    "IP space exhausted": "Ask the platform team for a larger range of pod addresses.",
    "Service Account was deleted": "Ask the platform team to repair the node pool's service account.",
    "Reservation": "Ask the platform team whether the profile's reservation is correct and has capacity.",
    "Placement": "Ask the platform team to correct the node pool's placement policy.",
    "TPU": "Ask the platform team to correct the node pool: its machines do not form this slice.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An Event about a pod or a Job."""

    type: str
    reason: str
    message: str
    last_time: str
    """When it last happened; comparable as text. Empty if unknown."""
    first_time: datetime | None = None
    """When it happened first; None if unknown."""

    @classmethod
    def parse(cls, found: Object) -> "ObjectEvent":
        """Never raises on an object that an API server may hold. Writers of Events set one of three times."""
        last_time = (
            text(section(found, "series"), "lastObservedTime")
            or text(found, "lastTimestamp")
            or text(found, "eventTime")
            or text(section(found, "metadata"), "creationTimestamp")
        )
        return cls(
            type=text(found, "type") or "",
            reason=text(found, "reason") or "",
            message=message(found) or "",
            last_time=last_time or "",
            first_time=time(found, "firstTimestamp") or time(found, "eventTime"),
        )


def read_event(found: Object) -> ObjectEvent | None:
    """Parses an Event; None if no decision reads Events with its reason and type."""
    wanted = found.get("reason") in _REASONS or found.get("type") == "Warning"
    return ObjectEvent.parse(found) if wanted else None


def autoscaler(events: Iterable[ObjectEvent], shape: str) -> str:
    """Returns the autoscaler's last message about a pod, and what to do, as sentences.

    ``shape`` describes the nodes that the pod needs.
    """
    last = _last(each for each in events if each.reason in (_TRIGGERED, _NOT_TRIGGERED, _FAILED))
    if last is None:
        return (
            f"No autoscaler has reported on the pod. Ask the platform team for nodes with {shape}, or for a node "
            "pool of them that can scale up."
        )
    said = f"Autoscaler: {last.message.rstrip('.')}."
    match last.reason:
        case "TriggeredScaleUp":
            return f"{said} Nodes are being created: no action is needed."
        case "FailedScaleUp":
            fix = next((fix for part, fix in _FIXES.items() if part in last.message), None)
            return f"{said} {fix or 'The autoscaler retries automatically.'}"
        case _:
            return f"{said} Ask the platform team for a node pool with {shape} that can scale up."


def creation_failure(events: Iterable[ObjectEvent]) -> str:
    """Returns why the Job controller could not create a pod; empty if no Event says it."""
    failures = (each for each in events if each.reason == _CREATION_FAILED)
    last = _last(each for each in failures if _EXPECTED not in each.message)
    return last.message if last else ""


def last_warning(events: Iterable[ObjectEvent]) -> str:
    """Returns the last warning, such as the kubelet's why it creates no container; empty if there is none."""
    last = _last(each for each in events if each.type == "Warning")
    return last.message if last else ""


def _last(events: Iterable[ObjectEvent]) -> ObjectEvent | None:
    return max(events, key=lambda each: each.last_time, default=None)
