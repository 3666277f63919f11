"""A real node for the local cluster: kubelet, containerd and runc, and a registry to pull from. Root and Linux."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster import build, controlplane, gcs, pki
from finetune_operator.objects import Object
from tests.doubles.local_cluster import LocalCluster
from tests.images import network
from tests.images.background import Processes, answers, run, until
from tests.images.network import ADDRESS, BRIDGE

NAME = "node-0"
_KUBELET_PORT = 10250
#: Where tests push images to, and the node pulls from.
REGISTRY = f"{ADDRESS}:5000"
PAUSE = f"{REGISTRY}/pause:1"
LABELS: Mapping[str, str] = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    "cloud.google.com/gke-nodepool": "containers",
    "node.kubernetes.io/instance-type": "ct6e-standard-4t",
}
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_CHIPS_OF_HOST = "cloud.google.com/gke-accelerator-count"
_PROGRAMS = (
    "containerd",
    "runc",
    "docker-registry",
    "buildah",
    "debootstrap",
    "iptables",
    "ip",
    "socat",
    "ctr",
)
_CNI = Path("/usr/lib/cni")


def missing() -> str | None:
    """Returns why this machine can't run the node, and how to change that; None if it can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent or not (_CNI / "bridge").exists():
        return (
            f"not installed: {', '.join(absent) or 'network plugins'}; apt-get install containerd runc docker-registry "
            "buildah debootstrap iptables iproute2 socat containernetworking-plugins"
        )
    return None


@dataclass(frozen=True, slots=True)
class Node:
    """The running node of a cluster."""

    cluster: LocalCluster
    folder: Path

    def ctr(self, *arguments: str) -> str:
        """Standard output of containerd's own client, in the kubelet's namespace."""
        return run("ctr", "-a", str(self.folder / "run" / "containerd.sock"), "-n", "k8s.io", *arguments)

    def offer(self, topology: str, *, chips: int, of_host: int) -> None:
        """Makes it all hosts of a slice: labels as GKE sets them, and chips as a device plugin reports them."""
        labels = f"{_TOPOLOGY}={topology}", f"{_CHIPS_OF_HOST}={of_host}"
        self.cluster.kubectl("label", "node", NAME, *labels, "--overwrite")
        patch = [{"op": "add", "path": "/status/capacity/google.com~1tpu", "value": str(chips)}]
        self.cluster.kubectl(
            "patch", "node", NAME, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}"
        )
        self.cluster.wait(
            f"/api/v1/nodes/{NAME}",
            lambda it: it["status"]["allocatable"].get("google.com/tpu") == str(chips),
        )

    @property
    def store(self) -> str:
        """URL of the object store, for pods and for tests."""
        return gcs.endpoint(self.cluster.ports).replace("127.0.0.1", ADDRESS)


@contextmanager
def registry(folder: Path) -> Iterator[None]:
    """The bridge of the pod network, and a registry that listens on it."""
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        network.bridge(stack)
        config = folder / "registry.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "version": "0.1",
                    "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
                    "http": {"addr": REGISTRY, "secret": "local"},
                    "log": {"level": "warn"},
                }
            )
        )
        Processes(folder, stack).start("registry", ("docker-registry", "serve", config))
        until(lambda: answers(f"http://{REGISTRY}/v2/"), "the registry")
        yield


