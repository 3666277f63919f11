"""What Events tell of a pod that finds no node or does not start, and of a Job that makes no pods.

The autoscaler speaks in Events on pods alone: TriggeredScaleUp and NotTriggerScaleUp are those of Kubernetes'
cluster-autoscaler, FailedScaleUp is GKE's, which says what Google Cloud has answered ("GCE out of resources",
"GCE quota exceeded" and the like; pkg/visibility/events of its autoscaler).
"""

from collections.abc import Iterable, Mapping
from typing import Any

type Object = Mapping[str, Any]

_TRIGGERED, _NOT_TRIGGERED, _FAILED = "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp"
_REFUSED = "FailedCreate"
#: Of the Events that say something here.
REASONS = frozenset({_TRIGGERED, _NOT_TRIGGERED, _FAILED, _REFUSED})

#: What to do about a failed scale-up, by what Google Cloud has answered.
_FIXES = {
    "GCE out of resources": "The zone has no such machines left at the moment; it is tried again by itself. Other "
    "kinds in spec.resources.capacity, another slice or a reservation may be had sooner.",
    "GCE quota exceeded": "Ask the platform team to raise the project's quota for this kind of TPU, or use another.",
    "IP space exhausted": "Ask the platform team for a larger range of pod addresses.",
    "Service Account was deleted": "Ask the platform team to mend the node pool's service account.",
    "Reservation": "Ask the platform team whether the profile's reservation is right and has room.",
    "Placement": "Ask the platform team to mend the node pool's placement policy.",
    "TPU": "Ask the platform team to mend the node pool: its machines do not make this slice.",
}


def autoscaler(events: Iterable[Object], shape: str) -> str:
    """The autoscaler's last word on a pod and what to do, as sentences. ``shape`` names the nodes that it needs."""
    told = _last(events, (_TRIGGERED, _NOT_TRIGGERED, _FAILED))
    if told is None:
        return (
            f"No autoscaler has said anything about it. Ask the platform team for nodes with {shape}, or for a node "
            "pool of them that may grow."
        )
    said = f"Autoscaler: {told.get('message', '').rstrip('.')}."
    match told["reason"]:
        case "TriggeredScaleUp":
            return f"{said} Nodes are being made: nothing to do."
        case "FailedScaleUp":
            fix = next((fix for part, fix in _FIXES.items() if part in told.get("message", "")), None)
            return f"{said} {fix or 'It is tried again by itself.'}"
        case _:
            return f"{said} Ask the platform team for a node pool with {shape} that may grow."


def refusal(events: Iterable[Object]) -> str | None:
    """Why the Job controller could not make a pod; None where it has not said."""
    told = _last(events, (_REFUSED,))
    return told.get("message") if told else None


def trouble(events: Iterable[Object]) -> str | None:
    """Why a node makes no container of a pod, as the kubelet or a controller warned last; None where none has."""
    warnings = (each for each in events if each.get("type") == "Warning")
    told = max(warnings, key=_time, default=None)
    return told.get("message") if told else None


def _last(events: Iterable[Object], reasons: tuple[str, ...]) -> Object | None:
    """The newest Event of those reasons."""
    return max((each for each in events if each.get("reason") in reasons), key=_time, default=None)


def _time(event: Object) -> str:
    """When it last happened; writers of Events fill in one of three places."""
    series = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event["metadata"].get("creationTimestamp", ""))
