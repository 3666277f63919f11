"""Addresses of pods on one machine: there are no network namespaces and no cluster DNS. Pure.

Each pod has its own loopback address, so that many may listen on the same port. It is derived from the pod's JobSet and
host name, so the name determines the address, before the pod exists and after it has been replaced. Two of the 16
million may in theory collide; the second program then reports that the port is taken.
"""

import hashlib
from collections.abc import Mapping

from devcluster.kube import Object

#: JobSet's label on all pods of a JobSet that names a coordinator: that pod's name in the cluster's DNS.
COORDINATOR = "jobset.sigs.k8s.io/coordinator"
_JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"


def pod_address(pod: Object) -> str:
    """The pod's own address."""
    hostname = pod.get("spec", {}).get("hostname")
    group = pod["metadata"].get("labels", {}).get(_JOBSET_UID)
    return _address(group, hostname) if group and hostname else _address(pod["metadata"]["uid"], "")


def host_aliases(pod: Object) -> Mapping[str, str]:
    """DNS names that the pod uses -> their addresses: the coordinator of its JobSet."""
    labels = pod["metadata"].get("labels", {})
    name = labels.get(COORDINATOR)
    return {name: _address(labels[_JOBSET_UID], name.partition(".")[0])} if name else {}


def resolve_names(text: str, names: Mapping[str, str]) -> str:
    """``text`` with addresses in place of names."""
    for name, address in names.items():
        text = text.replace(name, address)
    return text


def _address(group: str, hostname: str) -> str:
    first, second, third = hashlib.sha256(f"{group}/{hostname}".encode()).digest()[:3]
    # 127.0.x.y is left to the machine's own programs and to slices' coordinators
    return f"127.{first % 254 + 1}.{second}.{third % 254 + 1}"
