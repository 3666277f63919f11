"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler: the flags that make them a one-machine cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster.component import Component
from devcluster.layout import StateFolder

#: The controllers for jobs, pods, namespaces and garbage collection. No cloud, no volumes, no services.
CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "ttl-after-finished-controller",
    "pod-garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
    "taint-eviction-controller",
    "node-lifecycle-controller",
    "disruption-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
)
#: Benchmarks create a thousand objects at once; the default rates are for shared clusters.
CLIENT_RATE = ("--kube-api-qps=1000", "--kube-api-burst=2000")


def etcd(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    client, peer = f"http://127.0.0.1:{ports['etcd']}", f"http://127.0.0.1:{ports['etcd-peer']}"
    return Component(
        name="etcd",
        argv=(
            str(programs["etcd"]),
            f"--data-dir={state.etcd}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # the disk need not confirm every write: the cluster can be recreated
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={4 << 30}",
            "--auto-compaction-retention=5m",
            # as kubeadm and GKE set it: without it, watches of kinds that do not change get no bookmarks
            "--watch-progress-notify-interval=5s",
            "--log-level=warn",
        ),
        ready_url=f"{client}/health",
    )


def apiserver(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    pki = state.pki
    return Component(
        name="kube-apiserver",
        argv=(
            str(programs["kube-apiserver"]),
            f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={ports['kube-apiserver']}",
            f"--tls-cert-file={pki / 'tls.crt'}",
            f"--tls-private-key-file={pki / 'tls.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            # nothing serves the service "kubernetes" here; clients are given the address
            "--endpoint-reconciler-type=none",
            "--authorization-mode=Node,RBAC",
            # namespaces decide whether a pod may be privileged, as on GKE
            "--allow-privileged=true",
            "--max-requests-inflight=1500",
            "--max-mutating-requests-inflight=800",
            f"--cert-dir={state.root / 'certs'}",
        ),
        ready_url=f"{address(ports)}/readyz",
        ready_seconds=120,
    )


def controller_manager(
    state: StateFolder,
    programs: Mapping[str, Path],
    ports: Mapping[str, int],
    controllers: Sequence[str] = CONTROLLERS,
) -> Component:
    return Component(
        name="kube-controller-manager",
        argv=(
            str(programs["kube-controller-manager"]),
            f"--kubeconfig={state.user_kubeconfig('controller-manager')}",
            "--leader-elect=false",
            # each controller acts with its own permissions, as on a real cluster
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={state.pki / 'sa.key'}",
            f"--root-ca-file={state.pki / 'ca.crt'}",
            f"--controllers={','.join(controllers)}",
            "--concurrent-job-syncs=20",
            # pods that have ended stay until their jobs are deleted, however many there are
            "--terminated-pod-gc-threshold=0",
            # training may starve the node agent of CPU for a while on a small machine
            "--node-monitor-grace-period=2m",
            *CLIENT_RATE,
            *_serving(state, ports["kube-controller-manager"]),
        ),
        ready_url=f"https://127.0.0.1:{ports['kube-controller-manager']}/healthz",
    )


def scheduler(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    return Component(
        name="kube-scheduler",
        argv=(
            str(programs["kube-scheduler"]),
            f"--kubeconfig={state.user_kubeconfig('scheduler')}",
            "--leader-elect=false",
            *CLIENT_RATE,
            *_serving(state, ports["kube-scheduler"]),
        ),
        ready_url=f"https://127.0.0.1:{ports['kube-scheduler']}/healthz",
    )


def address(ports: Mapping[str, int]) -> str:
    """The API server's URL."""
    return f"https://127.0.0.1:{ports['kube-apiserver']}"


def _serving(state: StateFolder, port: int) -> tuple[str, ...]:
    return (
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={state.pki / 'tls.crt'}",
        f"--tls-private-key-file={state.pki / 'tls.key'}",
    )
