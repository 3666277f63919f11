"""Every command against a real API server: expired credentials, no rights, rights in one namespace, no such job."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.local_cluster import LocalCluster
from tests.unit.cli.bad_input.conftest import environment as environment  # noqa: PLC0414  a fixture
from tests.unit.cli.bad_input.rows import LOCAL, ROWS, CommandRow
from tests.unit.cli.bad_input.runs import (
    PHASES,
    Done,
    in_a_cluster,
    job,
    of_a_job,
    refused,
    run,
    run_folders,
)

GROUP = "/apis/tpu-finetune.dev/v1alpha1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folders(tmp_path_factory.mktemp("runs"))


def fill(cluster: LocalCluster, folder: Path) -> str:
    """Returns a new namespace with the jobs of the rows; no operator is running."""
    cluster.stop("operator")
    namespace = cluster.namespace()
    made = {name: job(name, folder) for name in PHASES}
    manifests = [
        {
            "apiVersion": each["apiVersion"],
            "kind": each["kind"],
            "metadata": {"name": name, "namespace": namespace},
            "spec": each["spec"],
        }
        for name, each in made.items()
    ]
    cluster.kubectl("apply", "-f", LOCAL, "-f", "-", stdin=yaml.safe_dump_all(manifests))
    for name, each in made.items():
        path = f"{GROUP}/namespaces/{namespace}/finetunejobs/{name}/status"
        cluster.patch(path, {"status": each["status"]})
    return namespace


@pytest.fixture(scope="module")
def jobs(cluster: LocalCluster, folder: Path) -> str:
    """A namespace for commands that change nothing."""
    return fill(cluster, folder)


def called(row: CommandRow, cluster: LocalCluster, namespace: str, folder: Path, *more: str) -> Done:
    return run([*row.arguments(folder, cluster.kubeconfig), "-n", namespace, *more])


def test_a_caller_with_all_rights(cluster: LocalCluster, folder: Path) -> None:
    namespace = fill(cluster, folder)
    ended = {str(row): called(row, cluster, namespace, folder) for row in ROWS if row.cluster}
    assert {name: done.code for name, done in ended.items()} == {
        str(row): row.code for row in ROWS if row.cluster
    }, ended


def test_a_caller_with_rights_in_one_namespace(cluster: LocalCluster, folder: Path) -> None:
    namespace = fill(cluster, folder)
    cluster.kubectl(
        "create", "role", "tuners", "-n", namespace,
        "--verb=get,list,watch,patch", "--resource=finetunejobs.tpu-finetune.dev,pods,pods/log",
    )  # fmt: skip
    cluster.kubectl("create", "rolebinding", "tuners", "-n", namespace, "--role=tuners", "--user=alice")
    for row in ROWS:
        if row.cluster:
            done = called(row, cluster, namespace, folder, "--as", "alice")
            if row.whole_cluster:
                refused(done, "alice", "Ask for a ")
            else:
                assert done.code == row.code, (row, done)


@in_a_cluster
def test_a_caller_without_rights(row: CommandRow, cluster: LocalCluster, jobs: str, folder: Path) -> None:
    done = called(row, cluster, jobs, folder, "--as", "mallory")
    if row.reports:
        assert (done.code, "You may not create finetunejobs" in done.stdout) == (1, True), done
    else:
        refused(done, "mallory", "Ask for a ")


@in_a_cluster
def test_a_token_that_has_expired(
    row: CommandRow, cluster: LocalCluster, jobs: str, folder: Path, tmp_path: Path
) -> None:
    loaded: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in loaded["users"]:
        user["user"] = {"token": "expired"}
    expired = tmp_path / "expired"
    expired.write_text(yaml.safe_dump(loaded))
    done = run([*row.arguments(folder, expired), "-n", jobs])
    refused(done, "does not accept your credentials", "Log in again")


@of_a_job
def test_a_job_that_does_not_exist(row: CommandRow, cluster: LocalCluster, jobs: str, folder: Path) -> None:
    misspelt = row.job[:-1] + "x"
    words = [misspelt if word == row.job else word for word in row.arguments(folder, cluster.kubeconfig)]
    done = run([*words, "-n", jobs])
    refused(done, f'There is no FineTuneJob "{misspelt}" in namespace {jobs}', f"Did you mean {row.job}")


@of_a_job
def test_a_namespace_without_jobs(
    row: CommandRow, cluster: LocalCluster, namespace: str, folder: Path
) -> None:
    refused(called(row, cluster, namespace, folder), f"{namespace} has no FineTuneJob")
