"""The network access that the pinned JAX needs is what the documents tell users to allow."""

import inspect
from pathlib import Path

import jax
import yaml
from jax._src.clusters.cloud_tpu_cluster import coordinator_port

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "docs" / "security.md").read_text()


def test_the_coordinators_port_is_the_one_that_is_opened() -> None:
    policy = yaml.safe_load((ROOT / "examples" / "cluster" / "networkpolicy.yaml").read_text())
    assert f"| {coordinator_port} | JAX's coordinator" in SECURITY
    for rules in (policy["spec"]["ingress"], policy["spec"]["egress"]):
        assert int(coordinator_port) in [entry["port"] for rule in rules for entry in rule["ports"]]


def test_hosts_wait_for_each_other_as_long_as_the_page_says() -> None:
    timeout = inspect.signature(jax.distributed.initialize).parameters["initialization_timeout"].default
    assert f"all hosts wait {timeout} s" in SECURITY
