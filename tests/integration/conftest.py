"""The session's cluster: one real control plane for all tests, in a folder of its own, ended at the end.

Fixtures
    cluster   devcluster.testing.Cluster, without an operator until a test asks for one (its docstring is the manual)
    namespace a fresh namespace of that cluster, with the service accounts that stage pods use
    operator  the cluster, with the operator running as its own ServiceAccount, restarted where a test stopped it
"""

from collections.abc import Iterator

import pytest

from devcluster.testing import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.started(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    return cluster.namespace()


@pytest.fixture
def operator(cluster: Cluster) -> Cluster:
    cluster.start("operator")
    return cluster
