"""What local nodes do not support in a pod; the pod's status names it, and the pod is not run. Pure."""

from finetune_operator.objects import Object

#: The API server adds this volume to pods that automount their account's token; local pods have no mounts, and stage
#: pods need no token.
TOKEN_VOLUME = "kube-api-access-"
#: Fields of a container that need a kubelet.
_CONTAINER_FIELDS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def unsupported(pod: Object) -> str | None:
    """Returns a message about the first part of the pod's spec that local processes cannot support; None if all is
    supported."""
    spec = pod["spec"]
    for volume in spec.get("volumes", ()):
        if "emptyDir" not in volume and not volume["name"].startswith(TOKEN_VOLUME):
            kinds = ", ".join(key for key in volume if key != "name")
            return f"volume {volume['name']} ({kinds}): the local node agent supports emptyDir only"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for name in _CONTAINER_FIELDS:
            if name in container:
                return f"container {container['name']}: {name} is not supported by the local node agent"
    for container in spec["containers"]:
        if "restartPolicy" in container:
            return (
                f"container {container['name']}: the local node agent supports the pod's restartPolicy only"
            )
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy", "Always") != "Always":
            return (
                f"init container {container['name']}: the local node agent supports restartPolicy Always (a sidecar) "
                "or none"
            )
    return None
