"""The two controllers that are compared, behind one interface."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import yaml

from devcluster.build import go_compiler, go_environment
from finetune_operator.objects import Object
from tests.bench.measure import stage_request
from tests.doubles.local_cluster import LocalCluster
from tests.go_modules import module_program
from tests.integration import fake_trainer
from tests.unit.rendering.golden_jobsets import first_jobsets, offline_admission

_PROFILE = "bench"
JOB_LABEL = "tpu-finetune.dev/job"
_PEER_MODULE = Path(__file__).with_name("peer")
_PEER_PACKAGE = "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
_PEER_QPS = 500
_START_SECONDS = 60


class System(Protocol):
    """A controller that makes JobSets of jobs."""

    name: str
    jobs: str
    """Path of the jobs' collection below the namespace, without the namespace."""
    stages: int
    """Number of JobSets of one job, one after the other."""

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Starts the controller and waits until it is ready."""

    def stop(self) -> None: ...

    def manifest(self, namespace: str, name: str) -> Object: ...

    def job_of(self, jobset: Object) -> str: ...

    def before_completion(self, jobset: Object) -> None:
        """Does what the pods of the JobSet would have done before they end."""

    def finished(self, job: Object) -> bool: ...


class FineTuneOperator:
    """This project's operator, as a pod of its own would run it.

    Args:
        cluster: the cluster.
        folder: for run folders and cache.
        profile: of the jobs; None: the one of the fake trainer, whose slices have one or two hosts.
    """

    name = "ours"
    jobs = "/apis/tpu-finetune.dev/v1alpha1/namespaces/{}/finetunejobs"
    stages = 5

    def __init__(self, cluster: LocalCluster, folder: Path, profile: Object | None = None) -> None:
        self._cluster = cluster
        used: Object = profile or fake_trainer.profile(_PROFILE, folder)
        self._profile: str = used["metadata"]["name"]
        cluster.start("operator")
        cluster.apply(used)
        cluster.stop("operator")

    @property
    def pid(self) -> int:
        pid: int = self._cluster.status()["operator"]["pid"]
        return pid

    def start(self) -> None:
        self._cluster.start("operator")

    def stop(self) -> None:
        self._cluster.stop("operator")

    def manifest(self, namespace: str, name: str) -> Object:
        return fake_trainer.job(namespace, name, self._profile)

    def job_of(self, jobset: Object) -> str:
        label: str = jobset["metadata"]["labels"][JOB_LABEL]
        return label

    def before_completion(self, jobset: Object) -> None:
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        request = stage_request(template["spec"])
        fake_trainer.write(fake_trainer.records(request, datetime.now(UTC)))

    def finished(self, job: Object) -> bool:
        return _condition(job, "Finished")


class KubeflowTrainer:
    """Kubeflow Trainer's controller, built from the module in ``peer/``, with its limit of requests raised."""

    name = "Kubeflow Trainer"
    jobs = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs"
    stages = 1

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._program = module_program(_PEER_MODULE, _PEER_PACKAGE)
        self._process: subprocess.Popen[bytes] | None = None
        module, plugins = (
            _module(each) for each in ("github.com/kubeflow/trainer/v2", "sigs.k8s.io/scheduler-plugins")
        )
        pod_groups = next(plugins.rglob("scheduling.x-k8s.io_podgroups.yaml"))
        for crd in (*sorted((module / "manifests/base/crds").glob("trainer*.yaml")), pod_groups):
            cluster.kubectl("apply", "--server-side", "-f", str(crd))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        runtime = module / "manifests/base/runtimes/jax_distributed.yaml"
        cluster.kubectl("apply", "--server-side", "-f", str(runtime))
        if not cluster.kubectl("get", "namespace", "kubeflow-system", "--ignore-not-found"):
            cluster.kubectl("create", "namespace", "kubeflow-system")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        ports = {name: _free_port() for name in ("health", "webhook")}
        certificates = _certificates()
        configuration = self._folder / "trainer.yaml"
        configuration.write_text(yaml.safe_dump(_peer_configuration(ports)))
        with (self._folder / "trainer.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "--config", str(configuration)],
                stdout=log,
                stderr=log,
                # It reads its webhook's certificate below the folder for temporary files.
                env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig), "TMPDIR": str(certificates)},
            )
        self._await_ready(ports["health"])

    def _await_ready(self, port: int) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > until:
                log = (self._folder / "trainer.log").read_text()
                raise RuntimeError(f"Kubeflow Trainer does not become ready:\n{log[-2000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                    return
            except OSError:
                time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            self._process = None

    def manifest(self, namespace: str, name: str) -> Object:
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"runtimeRef": {"name": "jax-distributed"}, "trainer": {"numNodes": 4}},
        }

    def job_of(self, jobset: Object) -> str:
        name: str = jobset["metadata"]["name"]
        return name

    def before_completion(self, jobset: Object) -> None:
        """Nothing: it reads the JobSet alone."""

    def finished(self, job: Object) -> bool:
        return _condition(job, "Complete")


