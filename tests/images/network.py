"""The node's network: a bridge for pods, Services by kube-proxy, and names by CoreDNS."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from devcluster import build, pki
from devcluster.layout import cache_dir
from tests.doubles.local_cluster import LocalCluster
from tests.images.background import Processes, answers, run, until

#: Of the bridge that pods are connected to; registry, object store, kubelet and DNS listen here. 198.18.0.0/15 is
#: reserved for tests of networks, so no machine uses it.
ADDRESS = "198.18.7.1"
NETWORK = "198.18.7.0/24"
BRIDGE = "finetune0"
#: Addresses of Services.
DNS = "10.96.0.10"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_API_SERVER_PORT = 6443
_DNS_PORTS: Sequence[Mapping[str, object]] = (
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
)
_PROXY_HEALTH = f"{ADDRESS}:10256"
#: A Go module of its own: CoreDNS needs other versions of Kubernetes' libraries than the local cluster's programs.
_COREDNS = Path(__file__).parent / "coredns"


def bridge(stack: ExitStack) -> None:
    run("ip", "link", "delete", BRIDGE, check=False)
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    stack.callback(run, "ip", "link", "delete", BRIDGE, check=False)
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    # A Service leads from one pod to another through the machine.
    before = _FORWARD.read_text()
    _FORWARD.write_text("1")
    stack.callback(_FORWARD.write_text, before)


def services(cluster: LocalCluster, node: str, folder: Path, processes: Processes, stack: ExitStack) -> None:
    """Starts what answers at addresses and names of Services, in pods and on the node."""
    # The API server listens on loopback, where no pod reaches it.
    listen = f"TCP-LISTEN:{_API_SERVER_PORT},bind={ADDRESS},fork,reuseaddr"
    processes.start(
        "api-server-address", ("socat", listen, f"TCP:127.0.0.1:{cluster.ports['kube-apiserver']}")
    )
    api_server = {"name": "https", "port": _API_SERVER_PORT, "protocol": "TCP"}
    objects = [
        _endpoints("default", "kubernetes", [api_server]),
        _dns_service(),
        _endpoints("kube-system", "kube-dns", _DNS_PORTS),
    ]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    _kube_proxy(cluster, node, folder, processes, stack)
    _core_dns(cluster, folder, processes)


def coredns() -> Path:
    """The program, built once for its module's pins."""
    digest = hashlib.sha256((_COREDNS / "go.mod").read_bytes() + (_COREDNS / "go.sum").read_bytes())
    program = cache_dir() / "go" / f"coredns-{digest.hexdigest()[:12]}" / "coredns"
    if not program.exists():
        partial = program.with_suffix(".partial")
        command = (build.go_compiler(), "build", "-trimpath", "-ldflags=-s -w", "-o", partial)
        package = "github.com/coredns/coredns"
        subprocess.run([*command, package], cwd=_COREDNS, env=build.go_environment(), check=True)
        partial.replace(program)
    return program


def _kube_proxy(
    cluster: LocalCluster, node: str, folder: Path, processes: Processes, stack: ExitStack
) -> None:
    certificates = cluster.state.pki
    pki.signed(certificates, "kube-proxy", "/CN=system:kube-proxy", "extendedKeyUsage=clientAuth")
    kubeconfig = folder / "kube-proxy.kubeconfig"
    kubeconfig.write_text(pki.kubeconfig(certificates, "kube-proxy", cluster.server))
    config = folder / "kube-proxy.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                # Pods of one bridge answer each other past the rules that would translate a Service's address back.
                "iptables": {"masqueradeAll": True},
                "clientConnection": {"kubeconfig": str(kubeconfig)},
                "hostnameOverride": node,
                "clusterCIDR": NETWORK,
                "healthzBindAddress": _PROXY_HEALTH,
                "metricsBindAddress": f"{ADDRESS}:10249",
                "nodePortAddresses": [NETWORK],
                # The machine's limits of tracked connections stay as they are.
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
            }
        )
    )
    program = build.ensure(("kube-proxy",))["kube-proxy"]
    stack.callback(run, program, "--cleanup", f"--config={config}", check=False)
    processes.start("kube-proxy", (program, f"--config={config}"))
    until(lambda: answers(f"http://{_PROXY_HEALTH}/healthz"), "kube-proxy")


def _core_dns(cluster: LocalCluster, folder: Path, processes: Processes) -> None:
    config = folder / "Corefile"
    config.write_text(
        f""".:53 {{
    bind {ADDRESS}
    errors
    ready {ADDRESS}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {cluster.kubeconfig}
    }}
}}
"""
    )
    processes.start("coredns", (coredns(), "-conf", config))
    until(lambda: answers(f"http://{ADDRESS}:8181/ready"), "CoreDNS")


def _dns_service() -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS, "ports": list(_DNS_PORTS)},
    }


def _endpoints(namespace: str, service: str, ports: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Endpoints of a Service without a selector, at the node's address."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ADDRESS]}],
        "ports": list(ports),
    }
