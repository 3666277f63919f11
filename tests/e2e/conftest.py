"""The cluster of the end-to-end cases, with the operator, the tiny model and its data."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import samples
from devcluster.fixtures.chat_data import CAPITALS
from finetune_contract import Stage
from tests.doubles.local_cluster import LocalCluster
from tests.e2e.user_client import UserClient
from tests.late_watches import late_watches


def _bench(cluster: LocalCluster) -> UserClient:
    for item in (samples.TINY_MODEL, samples.CAPITALS):
        samples.put(item, cluster.gcs)
    return UserClient(
        kubectl_binary=cluster.kubectl_program,
        kubeconfig=cluster.kubeconfig,
        namespace=cluster.namespace("e2e"),
        gcs_endpoint=cluster.gcs,
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.started(tmp_path_factory.mktemp("cluster"), operator=True) as running:
        yield running


@pytest.fixture(scope="module")
def watches_are_late(cluster: LocalCluster) -> Iterator[None]:
    with late_watches(cluster):
        yield


@pytest.fixture(scope="module")
def bench(cluster: LocalCluster) -> UserClient:
    """A namespace of the module's own; job names are unique within it."""
    return _bench(cluster)


@pytest.fixture
def cold_bench(tmp_path: Path) -> Iterator[UserClient]:
    """A cluster whose stages are fresh processes, as on a real node."""
    with LocalCluster.started(tmp_path / "cluster", operator=True, warm=False) as running:
        yield _bench(running)


@pytest.fixture(scope="session")
def capitals() -> dict[str, str]:
    """Question -> the word that a right answer contains."""
    return {f"What is the capital of {country}?": capital for country, capital in CAPITALS.items()}


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The tiny model's folder."""
    return samples.folder_of(samples.TINY_MODEL)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with models and data at the same paths as in the object store."""
    for item in (samples.TINY_MODEL, samples.CAPITALS):
        target = tmp_path / item.uri.removeprefix("gs://")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(samples.folder_of(item), target_is_directory=True)
    return tmp_path


@pytest.fixture
def files_profile(bench: UserClient, files: Path) -> Iterator[str]:
    """The profile `local`, with its artifacts and cache on plain files."""
    storage = {"artifacts": f"file://{files}/ft-artifacts", "cache": f"file://{files}/ft-cache"}
    bench.apply_profile("files", storage=storage)
    yield "files"
    bench.delete("finetuneprofile", "files")


@pytest.fixture(scope="session")
def stage_program() -> Path:
    """``finetune-stage`` as installed in the trainer's environment."""
    return Path(samples.trainer_python()).with_name("finetune-stage")


@pytest.fixture
def trainer_pids(cluster: LocalCluster, bench: UserClient) -> Callable[[str, Stage], list[int]]:
    """Process ids of a job's trainer in one stage, as the node agent started them."""

    def find(job: str, stage: Stage) -> list[int]:
        uids = [pod["metadata"]["uid"] for pod in bench.list("pods", job=job, stage=stage)]
        records = [file for uid in uids for file in cluster.state.pods.glob(f"*{uid}*/*.process")]
        return [json.loads(file.read_text())["pid"] for file in records]

    return find


@pytest.fixture
def kill_operator(cluster: LocalCluster) -> Callable[[], None]:
    """Sends SIGKILL to the operator; returns once its successor is ready."""

    def kill() -> None:
        cluster.kill("operator")
        cluster.await_ready("operator")

    return kill


@pytest.fixture
def store_outage(cluster: LocalCluster) -> Iterator[Callable[[float], None]]:
    """Stops the object store for the given number of seconds, without waiting for its return."""

    def outage(seconds: float) -> None:
        cluster.stop("gcs")
        timer = threading.Timer(seconds, cluster.start, ["gcs"])
        timer.start()

    yield outage
    cluster.start("gcs")
