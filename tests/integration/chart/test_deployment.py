"""The Deployment that helm installs, run by its manifest: command, environment, probes, grace period and account.

The nodes of the local cluster have no mounts and no pod network, so this test replaces the kubelet: it starts the
container as a process, with the account's token in a folder and with free ports in place of the pod's own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from finetune_operator.cluster.releases import SERVES
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.chart.conftest import CHART, CLUSTER_ROLE, Helm

PROFILE = "packaged"
IMAGE = "localhost/finetune-operator"
#: Used as the pod's name.
POD = "operator-pod"


@pytest.fixture
def release(cluster: LocalCluster, helm: Helm, namespace: str, unclaimed: None) -> Iterator[str]:
    """Name of a release that serves its own namespace. The cluster's own operator is stopped meanwhile."""
    cluster.stop("operator")
    release = f"of-{namespace}"
    common = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    settings = (
        f"crds.install=false,namespaces={{{namespace}}},image.repository={IMAGE},test.namespace={namespace}"
    )
    tested = f"test.job={json.dumps(fake_trainer.job(namespace, 'x', PROFILE)['spec'])}"
    installed = helm("install", release, str(CHART), *common, "--set", settings, "--set-json", tested)
    assert installed.returncode == 0, installed.stderr
    yield release
    removed = helm("uninstall", release, *common)
    assert removed.returncode == 0, removed.stderr


def test_the_deployment_becomes_ready_and_takes_the_job_of_helm_test_to_planned(
    cluster: LocalCluster, helm: Helm, release: str, namespace: str, tmp_path: Path
) -> None:
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(tmp_path / "bin"))
    cluster.apply(fake_trainer.profile(PROFILE, tmp_path))
    name = f"{release}-finetune-operator"
    deployment = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    with started(cluster, deployment, namespace, tmp_path) as pod:
        pod.await_probe("readinessProbe")
        assert pod.probe("livenessProbe") == 200
        cluster.wait(lease, lambda found: found["spec"]["holderIdentity"] == POD)

        code, said = judged(cluster, helm, release, namespace, tmp_path / "test")
        assert (code, said.split(":")[0]) == (0, "helm-test Planned"), said
        job = f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs/helm-test"
        done = cluster.get(job)
        assert finished(done) == "Planned"
        assert done["status"]["summary"].startswith("Planned")
        assert b'finetune_api_requests_total{code="201",resource="jobsets",verb="create"}' in pod.fetch(
            "metrics", "/metrics"
        )

        assert pod.terminated() == 0
        assert cluster.get(lease)["spec"]["holderIdentity"] == ""


def test_a_pod_beside_an_earlier_release_of_its_namespace_waits_until_that_has_gone(
    cluster: LocalCluster, release: str, namespace: str, tmp_path: Path
) -> None:
    """As after Argo CD has applied both: the cluster's operator serves every namespace."""
    deployment = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{release}-finetune-operator")
    cluster.patch(CLUSTER_ROLE, {"metadata": {"annotations": {SERVES: "*"}}})
    with started(cluster, deployment, namespace, tmp_path) as pod:
        pod.await_text("readinessProbe", f'ClusterRole "finetune-operator" serves {namespace} already')
        cluster.patch(CLUSTER_ROLE, {"metadata": {"annotations": {SERVES: None}}})
        pod.await_probe("readinessProbe")


def test_a_pod_whose_rights_are_gone_is_alive_but_not_ready_and_says_why(
    cluster: LocalCluster, helm: Helm, release: str, namespace: str, tmp_path: Path
) -> None:
    name = f"{release}-finetune-operator"
    deployment = cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
    cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}")
    with started(cluster, deployment, namespace, tmp_path) as pod:
        pod.await_probe("livenessProbe")
        pod.await_text("readinessProbe", "cannot be listed")
        assert pod.probe("readinessProbe") == 503
        # It leaves the Lease to an operator that can work.
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        assert cluster.find(lease) is None
        assert pod.terminated() == 0


