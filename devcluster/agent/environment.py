"""A container's environment: its spec's, expanded as a kubelet does, and what node and platform add. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from devcluster.agent.nodes import ADDRESS, TPU_RESOURCE
from finetune_operator.objects import Object

_JOBSET = "jobset.sigs.k8s.io/"
_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")


class ConfigError(Exception):
    """The container's configuration can't be created yet; a kubelet shows this as CreateContainerConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSources:
    """Data of the Secrets and ConfigMaps that a pod refers to, by name; None if there is no such object."""

    secrets: Mapping[str, Mapping[str, str] | None]
    config_maps: Mapping[str, Mapping[str, str] | None]


def references(container: Object) -> tuple[set[str], set[str]]:
    """Names of the Secrets and ConfigMaps that the container's environment refers to."""
    secrets: set[str] = set()
    config_maps: set[str] = set()
    for entry in container.get("env", ()):
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            secrets.add(source["secretKeyRef"]["name"])
        if "configMapKeyRef" in source:
            config_maps.add(source["configMapKeyRef"]["name"])
    for entry in container.get("envFrom", ()):
        if "secretRef" in entry:
            secrets.add(entry["secretRef"]["name"])
        if "configMapRef" in entry:
            config_maps.add(entry["configMapRef"]["name"])
    return secrets, config_maps


def spec_environment(container: Object, pod: Object, sources: EnvSources) -> dict[str, str]:
    """Variables of the container's ``envFrom`` and ``env``, in order, with references resolved. Raises ConfigError."""
    result: dict[str, str] = {}
    for entry in container.get("envFrom", ()):
        for key, value in _all_of(entry, sources).items():
            result[entry.get("prefix", "") + key] = value
    for entry in container.get("env", ()):
        given = _value(entry, pod, sources, result)
        if given is not None:
            result[entry["name"]] = given
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with ``$(NAME)`` replaced by the variable's value if it exists, and ``$$`` by ``$``."""

    def replace(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return variables.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replace, text)


def field_value(path: str, pod: Object) -> str:
    """The downward API: the pod's field at ``path``. Raises ConfigError for an unsupported path."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        kind, key = match.groups()
        return str(pod["metadata"].get(kind, {}).get(key, ""))
    meta, spec = pod["metadata"], pod["spec"]
    simple = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": ADDRESS,
        "status.podIP": ADDRESS,
    }
    if path not in simple:
        raise ConfigError(f"fieldRef {path!r} is not supported by the local node agent")
    return str(simple[path])


def tpu_count(container: Object) -> int:
    """Number of chips that the container requests."""
    return int(container.get("resources", {}).get("limits", {}).get(TPU_RESOURCE, 0))


def workers(pod: Object, hosts: int) -> dict[str, str]:
    """The variables with which GKE's webhook (several hosts) or its device plugin (one) describes a pod's slice.

    With several slices, also those that describe all of them. ``hosts``: parallelism of the pod's Job.
    """
    labels = pod["metadata"].get("labels", {})
    domain = pod["spec"].get("subdomain", "")
    if hosts < 2 or not domain:
        return {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    group = f"{labels.get(_JOBSET + 'jobset-name', '')}-{labels.get(_JOBSET + 'replicatedjob-name', '')}"
    index = labels.get(_JOBSET + "job-index", "0")
    result = {
        "TPU_WORKER_ID": labels.get("batch.kubernetes.io/job-completion-index", "0"),
        "TPU_WORKER_HOSTNAMES": ",".join(f"{group}-{index}-{number}.{domain}" for number in range(hosts)),
    }
    slices = int(labels.get(_JOBSET + "replicatedjob-replicas", 1))
    if slices > 1:
        result |= {
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": index,
            "MEGASCALE_COORDINATOR_ADDRESS": f"{group}-0-0.{domain}",
        }
    return result


def platform(container: Object, pod: Object, *, hosts: int, coordinator: str) -> dict[str, str]:
    """Variables from node and platform: JAX on CPU with one device per chip, and the container's place in the slice."""
    chips = tpu_count(container)
    result = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={chips or 1}"}
    if chips:
        result |= workers(pod, hosts) | {"JAX_COORDINATOR_ADDRESS": coordinator}
    return result


def pathways_proxy_environment(said: Mapping[str, str], pod: Object) -> dict[str, str]:
    """Variables that override the spec of Pathways' head.

    There are no devices behind JAX's platform ``proxy`` here, so JAX gets as many on CPU as the pod's resource manager
    is configured with, one per chip. Raises ConfigError.
    """
    if said.get("JAX_PLATFORMS") != "proxy":
        return {}
    words = (word for each in pod["spec"].get("initContainers", ()) for word in each.get("args", ()))
    flags = dict(word.partition("=")[::2] for word in words)
    try:
        topology = flags["--instance_type"].rpartition(":")[2]
        devices = int(flags["--instance_count"]) * prod(int(edge) for edge in topology.split("x"))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"JAX_PLATFORMS is proxy, but the pod has no resource manager: {error}") from error
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


def with_mounts(variables: Mapping[str, str], mounts: Mapping[str, Path]) -> dict[str, str]:
    """Maps values that name a path under a mount point to the local folder: there is no mount namespace."""
    return {name: map_mount_path(value, mounts) for name, value in variables.items()}


def map_mount_path(value: str, mounts: Mapping[str, Path]) -> str:
    """Maps one value, see with_mounts."""
    for point in sorted(mounts, key=len, reverse=True):
        if value == point or value.startswith(point.rstrip("/") + "/"):
            return str(mounts[point]) + value[len(point.rstrip("/")) :]
    return value


def _value(entry: Object, pod: Object, sources: EnvSources, known: Mapping[str, str]) -> str | None:
    origin = entry.get("valueFrom")
    if not origin:
        return expand(entry.get("value", ""), known)
    if "fieldRef" in origin:
        return field_value(origin["fieldRef"]["fieldPath"], pod)
    if "secretKeyRef" in origin:
        return _key("secret", origin["secretKeyRef"], sources.secrets, pod)
    if "configMapKeyRef" in origin:
        return _key("configmap", origin["configMapKeyRef"], sources.config_maps, pod)
    raise ConfigError(
        f"environment {entry['name']}: {', '.join(origin)} is not supported by the local node agent"
    )


def _key(
    kind: str, reference: Object, objects: Mapping[str, Mapping[str, str] | None], pod: Object
) -> str | None:
    """One key of a Secret or ConfigMap; the messages are the kubelet's own, as users will search for them."""
    name, key = reference["name"], reference["key"]
    data = objects.get(name)
    if data is not None and key in data:
        return data[key]
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind} "{name}" not found')
    place = f"{pod['metadata']['namespace']}/{name}"
    raise ConfigError(f"couldn't find key {key} in {'Secret' if kind == 'secret' else 'ConfigMap'} {place}")


def _all_of(entry: Object, sources: EnvSources) -> Mapping[str, str]:
    kind, reference, objects = (
        ("secret", entry["secretRef"], sources.secrets)
        if "secretRef" in entry
        else ("configmap", entry["configMapRef"], sources.config_maps)
    )
    data = objects.get(reference["name"])
    if data is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    return data