@contextmanager
def joined(cluster: LocalCluster, folder: Path) -> Iterator[Node]:
    """The node, in place of the cluster's node agent. The registry runs already."""
    node = Node(cluster, folder)
    cluster.stop("node-agent")
    for stale in cluster.list("/api/v1/nodes"):
        cluster.delete(f"/api/v1/nodes/{stale['metadata']['name']}")
    with ExitStack() as stack:
        for each in ("run", "cni", "kubelet", "logs"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        processes = Processes(folder / "logs", stack)
        _deployments(cluster, processes)
        _object_store(cluster, processes)
        _containerd(node, processes, stack)
        _kubelet(node, processes)
        cluster.wait(f"/api/v1/nodes/{NAME}", _ready, seconds=90)
        network.services(cluster, NAME, folder, processes, stack)
        node.offer("1x1", chips=1, of_host=1)
        yield node


def _deployments(cluster: LocalCluster, processes: Processes) -> None:
    """Lets the controller-manager act on Deployments and Services, which the local cluster has none of."""
    cluster.stop("kube-controller-manager")
    controllers = (
        *controlplane.CONTROLLERS,
        "deployment-controller",
        "replicaset-controller",
        "endpointslice-controller",
    )
    component = controlplane.controller_manager(cluster.state, build.ensure(), cluster.ports, controllers)
    processes.start("kube-controller-manager", component.argv)


def _object_store(cluster: LocalCluster, processes: Processes) -> None:
    """The same buckets, at an address that pods reach: the server puts its own address into answers."""
    cluster.stop("gcs")
    component = gcs.fake_gcs(cluster.state, build.ensure(), cluster.ports)
    processes.start("gcs", [each.replace("127.0.0.1", ADDRESS) for each in component.argv])
    until(lambda: answers(component.ready_url.replace("127.0.0.1", ADDRESS)), "the object store")


def _containerd(node: Node, processes: Processes, stack: ExitStack) -> None:
    folder = node.folder
    (folder / "cni" / "10-bridge.conflist").write_text(
        json.dumps(
            {
                "cniVersion": "0.4.0",
                "name": "finetune",
                "plugins": [
                    {
                        "type": "bridge",
                        "bridge": BRIDGE,
                        "isGateway": False,
                        "ipMasq": False,
                        "ipam": {
                            "type": "host-local",
                            "dataDir": str(folder / "cni" / "addresses"),
                            "ranges": [
                                [{"subnet": network.NETWORK, "gateway": ADDRESS, "rangeStart": "198.18.7.10"}]
                            ],
                            "routes": [{"dst": "0.0.0.0/0"}],
                        },
                    },
                    {"type": "loopback"},
                ],
            }
        )
    )
    config = folder / "containerd.toml"
    config.write_text(
        f"""version = 2
root = "{folder}/containerd"
state = "{folder}/run/containerd"
[grpc]
address = "{folder}/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{_CNI}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."{REGISTRY}"]
endpoint = ["http://{REGISTRY}"]
"""
    )
    stack.callback(_clean_up, folder, _network_namespaces())
    processes.start("containerd", ("containerd", "--config", config))
    until(lambda: bool(node.ctr("version")), "containerd")
    # Containers outlive containerd and kubelet.
    stack.callback(_end_containers, node)


def _kubelet(node: Node, processes: Processes) -> None:
    folder, certificates = node.folder, node.cluster.state.pki
    pki.signed(
        certificates, "kubelet", f"/O=system:nodes/CN=system:node:{NAME}", "extendedKeyUsage=clientAuth"
    )
    pki.signed(certificates, "kubelet-serving", f"/CN={NAME}", f"subjectAltName=IP:{ADDRESS}")
    kubeconfig = folder / "kubelet.kubeconfig"
    kubeconfig.write_text(pki.kubeconfig(certificates, "kubelet", node.cluster.server))
    config = folder / "kubelet.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": ADDRESS,
                "port": _KUBELET_PORT,
                "healthzPort": 0,
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": False},
                    "x509": {"clientCAFile": str(certificates / "ca.crt")},
                },
                "authorization": {"mode": "AlwaysAllow"},
                "tlsCertFile": str(certificates / "kubelet-serving.crt"),
                "tlsPrivateKeyFile": str(certificates / "kubelet-serving.key"),
                "containerRuntimeEndpoint": f"unix://{folder}/run/containerd.sock",
                "clusterDNS": [network.DNS],
                "clusterDomain": "cluster.local",
                "podLogsDir": str(folder / "pod-logs"),
                "volumePluginDir": str(folder / "volume-plugins"),
                # This machine's cgroups may be of version 1, and belong to no service manager.
                "failCgroupV1": False,
                "cgroupDriver": "cgroupfs",
                "cgroupsPerQOS": False,
                "enforceNodeAllocatable": [],
                # The disk is the machine's own; only what a pod writes counts.
                "evictionHard": {
                    "memory.available": "100Mi",
                    "nodefs.available": "1%",
                    "imagefs.available": "1%",
                },
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 99,
            }
        )
    )
    processes.start(
        "kubelet",
        (
            build.ensure(("kubelet",))["kubelet"],
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={folder / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in LABELS.items())}",
        ),
    )


def _ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _end_containers(node: Node) -> None:
    for name in node.ctr("tasks", "list", "-q").split():
        with contextlib.suppress(AssertionError):  # it may end meanwhile
            node.ctr("tasks", "kill", "--signal", "SIGKILL", "--all", name)
    deadline = time.monotonic() + 20
    while (left := node.ctr("tasks", "list", "-q").split()) and time.monotonic() < deadline:
        for name in left:
            with contextlib.suppress(AssertionError):
                node.ctr("tasks", "delete", "--force", name)
        time.sleep(0.2)


def _network_namespaces() -> frozenset[str]:
    folder = Path("/run/netns")
    return frozenset(each.name for each in folder.iterdir()) if folder.exists() else frozenset()


def _clean_up(folder: Path, others: frozenset[str]) -> None:
    """Removes what pods leave when their kubelet ends first: mounts below the folder, and network namespaces."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((each for each in mounted if each.startswith(f"{folder}/")), reverse=True):
        run("umount", "--lazy", point, check=False)
    for name in _network_namespaces() - others:
        run("ip", "netns", "delete", name, check=False)
