"""``finetune init`` against a real API server, which accepts what it writes, and whose jobs it copies."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from finetune_operator.api import MethodType
from tests.doubles.local_cluster import LocalCluster

FINETUNE = Path(sys.executable).with_name("finetune")
HARD = "gs://bucket/a: b 'c' \"d\" {e} - yes"


def init(cluster: LocalCluster, *arguments: str) -> str:
    """What ``finetune init`` prints in a pipe."""
    done = subprocess.run(
        [FINETUNE, "init", *arguments],
        env={"PATH": "/usr/bin:/bin", **cluster.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dry_run(cluster: LocalCluster, namespace: str, text: str) -> str:
    return cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", "-o", "yaml", stdin=text)


@pytest.mark.parametrize("tuning", [["--lora"], ["--no-lora"], ["--quantization", "NF4"]])
@pytest.mark.parametrize("method", MethodType)
def test_the_api_server_accepts_the_manifest_of_each_method(
    cluster: LocalCluster, namespace: str, method: MethodType, tuning: list[str]
) -> None:
    text = init(cluster, "--model", HARD, "--dataset", HARD, "--method", method.value, *tuning)
    stored = yaml.safe_load(dry_run(cluster, namespace, text))
    assert stored["spec"]["model"]["uri"] == HARD
    assert stored["spec"]["method"]["type"] == method


def test_a_copy_of_a_job_is_accepted_beside_it(cluster: LocalCluster, namespace: str) -> None:
    cluster.stop("operator")
    text = init(cluster, "--model", "a/b", "--dataset", "a/b", "--name", "first", "-n", namespace)
    cluster.kubectl("apply", "-f", "-", stdin=text)
    copy = init(cluster, "--from", "first", "-n", namespace)
    assert yaml.safe_load(copy)["metadata"] == {"name": "first-2", "namespace": namespace}
    assert yaml.safe_load(copy)["spec"] == yaml.safe_load(text)["spec"]
    assert "first-2 created" in cluster.kubectl("apply", "-f", "-", stdin=copy)
    assert yaml.safe_load(init(cluster, "--from", "first", "-n", namespace))["metadata"]["name"] == "first-3"
