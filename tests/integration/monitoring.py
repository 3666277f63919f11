"""A real Prometheus with the shipped alerts, and a real kube-state-metrics with the shipped configuration."""

import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from devcluster.layout import ROOT
from tests.doubles.local_cluster import LocalCluster
from tests.go_modules import module_program

ALERTS = ROOT / "charts" / "finetune-operator" / "alerts.yaml"
MANIFEST = ROOT / "deploy" / "kube-state-metrics" / "kube-state-metrics.yaml"
SERIES = ROOT / "deploy" / "kube-state-metrics" / "custom-resource-state.yaml"
PROGRAM = shutil.which("prometheus")
_MODULE = ROOT / "tests" / "kube_state_metrics"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: What alerts.yaml's waits (`for`) and windows are divided by.
_WAITS, _WINDOWS = 60, 10


def shortened(rules: str) -> str:
    """The alerts with shorter times: evaluated each second, waits (`for`) a sixtieth, windows a tenth as long.

    Expressions, thresholds, labels and texts are the shipped ones.
    """
    document = yaml.safe_load(rules)
    for group in document["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = _shorter(rule["for"], _WAITS)
            rule["expr"] = re.sub(
                r"\[(\w+)\]", lambda found: f"[{_shorter(found.group(1), _WINDOWS)}]", rule["expr"]
            )
    return yaml.safe_dump(document)


def _shorter(duration: str, factor: int) -> str:
    seconds = int(duration[:-1]) * _UNITS[duration[-1]]
    assert seconds % factor == 0, duration
    return f"{seconds // factor}s"


type Series = tuple[Mapping[str, str], float]
"""Labels and value."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    address: str
    started: float
    """Seconds since the epoch."""

    def query(self, expr: str) -> list[Series]:
        """The values now."""
        return [(each["metric"], float(each["value"][1])) for each in self._ask("query", query=expr)]

    def has_had(self, expr: str) -> bool:
        """Whether the query has a series now or has had one since the start; NaN is no value."""
        if not all(math.isnan(value) for _, value in self.query(expr)):
            return True
        found = self._ask("query_range", query=expr, start=f"{self.started}", end=f"{time.time()}", step="2")
        return any(value != "NaN" for each in found for _, value in each["values"])

    def firing(self, alert: str | None = None) -> list[Mapping[str, str]]:
        """Labels of the alerts that fire, or of those of that name."""
        selected = f', alertname="{alert}"' if alert else ""
        return [labels for labels, _ in self.query(f'ALERTS{{alertstate="firing"{selected}}}')]

    def fires(self, alert: str, *, seconds: float = 60, **labels: str) -> Mapping[str, str]:
        """The labels of the alert once it fires with such labels."""
        return self._awaited(alert, labels, seconds, fires=True)

    def resolves(self, alert: str, *, seconds: float = 60, **labels: str) -> None:
        """Returns once no alert of that name fires with such labels."""
        self._awaited(alert, labels, seconds, fires=False)

    def _awaited(
        self, alert: str, labels: Mapping[str, str], seconds: float, *, fires: bool
    ) -> Mapping[str, str]:
        # It polls, because Prometheus reports alerts to an Alertmanager alone.
        deadline = time.monotonic() + seconds
        while True:
            found = next((each for each in self.firing(alert) if labels.items() <= each.items()), None)
            if (found is not None) is fires:
                return found or {}
            assert time.monotonic() < deadline, (
                f"{alert} {'does not fire' if fires else 'still fires'} after {seconds:.0f} s: {found}, "
                f"pending or firing: {self.query('ALERTS')}"
            )
            time.sleep(0.5)

    def _ask(self, what: str, **parameters: str) -> list[dict[str, Any]]:
        url = f"{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        return found


@contextmanager
def prometheus(folder: Path, port: int, *, operator: int, kube_state_metrics: int) -> Iterator[Prometheus]:
    """Runs Prometheus on that port with the :func:`shortened` alerts.

    It scrapes the operator at its port each second, with a label `namespace` as a ServiceMonitor gives it.
    """
    assert PROGRAM is not None
    folder.mkdir(parents=True)
    (folder / "alerts.yaml").write_text(shortened(ALERTS.read_text()))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [
            {
                "job_name": "finetune-operator",
                "static_configs": [
                    {"targets": [f"127.0.0.1:{operator}"], "labels": {"namespace": "finetune-system"}}
                ],
            },
            {
                "job_name": "kube-state-metrics",
                "honor_labels": True,
                "static_configs": [
                    {"targets": [f"127.0.0.1:{kube_state_metrics}"], "labels": {"namespace": "monitoring"}}
                ],
            },
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    arguments = [
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    address = f"http://127.0.0.1:{port}"
    with _process([PROGRAM, *arguments], folder / "prometheus.log", f"{address}/-/ready"):
        yield Prometheus(address, time.time())


@dataclass(frozen=True, slots=True)
class KubeStateMetrics:
    """One that runs."""

    port: int

    def samples(self, job: str, namespace: str) -> list[Sample]:
        """The series of a job."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        wanted = {"name": job, "namespace": namespace}
        return [
            sample
            for family in families
            for sample in family.samples
            if wanted.items() <= sample.labels.items()
        ]


@contextmanager
def kube_state_metrics(
    cluster: LocalCluster, folder: Path, ports: Sequence[int]
) -> Iterator[KubeStateMetrics]:
    """Runs kube-state-metrics with the rights of the shipped manifest, on two ports."""
    folder.mkdir(parents=True)
    config = folder / "kubeconfig"
    config.touch(mode=0o600)
    config.write_text(json.dumps(_kubeconfig(cluster)))
    arguments = [
        f"--kubeconfig={config}",
        "--custom-resource-state-only",
        f"--custom-resource-state-config-file={SERIES}",
        "--host=127.0.0.1",
        f"--port={ports[0]}",
        "--telemetry-host=127.0.0.1",
        f"--telemetry-port={ports[1]}",
    ]
    program = module_program(_MODULE, "k8s.io/kube-state-metrics/v2")
    ready = f"http://127.0.0.1:{ports[0]}/healthz"
    with _process([str(program), *arguments], folder / "kube-state-metrics.log", ready):
        yield KubeStateMetrics(ports[0])


def _kubeconfig(cluster: LocalCluster) -> Mapping[str, Any]:
    """Of the account of the shipped manifest, which may list and watch jobs and CRDs, nothing else."""
    name = "finetune-job-series"
    cluster.kubectl("create", "namespace", "monitoring")
    cluster.kubectl("apply", "--dry-run=server", "-f", str(MANIFEST))
    rights = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] != "Deployment"]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    path = f"/api/v1/namespaces/monitoring/serviceaccounts/{name}/token"
    token = cluster.create(path, request)["status"]["token"]
    server = {"server": cluster.server, "certificate-authority": str(cluster.state.pki / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": server}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
        "current-context": "local",
    }


@contextmanager
def _process(command: Sequence[str], log: Path, ready: str, seconds: float = 60) -> Iterator[None]:
    """Runs a program until the end of the block, which begins when the URL ``ready`` answers."""
    with log.open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + seconds
            while not _answers(ready):
                alive = running.poll() is None and time.monotonic() < deadline
                assert alive, f"{command[0]} does not become ready:\n{log.read_text()[-2000:]}"
                time.sleep(0.2)
            yield
        finally:
            running.terminate()
            running.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
