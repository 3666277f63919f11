"""The session's cluster: one real control plane for all tests, in its own folder, stopped after the last test.

Fixtures
    cluster   devcluster.testing.LocalCluster, without an operator until a test starts one (see the class's docstring)
    namespace a fresh namespace of that cluster, with the service accounts that stage pods use
    operator  the cluster, with the operator running as its own ServiceAccount; started again if a test stopped it
    runs      folder of the fake trainer's programs and run folders
    double    a cluster with the operator and a profile whose stages take no time
    held      the same, but stages last until they are killed
    training  like double, but training lasts until it is ended
    watches_are_late
              the operator learns of changes late and its watches are reset, during a module (tests.late_watches)
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.testing import LocalCluster
from finetune_contract import Stage
from tests.integration import fake_trainer
from tests.integration.invariants import nothing_doubled
from tests.integration.jobs import PROFILE
from tests.late_watches import late_watches


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # No stage runs the real trainer here, so no test waits for its imports.
    with LocalCluster.started(tmp_path_factory.mktemp("cluster"), warm=False) as running:
        yield running


@pytest.fixture(scope="module")
def watches_are_late(cluster: LocalCluster) -> Iterator[None]:
    with late_watches(cluster):
        yield


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