class EqualJobSets(KubeflowTrainer):
    """Kubeflow Trainer with a runtime whose JobSets have the spec of the operator's first ones: the same pods, labels,
    policies and request, as constant text."""

    name = "Kubeflow Trainer, equal JobSets"

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        path = folder / "equal.yaml"
        path.write_text(yaml.safe_dump(_equal_runtime(folder)))
        cluster.kubectl("apply", "--server-side", "-f", str(path))

    def manifest(self, namespace: str, name: str) -> Object:
        manifest = super().manifest(namespace, name)
        return {**manifest, "spec": {"runtimeRef": {"name": "equal"}, "trainer": {"numNodes": 1}}}


def _equal_runtime(folder: Path) -> Object:
    job, profile = fake_trainer.job("bench", "equal", _PROFILE), fake_trainer.profile(_PROFILE, folder)
    _, jobset = first_jobsets(offline_admission(job, profile).plan)[0]
    (group,) = jobset["spec"]["replicatedJobs"]
    labels, pod = group["template"]["metadata"]["labels"], group["template"]["spec"]["template"]["spec"]
    # The names by which Kubeflow Trainer finds what it runs.
    group["name"] = pod["containers"][0]["name"] = "node"
    labels["trainer.kubeflow.org/trainjob-ancestor-step"] = "trainer"
    for rule in group["template"]["spec"]["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = "node"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "equal"},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": jobset["spec"]}},
    }


def _condition(found: Object, kind: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _peer_configuration(ports: Mapping[str, int]) -> Object:
    return {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {
            "healthProbeBindAddress": f"127.0.0.1:{ports['health']}",
            "readinessEndpointName": "readyz",
            "livenessEndpointName": "healthz",
        },
        "metrics": {"bindAddress": "0", "secureServing": False},
        "webhook": {"port": ports["webhook"], "host": "127.0.0.1"},
        "leaderElection": {
            "leaderElect": False,
            "resourceName": "trainer.kubeflow.org",
            "resourceNamespace": "kubeflow-system",
        },
        "controller": {
            "groupKindConcurrency": {
                "TrainJob.trainer.kubeflow.org": 5,
                "TrainingRuntime.trainer.kubeflow.org": 1,
                "ClusterTrainingRuntime.trainer.kubeflow.org": 1,
            }
        },
        "certManagement": {"enable": False, "webhookServiceName": "unused", "webhookSecretName": "unused"},
        "clientConnection": {"qps": _PEER_QPS, "burst": 2 * _PEER_QPS},
    }


def _module(name: str) -> Path:
    """Folder of a module that the peer is built from."""
    shown = subprocess.run(
        [str(go_compiler()), "list", "-m", "-json", name],
        cwd=_PEER_MODULE,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(json.loads(shown.stdout)["Dir"])


def _certificates() -> Path:
    """Makes a certificate for the peer's webhook, which is always served. Returns the folder to use as TMPDIR."""
    folder = Path(tempfile.mkdtemp(prefix="peer-"))
    target = folder / "k8s-webhook-server/serving-certs"
    target.mkdir(parents=True)
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(target / "tls.key"), "-out", str(target / "tls.crt"),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return folder


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port
