"""A release with a job in it: installed, upgraded, rolled back and uninstalled, by helm on a real control plane.

The earlier release is the commit at which the chart's version last changed: its chart with its CRDs, and its operator.
"""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune_operator.cluster.releases import SERVES
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.chart.conftest import CHART, CLUSTER_ROLE, Helm
from tests.integration.chart.test_deployment import IMAGE, started
from tests.integration.jobs import PROFILE, job_path, jobset_path, jobsets, phase

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
FOLDERS = ("charts", "operator", "contract", "storage")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster without an operator, separate from the cluster of the other tests: its CRDs change."""
    with LocalCluster.started(tmp_path / "cluster", warm=False) as running:
        running.patch(CLUSTER_ROLE, {"metadata": {"annotations": {SERVES: None}}})
        yield running


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's folders at the commit at which the chart's version last changed."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout

    changed = ("-1", "--format=%H", "-G^version: ", "--", "charts/finetune-operator/Chart.yaml")
    commit = git("log", *changed).decode().strip()
    if not commit:
        pytest.skip("the history of the repository is not here")
    folder = tmp_path_factory.mktemp("earlier")
    existing = git("ls-tree", "--name-only", commit, *FOLDERS).decode().split()
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *existing))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_a_job_continues_through_an_upgrade_and_a_rollback_and_outlives_the_release(
    own: LocalCluster, helm: Helm, earlier: Path, tmp_path: Path
) -> None:
    namespace = own.namespace()
    release = f"of-{namespace}"
    name = f"{release}-finetune-operator"
    common = ("-n", namespace, "--kubeconfig", str(own.kubeconfig))
    values = ("--set", f"namespaces={{{namespace}}},image.repository={IMAGE}")
    then = [folder for name in FOLDERS[1:] if (folder := earlier / name).exists()]
    old_chart = str(earlier / "charts" / "finetune-operator")

    def done(*arguments: str) -> None:
        finished = helm(*arguments, *common)
        assert finished.returncode == 0, finished.stderr

    def work_until(jobset: str | None, folder: str, *, code: list[Path] | None = None) -> None:
        """Runs the release's operator until the JobSet exists; None: until the job has ended."""
        deployment = own.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        (tmp_path / folder).mkdir()
        with started(own, deployment, namespace, tmp_path / folder, code or []) as pod:
            pod.await_probe("readinessProbe")
            if jobset is None:
                own.wait(job, phase("Succeeded", "Failed"), seconds=120)
            else:
                own.wait(jobset_path(namespace, jobset), bool, seconds=120)
            assert pod.terminated() == 0

    own.add_image(fake_trainer.IMAGE, fake_trainer.install(tmp_path / "bin", seconds=3))
    job = job_path(namespace, "job")
    # The cluster's CRDs were applied by hand; the release takes them over and replaces them by its own.
    done("install", release, old_chart, *values, "--take-ownership")
    own.apply(fake_trainer.profile(PROFILE, tmp_path / "runs"))
    own.apply(fake_trainer.job(namespace, "job", PROFILE))
    work_until("job-prep-1", "first", code=then)
    plan = own.get(job)["status"]["resolved"]["plan"]
    done("upgrade", release, str(CHART), *values)
    work_until("job-train-1", "second")
    done("rollback", release, "1")
    work_until(None, "third", code=then)
    ended = own.get(job)
    assert ended["status"]["phase"] == "Succeeded", ended["status"]["summary"]
    assert ended["status"]["resolved"]["plan"] == plan
    assert all(each.endswith("-1") for each in jobsets(own, namespace)), "no stage ran twice"
    done("uninstall", release)
    assert own.get(job)["status"] == ended["status"]