def judged(cluster: LocalCluster, helm: Helm, release: str, namespace: str, folder: Path) -> tuple[int, str]:
    """Creates the objects of ``helm test`` and runs its pod's container. Returns exit code and output."""
    hooks = helm("get", "hooks", release, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    assert hooks.returncode == 0, hooks.stderr
    objects = {each["kind"]: each for each in yaml.safe_load_all(hooks.stdout) if each}
    pod, config = objects.pop("Pod"), objects["ConfigMap"]["data"]["kubeconfig"]
    for each in sorted(
        objects.values(), key=lambda it: str(it["metadata"]["annotations"]["helm.sh/hook-weight"])
    ):
        cluster.apply(each)
    folder.mkdir()
    mounted = _account(cluster, pod["spec"]["serviceAccountName"], namespace, folder)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        config.replace("https://kubernetes.default.svc", cluster.server).replace(
            "/var/run/secrets/kubernetes.io/serviceaccount", str(mounted)
        )
    )
    (container,) = pod["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    command = [
        each.replace(f"{mount['mountPath']}/kubeconfig", str(kubeconfig)) for each in container["command"]
    ]
    command[0] = str(Path(sys.executable).parent / command[0])
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd="/")
    return ran.returncode, ran.stdout + ran.stderr


def finished(job: Mapping[str, Any]) -> str:
    """Reason of the condition Finished if it is True, else empty."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((c["reason"] for c in conditions if c["type"] == "Finished" and c["status"] == "True"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The container's process and its pod's spec."""

    process: subprocess.Popen[bytes]
    spec: Mapping[str, Any]
    ports: Mapping[str, int]
    """Name of the container's port -> actual port number."""
    log: Path

    def probe(self, kind: str) -> int:
        """HTTP status of one probe's answer; 0 without an answer."""
        return self._ask(kind)[0]

    def await_probe(self, kind: str) -> None:
        """Returns at the probe's first success."""
        self._await(kind, lambda status, _: status == 200)

    def await_text(self, kind: str, text: str) -> None:
        """Returns when the probe's answer contains ``text``."""
        self._await(kind, lambda _, answer: text in answer)

    def fetch(self, port: str, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def terminated(self) -> int:
        """Exit code after SIGTERM. Raises TimeoutExpired if the grace period does not suffice."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.spec["terminationGracePeriodSeconds"])

    def _ask(self, kind: str) -> tuple[int, str]:
        get = self.spec["containers"][0][kind]["httpGet"]
        try:
            return 200, self.fetch(get["port"], get["path"]).decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def _await(self, kind: str, good: Callable[[int, str], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not good(*(seen := self._ask(kind))):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{kind}: {seen}\n{self.log.read_text()}"
            time.sleep(0.1)  # probes can only be polled


@contextmanager
def started(
    cluster: LocalCluster,
    deployment: Mapping[str, Any],
    namespace: str,
    folder: Path,
    code: Sequence[Path] = (),
    name: str = POD,
    port: int | None = None,
) -> Iterator[Pod]:
    """The pod's container as a process; killed at the end if it still runs.

    ``code``: folders with the packages of another release; otherwise the installed ones run. ``name``: of the pod.
    ``port``: at which it finds the API server; None: its own.
    """
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"].startswith(IMAGE)
    free = {port["name"]: _free_port() for port in container["ports"]}
    api = urlsplit(cluster.server)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/",
        **{entry["name"]: entry.get("value", "") for entry in container["env"]},
        "PYTHONPATH": os.pathsep.join(map(str, code)),
        # set and mounted by a kubelet
        "KUBERNETES_SERVICE_HOST": str(api.hostname),
        "KUBERNETES_SERVICE_PORT": str(port or api.port),
        "FINETUNE_SERVICEACCOUNT_DIR": str(_account(cluster, spec["serviceAccountName"], namespace, folder)),
        # in place of a pod's name and network
        "FINETUNE_IDENTITY": name,
        "FINETUNE_HEALTH_HOST": "127.0.0.1",
        "FINETUNE_HEALTH_PORT": str(free["health"]),
        "FINETUNE_METRICS_PORT": str(free["metrics"]),
    }
    log = folder / "operator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            container["command"], env=environment, cwd="/", stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Pod(process=process, spec=spec, ports=free, log=log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _account(cluster: LocalCluster, name: str, namespace: str, folder: Path) -> Path:
    """Creates the folder that a kubelet mounts for the account: token, ca.crt, namespace."""
    mounted = folder / "serviceaccount"
    mounted.mkdir()
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = mounted / "token"
    os.close(os.open(token, os.O_CREAT, 0o600))
    token.write_text(cluster.create(path, request)["status"]["token"])
    roots = cluster.get(f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt")
    (mounted / "ca.crt").write_text(roots["data"]["ca.crt"])
    (mounted / "namespace").write_text(namespace)
    return mounted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
