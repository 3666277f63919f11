"""The session's cluster: one real control plane for all tests, in its own folder, stopped after the last test.

Fixtures
    cluster   a LocalCluster (tests.doubles.local_cluster), without an operator until a test starts one
    namespace a fresh namespace of that cluster, with the service accounts that stage pods use
    nodes_are_free
              of itself, after each module: what its tests ran, also those that failed, no longer holds a node
    operator  the cluster, with the operator running as its own ServiceAccount; started again if a test stopped it
    runs      folder of the fake trainer's programs and run folders
    double    a cluster with the operator and a profile whose stages take no time
    held      the same, but stages last until they are killed
    training  like double, but training lasts until it is ended
    watches_are_late
              the operator learns of changes late and its watches are reset, during a module (tests.late_watches)
"""

import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from finetune_contract import Stage
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, ClusterError, ResourceKind
from finetune_operator.objects import Object
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.invariants import nothing_doubled
from tests.integration.jobs import PROFILE
from tests.late_watches import late_watches

HOLDERS = (
    JOBS,
    JOBSETS,
    ResourceKind("batch", "v1", "jobs"),
    PODS,
)
"""What holds nodes, owners first."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # No stage runs the real trainer here, so no test waits for its imports.
    with LocalCluster.started(tmp_path_factory.mktemp("cluster"), warm=False) as running:
        yield running


@pytest.fixture(scope="module")
def watches_are_late(cluster: LocalCluster) -> Iterator[None]:
    with late_watches(cluster):
        yield


@pytest.fixture(scope="module", autouse=True)
def nodes_are_free(request: pytest.FixtureRequest) -> Iterator[None]:
    tests = (item for item in request.session.items if isinstance(item, pytest.Function))
    if not any(test.module is request.module and "cluster" in test.fixturenames for test in tests):
        yield
        return
    cluster: LocalCluster = request.getfixturevalue("cluster")
    yield
    # Owners first, so that none of their controllers creates a child again.
    for resource in HOLDERS:
        held = [item["metadata"] for item in _listed(cluster, resource)]
        paths = [resource.path(metadata["namespace"], metadata["name"]) for metadata in held]
        for path in paths:
            cluster.delete(path, gracePeriodSeconds=0, propagationPolicy="Background")
        for path in paths:
            cluster.wait_gone(path)


def _listed(cluster: LocalCluster, resource: ResourceKind, seconds: float = 30) -> list[Object]:
    """All objects of the resource. It polls while the API server reinitializes a CRD that a test has changed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return cluster.list(resource.path(None))
        except ClusterError as refusal:
            if refusal.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


@pytest.fixture
def namespace(cluster: LocalCluster) -> str:
    return cluster.namespace()


@pytest.fixture
def operator(cluster: LocalCluster) -> LocalCluster:
    cluster.start("operator")
    return cluster


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("double")


@pytest.fixture
def double(operator: LocalCluster, runs: Path) -> LocalCluster:
    operator.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
    operator.apply(fake_trainer.profile(PROFILE, runs))
    return operator


@pytest.fixture
def held(operator: LocalCluster, runs: Path) -> LocalCluster:
    operator.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "slow", seconds=3600))
    operator.apply(fake_trainer.profile(PROFILE, runs))
    return operator


@pytest.fixture
def training(operator: LocalCluster, runs: Path) -> Iterator[LocalCluster]:
    """A cluster with the operator. Stages take no time, except training, which lasts until it is ended.

    Asserts that no job ever has two live JobSets, and no worker of a slice two live pods.
    """
    slow = fake_trainer.install(runs / "training", seconds=3600, stages=[Stage.TRAIN])
    operator.add_image(fake_trainer.IMAGE, slow)
    operator.apply(fake_trainer.profile(PROFILE, runs))
    with nothing_doubled(operator):
        yield operator
