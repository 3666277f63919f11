"""Small pods and JobSets that run programs of this machine and meet the restricted Pod Security Standard."""

from typing import Any

type Object = dict[str, Any]

#: An image whose programs are this machine's own; tests register it.
IMAGE = "localhost/machine:1"


def container(*command: str, **more: Any) -> Object:
    return {
        "name": "main",
        "image": IMAGE,
        "command": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **more,
    }


def spec(*command: str, main: Object | None = None, **more: Any) -> Object:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container(*command, **(main or {}))],
        **more,
    }


def shell(
    namespace: str,
    name: str,
    script: str,
    *,
    main: Object | None = None,
    meta: Object | None = None,
    **more: Any,
) -> Object:
    """A pod that runs one shell script."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **(meta or {})},
        "spec": spec("sh", "-c", script, main=main, **more),
    }


def slice_spec(script: str, topology: str) -> Object:
    """A pod of a v6e slice: all chips of one host."""
    return spec(
        "sh",
        "-c",
        script,
        main={"resources": {"limits": {"google.com/tpu": "4"}}},
        nodeSelector={
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": topology,
        },
        tolerations=[{"key": "google.com/tpu", "operator": "Exists"}],
    )


def replicated_job(name: str, pod: Object, *, hosts: int = 1) -> Object:
    return {
        "name": name,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": hosts,
                "completions": hosts,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {"spec": pod},
            }
        },
    }


def jobset(namespace: str, name: str, *jobs: Object, exclusive: bool = False) -> Object:
    annotations = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"annotations": annotations} if exclusive else {}),
        },
        "spec": {"replicatedJobs": list(jobs)},
    }


def exit_code(pod: Object) -> int | None:
    """Exit code of the first container; None until it has ended."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    ended = statuses[0].get("state", {}).get("terminated")
    return None if ended is None else int(ended["exitCode"])


def waiting_reason(pod: Object) -> str:
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return str((statuses[0].get("state", {}).get("waiting") or {}).get("reason", ""))


def over(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def running(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running"
