"""What JobSet's controller and a node would make of a JobSet: its first Job and pods of it, in any state."""

from collections.abc import Mapping
from typing import Any

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.scale.load import jobset_path, now

#: Another controller than Kubernetes' own manages the Jobs, so that nothing creates further pods.
_MANAGER = "tpu-finetune.dev/benchmark"


async def add_job(kube: Kube, jobset: Object) -> Object:
    """Creates the first Job of the JobSet. Returns it."""
    metadata, group = jobset["metadata"], jobset["spec"]["replicatedJobs"][0]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{metadata['name']}-{group['name']}-0",
            "labels": {
                **metadata["labels"],
                "jobset.sigs.k8s.io/jobset-name": metadata["name"],
                "jobset.sigs.k8s.io/replicatedjob-name": group["name"],
                "jobset.sigs.k8s.io/restart-attempt": "0",
                "jobset.sigs.k8s.io/job-index": "0",
            },
            "ownerReferences": [_controller(jobset, "JobSet")],
        },
        "spec": {
            "managedBy": _MANAGER,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "unused", "image": "unused"}]}
            },
        },
    }
    return await kube.create(f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs", job)


async def add_host(kube: Kube, jobset: Object, job: Object, index: int) -> Object:
    """Creates the pod of that completion index of the JobSet's first Job. Returns it; it is Pending."""
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    metadata = job["metadata"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{index}-00000",
            "labels": {**metadata["labels"], "batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [_controller(job, "Job")],
        },
        "spec": template["spec"],
    }
    return await kube.create(f"/api/v1/namespaces/{metadata['namespace']}/pods", pod)


async def add_pod(kube: Kube, jobset: Object, phase: str) -> Object:
    """Creates the first Job of the JobSet and a pod of it, in that phase. Returns the pod."""
    pod = await add_host(kube, jobset, await add_job(kube, jobset), 0)
    return await set_phase(kube, pod, phase)


async def set_phase(kube: Kube, pod: Object, phase: str) -> Object:
    """Lets the pod run, succeed or fail. Returns it."""
    return await kube.patch(f"{pod_path(pod)}/status", {"status": pod_status(pod, phase)})


async def end_pod(kube: Kube, jobset: Object) -> None:
    """Lets the pod of the JobSet succeed, which exists."""
    metadata, group = jobset["metadata"], jobset["spec"]["replicatedJobs"][0]["name"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}-{group}-0-0-00000"
    await kube.patch(f"{path}/status", {"status": pod_status(await kube.get(path), "Succeeded")})


def pod_path(pod: Object) -> str:
    """Returns the path of a pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def pod_status(pod: Object, phase: str, *, disrupted: bool = False) -> Mapping[str, Any]:
    """Returns the status of a pod that runs, has succeeded, or has failed with exit code 137.

    With ``disrupted``, Kubernetes has taken its node away.
    """
    at = now()
    state = {
        "Running": {"running": {"startedAt": at}},
        "Succeeded": {"terminated": {"exitCode": 0, "startedAt": at, "finishedAt": at}},
        "Failed": {"terminated": {"exitCode": 137, "startedAt": at, "finishedAt": at}},
    }[phase]
    conditions = [{"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": at}]
    if disrupted:
        conditions.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": at,
            }
        )
    (container,) = pod["spec"]["containers"]
    return {
        "phase": phase,
        "startTime": at,
        "conditions": conditions,
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": phase == "Running",
                "restartCount": 0,
                "state": state,
            }
        ],
    }


async def fail(kube: Kube, jobset: Object) -> None:
    """Ends the JobSet as its controller does when a Job has failed."""
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "FailedJobs",
        "message": "jobset failed due to one or more job failures",
        "lastTransitionTime": now(),
    }
    status = {"conditions": [condition], "terminalState": "Failed", "restarts": 0}
    await kube.patch(f"{jobset_path(jobset)}/status", {"status": status})


def _controller(owner: Object, kind: str) -> Object:
    version = {"JobSet": "jobset.x-k8s.io/v1alpha2", "Job": "batch/v1"}[kind]
    metadata = owner["metadata"]
    return {
        "apiVersion": version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
