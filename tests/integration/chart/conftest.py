"""Fixtures that run helm from the build cache (built on first use)."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.cluster.releases import SERVES
from tests.doubles.local_cluster import LocalCluster
from tests.integration import helm as helm_program

CHART = Path(__file__).parents[3] / "charts" / "finetune-operator"
#: Of the cluster's own operator.
CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/finetune-operator"

type Helm = Callable[..., subprocess.CompletedProcess[str]]
type Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs helm with the given arguments; the caller checks the exit code."""
    return helm_program.helm


class _Strict(yaml.SafeLoader):
    """Refuses a mapping with two equal keys, as Flux and Kustomize do; helm and PyYAML take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{sorted(keys)}{node.start_mark}"
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart."""
    return [document for document in yaml.load_all(text, _Strict) if document]


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The chart's objects as release ``finetune-operator`` in ``finetune-system``, with these --set values."""

    def objects(*settings: str) -> list[dict[str, Any]]:
        options = [option for setting in settings for option in ("--set", setting)]
        done = helm("template", "finetune-operator", str(CHART), "--namespace", "finetune-system", *options)
        assert done.returncode == 0, done.stderr
        return documents(done.stdout)

    return objects


@pytest.fixture
def unclaimed(cluster: LocalCluster) -> Iterator[None]:
    """The cluster's own operator does not say that it serves every namespace: helm would refuse a release beside it."""
    cluster.patch(CLUSTER_ROLE, {"metadata": {"annotations": {SERVES: None}}})
    yield
    cluster.patch(CLUSTER_ROLE, {"metadata": {"annotations": {SERVES: "*"}}})
