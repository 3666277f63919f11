"""The cluster of the container tests: real node, operator as a Deployment that helm installs, images that are pulled.

Without root or a program, every test is skipped, and the last line says so.
"""

import json
import shutil
from collections.abc import Iterator

import pytest
import yaml

from devcluster import build, gcs, install, samples
from devcluster.layout import CHART, MANIFESTS, cache_dir
from devcluster.operator_process import NAMESPACE, RELEASE
from tests.doubles.local_cluster import LocalCluster
from tests.e2e.user_client import UserClient
from tests.images import images
from tests.images.background import run
from tests.images.node import Node, joined, missing, registry

_LINES: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _LINES:
        terminalreporter.write_line(line)
    if (reason := missing()) is not None:
        terminalreporter.write_line(f"SKIPPED: no container was run, {reason}")


@pytest.fixture(scope="session")
def pushed() -> Iterator[None]:
    """The images, built and in the registry."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    images.build_all()
    with registry(cache_dir() / "registry"):
        images.push_all()
        yield


@pytest.fixture(scope="session")
def node(pushed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with LocalCluster.started(tmp_path_factory.mktemp("cluster")) as cluster:
        try:
            with joined(cluster, folder) as running:
                _install_operator(running)
                _use_images(running)
                yield running
        finally:
            for heavy in ("containerd", "kubelet"):
                shutil.rmtree(folder / heavy, ignore_errors=True)


@pytest.fixture(scope="module")
def bench(node: Node) -> UserClient:
    """A restricted namespace of the module's own."""
    for item in (samples.TINY_MODEL, samples.CAPITALS):
        samples.put(item, node.store)
    return UserClient(
        kubectl_binary=node.cluster.kubectl_program,
        kubeconfig=node.cluster.kubeconfig,
        namespace=node.cluster.namespace("images"),
        gcs_endpoint=node.store,
    )


def helm(node: Node, *arguments: str) -> str:
    common = ("--kubeconfig", str(node.cluster.kubeconfig), "--namespace", NAMESPACE)
    return run(build.ensure()["helm"], *arguments, *common)


def _install_operator(node: Node) -> None:
    """Installs the whole chart with helm, in place of the parts that the local cluster has applied."""
    rendered = run(
        build.ensure()["helm"],
        "template",
        RELEASE,
        CHART,
        "--namespace",
        NAMESPACE,
        "--kube-version",
        "1.36.3",
    )
    node.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=rendered)
    repository, _, tag = images.OPERATOR.rpartition(":")
    store = [{"name": key, "value": value} for key, value in gcs.client_environment(node.store).items()]
    helm(
        node,
        *("install", RELEASE, str(CHART), "--wait", "--timeout", "5m"),
        *("--set", f"image.repository={repository},image.tag={tag}"),
        # Convert and Export request two cores, which may be all that this machine has.
        *("--set-string", "resources.requests.cpu=0"),
        *("--set-json", f"operator.env={json.dumps(store)}"),
    )


def _use_images(node: Node) -> None:
    """The profile `local` with real images on this node: one chip, computed on the CPU."""
    (profile,) = install.documents(MANIFESTS / "profile-local.yaml")
    flavor = profile["spec"]["flavors"][0]
    variables = {"JAX_PLATFORMS": "cpu", **gcs.client_environment(node.store)}
    profile["spec"] |= {
        "images": {"trainer": images.TRAINER, "cpu": images.CPU_TRAINER},
        "flavors": [{**flavor, "topologies": ["1x1"], "chipsPerHost": 1, "hostResources": {}}],
        "cpuPool": {"maxMemory": "8Gi"},
        "pod": {"env": [{"name": name, "value": value} for name, value in variables.items()]},
    }
    node.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(profile))


@pytest.fixture
def report() -> list[str]:
    """Lines for docs/benchmarks.md, which the summary prints."""
    return _LINES
