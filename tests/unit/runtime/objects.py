"""Objects as watch events contain them."""

from typing import Any

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.lifecycle.changes import changes
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.runtime.metrics import OperatorMetrics


def conditions(**status: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": value} for kind, value in status.items()]


def job(
    name: str = "demo",
    *,
    generation: int = 1,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    profile: str | None = None,
    **status: str,
) -> dict[str, Any]:
    """``profile``: the profile that the status names; None: none."""
    resolved = {"resolved": {"profile": {"name": profile}}} if profile else {}
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-{name}",
            "generation": generation,
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "status": {"conditions": conditions(**status), **resolved},
    }


def profile(
    name: str = "local", *, generation: int = 1, annotations: dict[str, str] | None = None, used_by: int = 0
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": generation,
            "annotations": annotations or {},
        },
        "status": {"usedBy": used_by},
    }


def jobset(name: str = "demo-prep-1", owner: str = "demo", **status: str) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"tpu-finetune.dev/job": owner, "tpu-finetune.dev/job-uid": f"uid-{owner}"},
        },
        "status": {"conditions": conditions(**status)},
    }


def key(name: str = "demo") -> JobKey:
    return JobKey("team", name)


def status_of(profile: str = "small", capacity: str = "Spot", **fields: Any) -> FineTuneJobStatus:
    resources = {"tpu": "v6e-4", "accelerator": "a", "topology": "2x2", "chips": 4, "hosts": 1, "slices": 1}
    resolved = {
        "profile": {"name": profile, "hash": f"sha256:{'0' * 64}"},
        "resources": {**resources, "capacity": capacity},
    }
    return read_status({"resolved": resolved if profile else None, **fields})


def ended(
    metrics: OperatorMetrics, namespace: str = "team", profile: str = "small", capacity: str = "Spot"
) -> None:
    """Counts the end of a job."""
    failure = {"class": "User", "reason": "R", "message": "M"}
    before = status_of(profile, capacity)
    after = status_of(profile, capacity, phase="Failed", failure=failure)
    metrics.changed({"metadata": {"namespace": namespace}, "spec": {}}, changes(before, after))
