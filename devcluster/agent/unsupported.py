"""What local nodes do not support in a pod. It is refused in the pod's status rather than ignored. Pure."""

from devcluster.kube import Object

#: The API server adds this volume to pods that automount their account's token; local pods have no mounts, and stage
#: pods need no token.
TOKEN_VOLUME = "kube-api-access-"
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def unsupported(pod: Object) -> str | None:
    """The first thing in the pod's spec that local processes can't support; None if there is none."""
    spec = pod["spec"]
    for volume in spec.get("volumes", ()):
        if "emptyDir" not in volume and not volume["name"].startswith(TOKEN_VOLUME):
            kinds = ", ".join(key for key in volume if key != "name")
            return f"volume {volume['name']} ({kinds}): the local node agent has emptyDir only"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for name in _PROBES:
            if name in container:
                return f"container {container['name']}: {name} is not run by the local node agent"
    for container in spec["containers"]:
        if "restartPolicy" in container:
            return f"container {container['name']}: the local node agent knows the pod's restartPolicy only"
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy", "Always") != "Always":
            return f"init container {container['name']}: restartPolicy is Always (a sidecar) or left out here"
    if "activeDeadlineSeconds" in spec:
        return "activeDeadlineSeconds of a pod is not kept by the local node agent; set it on the Job"
    return None
