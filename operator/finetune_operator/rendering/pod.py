"""Common parts of the stages' pods: no privileges, scratch folders, and a container that runs ``finetune-stage``."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import Stage, StageRequest
from finetune_contract.log_line import LOG_FORMAT_VARIABLE
from finetune_contract.request import REQUEST_VARIABLE, RESTART_VARIABLE
from finetune_operator.api.profile import PodSettings
from finetune_operator.objects import Object
from finetune_operator.planning import Plan
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.labels import RESTART_LABEL

CONTAINER = "trainer"
SCRATCH = "/scratch"
#: User id of the trainer image; any other non-root user works, as only the volumes are written to.
USER = 65532
_CHOICES = {"priority_class_name", "scheduler_name", "runtime_class_name"}


def pod_spec(
    plan: Plan,
    request: StageRequest,
    *,
    service_account: str,
    resources: Object,
    node_selector: Mapping[str, str],
    tolerations: Sequence[Object],
    env: Sequence[Object] = (),
    ports: Sequence[Object] = (),
    shared_memory: bool = False,
) -> dict[str, Any]:
    """Returns the pod spec of one stage. It contains Secrets only as references.

    ``env`` holds the variables of this kind of pod; the profile's ``pod.env`` overrides variables of the same name.
    """
    added = {each.name: each.to_document() for each in plan.pod.env}
    env = [{"name": LOG_FORMAT_VARIABLE, "value": "json"}, *env]
    mounts: list[Object] = [
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a mount of its own
    ]
    volumes: list[Object] = [{"name": "scratch", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if shared_memory:
        # /dev/shm of the container runtime has 64 MiB; data loading processes pass batches through it.
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": plan.image_of(request.stage),
        "command": ["finetune-stage"],
        "env": [*_env(plan, request), *(each for each in env if each["name"] not in added), *added.values()],
        "resources": resources,
        "securityContext": {**unprivileged(), "readOnlyRootFilesystem": True},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if ports:
        container["ports"] = list(ports)
    return {
        "restartPolicy": "Never",
        **restricted(service_account, grace_seconds=STAGES[request.stage].grace_seconds),
        "nodeSelector": dict(node_selector),
        "tolerations": [dict(toleration) for toleration in tolerations],
        "containers": [container],
        "volumes": volumes,
    }


def restricted(service_account: str, *, grace_seconds: int) -> dict[str, Any]:
    """Returns the pod-level fields required by the pod security standard *restricted*.

    :func:`unprivileged` returns those of its containers.
    """
    return {
        "serviceAccountName": service_account,
        # Workload Identity uses the metadata server; nothing in the pod calls the API server.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def unprivileged() -> dict[str, Any]:
    """Returns a container's security context."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def with_host_access(plan: Plan, pod: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod that holds chips with the node access that the profile grants it.

    ``pod.hostNetwork`` and ``pod.privileged`` grant it. A privileged process that is not root has no access to the
    node's devices, so a privileged pod also runs as root.
    """
    granted = dict(pod)
    containers = [dict(container) for container in pod["containers"]]
    if plan.pod.host_network:
        # With this DNS policy, the names of services and of the other hosts still resolve.
        granted |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        for container in containers:
            container["ports"] = [{**port, "hostPort": port["containerPort"]} for port in container["ports"]]
    if plan.pod.privileged:
        granted["securityContext"] = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
        for container in containers:
            container["securityContext"] = {"privileged": True}
    return {**granted, "containers": containers}


def with_choices(settings: PodSettings, pod: Object) -> dict[str, Any]:
    """Returns a pod with the profile's choice of priority, scheduler and runtime, and with limits of CPU if it asks."""
    chosen = {**pod, **settings.model_dump(include=_CHOICES, by_alias=True, exclude_none=True)}
    if settings.cpu_limits:
        for kind in ("initContainers", "containers"):
            if kind in pod:
                chosen[kind] = [_limited(container) for container in pod[kind]]
    return chosen


def _limited(container: Object) -> Object:
    resources = container["resources"]
    if "cpu" not in resources["requests"]:
        return container
    limits = {"cpu": resources["requests"]["cpu"], **resources.get("limits", {})}
    return {**container, "resources": {**resources, "limits": limits}}


def _env(plan: Plan, request: StageRequest) -> list[Object]:
    variables: list[Object] = [
        # Kubernetes expands $(NAME) in values and turns $$ into $.
        {"name": REQUEST_VARIABLE, "value": request.to_json().replace("$", "$$")},
        {
            "name": RESTART_VARIABLE,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{RESTART_LABEL}']"}},
        },
        {"name": "TMPDIR", "value": SCRATCH},
        # The root file system is read-only; libraries keep their caches below HOME.
        {"name": "HOME", "value": SCRATCH},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    # Preflight always gets the token, so that a missing Secret is detected before any TPU is claimed.
    if plan.hub_token and (request.stage is Stage.PREFLIGHT or plan.reads_hub):
        variables.append(_secret("HF_TOKEN", *plan.hub_token))
    if STAGES[request.stage].uploads:
        variables += [_secret(variable, *secret) for variable, secret in plan.upload_tokens.items()]
    return variables


def _secret(variable: str, name: str, key: str) -> Object:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
