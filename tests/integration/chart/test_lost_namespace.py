"""An operator that serves some namespaces loses one: its RoleBinding is deleted, or the namespace.

Two processes run as the pods of the chart's Deployment, behind a proxy that resets watches, since the API server itself
ends a watch only after two minutes.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from finetune_contract import Stage
from finetune_operator.runtime.prerequisites import watches
from tests.doubles.faultproxy import FaultProxy
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.chart.conftest import CHART, Helm
from tests.integration.chart.test_deployment import IMAGE, Pod, started
from tests.integration.jobs import condition, job_path, jobset_path, phase

PROFILE = "served"
PROFILE_PATH = f"/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles/{PROFILE}"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    cluster: LocalCluster
    helm: Helm
    proxy: FaultProxy
    stack: ExitStack
    folder: Path
    own: str
    """The operator's namespace."""
    served: tuple[str, str]

    @property
    def name(self) -> str:
        return f"of-{self.own}-finetune-operator"

    @property
    def lease(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.own}/leases/{self.name}"

    def installed(self, *command: str) -> None:
        done = self.helm(*command, "-n", self.own, "--kubeconfig", str(self.cluster.kubeconfig))
        assert done.returncode == 0, done.stderr

    def upgraded(self, verb: str = "upgrade") -> None:
        settings = f"crds.install=false,namespaces={{{','.join(self.served)}}},image.repository={IMAGE}"
        settings += f",ledger.uri={(self.folder / 'ledger').as_uri()}"
        self.installed(verb, f"of-{self.own}", str(CHART), "--set", settings)

    def pod(self, name: str) -> Pod:
        deployment = self.cluster.get(f"/apis/apps/v1/namespaces/{self.own}/deployments/{self.name}")
        folder = self.folder / name
        folder.mkdir()
        return self.stack.enter_context(
            started(self.cluster, deployment, self.own, folder, name=name, port=self.proxy.port)
        )

    def leads(self, name: str) -> None:
        self.cluster.wait(self.lease, lambda found: found["spec"].get("holderIdentity") == name, seconds=90)

    def lose(self, *namespaces: str) -> None:
        """Deletes the operator's RoleBindings there, and ends the watches."""
        for namespace in namespaces:
            self.cluster.delete(f"{RBAC}/namespaces/{namespace}/rolebindings/{self.name}")
        self.reset(*namespaces)

    def reset(self, *namespaces: str) -> None:
        for stream in watches(namespaces, kueue=True):
            self.proxy.cut(stream.path)


@pytest.fixture
def release(
    cluster: LocalCluster, helm: Helm, namespace: str, unclaimed: None, tmp_path: Path
) -> Iterator[Release]:
    """A release that serves two namespaces, of which each stage but Train takes no time."""
    cluster.stop("operator")
    cluster.add_image(
        fake_trainer.IMAGE, fake_trainer.install(tmp_path / "bin", seconds=3600, stages=[Stage.TRAIN])
    )
    cluster.apply(fake_trainer.profile(PROFILE, tmp_path))
    with ExitStack() as stack:
        proxy = stack.enter_context(
            FaultProxy(cluster.state, cluster.ports["kube-apiserver"], lambda _: None)
        )
        made = Release(
            cluster=cluster,
            helm=helm,
            proxy=proxy,
            stack=stack,
            folder=tmp_path,
            own=namespace,
            served=(cluster.namespace(), cluster.namespace()),
        )
        made.upgraded("install")
        yield made
    made.installed("uninstall", f"of-{namespace}")


def lost_chips(pod: Pod) -> dict[str, float]:
    """Chips by lost namespace, as the process reports them."""
    text = pod.fetch("metrics", "/metrics").decode()
    return {
        sample.labels["namespace"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "finetune_namespace_lost_chips"
    }


def await_lost(pod: Pod, wanted: Mapping[str, float]) -> None:
    deadline = time.monotonic() + 90
    while (found := lost_chips(pod)) != wanted:
        assert time.monotonic() < deadline, f"{found}\n{pod.log.read_text()}"
        time.sleep(0.2)  # metrics can only be polled


def lost_by(profile: Mapping[str, Any]) -> str:
    """Message of the condition NamespaceLost; empty if there is none."""
    found = profile.get("status", {}).get("conditions", ())
    return next((each["message"] for each in found if each["type"] == "NamespaceLost"), "")


def test_a_lost_namespace_concerns_itself_alone_and_is_no_way_out_of_a_budget(release: Release) -> None:
    cluster, (a, b) = release.cluster, release.served
    one = release.pod("one")
    release.leads("one")
    two = release.pod("two")
    cluster.apply(fake_trainer.job(b, "runs-on", PROFILE))
    path = job_path(b, "runs-on")
    running = cluster.wait(
        path,
        lambda job: condition(job, "Running") == "True" and job["status"]["stage"] == "Train",
        seconds=120,
    )
    chips = running["status"]["resolved"]["resources"]["chips"]
    plan = f"/api/v1/namespaces/{release.own}/configmaps/finetune-plan-{running['metadata']['uid']}"
    cluster.get(plan)
    lost_at = time.time()
    release.lose(b)
    await_lost(one, {b: chips})
    assert one.probe("readinessProbe") == one.probe("livenessProbe") == 200
    assert f"namespace {b} is not served" in one.log.read_text()
    cluster.wait(
        PROFILE_PATH,
        lambda profile: f"{b} ({chips} chips were at work)" in lost_by(profile),
    )
    # A tenant removes what shows how long the training ran.
    cluster.delete(jobset_path(b, "runs-on-train-1"))
    cluster.wait_gone(jobset_path(b, "runs-on-train-1"))
    # The other one is served, also by the next leader, which takes the Lease although it cannot watch one namespace.
    cluster.apply(fake_trainer.job(a, "first", PROFILE, planOnly=True))
    cluster.wait(job_path(a, "first"), phase("Planned"), seconds=60)
    one.process.kill()
    release.leads("two")
    await_lost(two, {b: chips})
    cluster.apply(fake_trainer.job(a, "second", PROFILE, planOnly=True))
    cluster.wait(job_path(a, "second"), phase("Planned"), seconds=60)
    cluster.get(plan)
    least = chips * (time.time() - lost_at) / 3600
    release.upgraded()
    await_lost(two, {})
    told = cluster.wait(
        path, lambda job: float(job["status"]["ledger"].get("chipHours", 0)) >= least, seconds=60
    )
    assert float(told["status"]["cost"]["chipHours"]) >= least
    assert told["status"]["attempts"]["total"] > running["status"]["attempts"]["total"]
    cluster.wait(
        PROFILE_PATH,
        lambda profile: not lost_by(profile),
    )
    assert two.terminated() == 0


def test_what_runs_in_a_namespace_that_is_lost_while_no_operator_runs_counts(release: Release) -> None:
    """The tenant deletes the job, too: the next leader knows it from the record of the last one alone."""
    cluster, (_, b) = release.cluster, release.served
    one = release.pod("one")
    release.leads("one")
    cluster.apply(fake_trainer.job(b, "unseen", PROFILE))
    running = cluster.wait(
        job_path(b, "unseen"),
        lambda job: condition(job, "Running") == "True" and job["status"]["stage"] == "Train",
        seconds=120,
    )
    chips, uid = running["status"]["resolved"]["resources"]["chips"], running["metadata"]["uid"]
    cluster.wait(
        f"/api/v1/namespaces/{release.own}/configmaps/{release.name}-at-work",
        lambda record: uid in record["data"]["jobs.json"],
        seconds=30,
    )
    last = time.time()
    one.process.kill()
    one.process.wait()
    release.lose(b)
    two = release.pod("two")
    release.leads("two")
    await_lost(two, {b: chips})
    cluster.wait(PROFILE_PATH, lambda profile: f"{b} ({chips} chips were at work)" in lost_by(profile))
    cluster.delete(job_path(b, "unseen"))
    cluster.wait_gone(job_path(b, "unseen"))
    least = chips * (time.time() - last) / 3600
    release.upgraded()
    await_lost(two, {})
    assert two.terminated() == 0
    records = [json.loads(path.read_text()) for path in (release.folder / "ledger").rglob(f"{uid}/*.json")]
    assert sum(float(each["chipHours"]) for each in records) >= least, records


def test_without_any_namespace_no_process_takes_the_lease_and_none_has_to_be_restarted(
    release: Release,
) -> None:
    cluster = release.cluster
    one = release.pod("one")
    release.leads("one")
    two = release.pod("two")
    two.await_probe("readinessProbe")
    release.lose(*release.served)
    await_lost(one, dict.fromkeys(release.served, 0))
    one.await_text("readinessProbe", f"namespace {release.served[0]} is not served")
    assert one.probe("livenessProbe") == 200
    assert one.terminated() == 0
    two.await_text("readinessProbe", "cannot be listed")
    assert cluster.get(release.lease)["spec"]["holderIdentity"] == ""
    release.upgraded()
    release.leads("two")
    two.await_probe("readinessProbe")
    cluster.apply(fake_trainer.job(release.served[1], "after", PROFILE, planOnly=True))
    cluster.wait(job_path(release.served[1], "after"), phase("Planned"), seconds=60)


def test_a_namespace_that_is_deleted_and_made_again_is_served_again(release: Release) -> None:
    cluster, (a, b) = release.cluster, release.served
    one = release.pod("one")
    release.leads("one")
    cluster.delete(f"/api/v1/namespaces/{b}")
    cluster.wait_gone(f"/api/v1/namespaces/{b}")
    release.reset(b)
    await_lost(one, {b: 0})
    cluster.apply(fake_trainer.job(a, "meanwhile", PROFILE, planOnly=True))
    cluster.wait(job_path(a, "meanwhile"), phase("Planned"), seconds=60)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": b}})
    for account in ("ft-cpu", "ft-train"):
        cluster.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": b}}
        )
    release.upgraded()
    await_lost(one, {})
    cluster.apply(fake_trainer.job(b, "again", PROFILE, planOnly=True))
    cluster.wait(job_path(b, "again"), phase("Planned"), seconds=60)


def test_a_process_that_has_to_end_ends_whatever_kopf_does(release: Release) -> None:
    """Profiles are cluster-wide: without them nothing can be served. kopf ends after a minute of refusals."""
    one = release.pod("one")
    release.leads("one")
    release.cluster.patch(f"{RBAC}/clusterroles/{release.name}", {"rules": []})
    for stream in watches((), kueue=False):
        release.proxy.cut(stream.path)
    deadline = time.monotonic() + 90
    while "escalating" not in one.log.read_text():
        assert time.monotonic() < deadline, one.log.read_text()
        time.sleep(0.1)  # the log can only be polled
    assert one.process.wait(10) == 1


def test_tenants_cannot_delete_the_operators_role_and_binding(release: Release) -> None:
    cluster, (_, b) = release.cluster, release.served
    cluster.kubectl("create", "rolebinding", "tenant", "-n", b, "--clusterrole=admin", "--user=tenant")
    # Kubernetes itself refuses changes to those who may not give such rights.
    changes = ("--verb=bind,escalate", "--resource=roles")
    cluster.kubectl("create", "role", "changes", "-n", b, *changes)
    cluster.kubectl("create", "rolebinding", "changes", "-n", b, "--role=changes", "--user=tenant")
    assert "yes" in cluster.kubectl("auth", "can-i", "delete", "rolebindings", "-n", b, "--as=tenant")

    def tenant(*command: str) -> str:
        try:
            return cluster.kubectl(*command, "-n", b, "--as=tenant")
        except Exception as error:  # noqa: BLE001 - whatever kubectl says
            return str(error)

    deadline = time.monotonic() + 30
    # The API server enforces a policy only some time after its installation.
    while "ask them to take" not in (
        said := tenant("delete", "rolebinding", release.name, "--dry-run=server")
    ):
        assert time.monotonic() < deadline, said
    for kind in ("role", "rolebinding"):
        path = f"{RBAC}/namespaces/{b}/{kind}s"
        for command in (
            ("delete", kind, release.name),
            ("label", kind, release.name, "x=y"),
            ("delete", "--raw", f"{path}?labelSelector=app.kubernetes.io%2Fname%3Dfinetune-operator"),
        ):
            assert "ask them to take" in tenant(*command), command
        cluster.get(f"{path}/{release.name}")
    assert "deleted" in tenant("delete", "rolebinding", "tenant")
    # Who installs the release changes them, and the namespace can be deleted.
    release.upgraded()
    cluster.delete(f"/api/v1/namespaces/{b}")
    cluster.wait_gone(f"/api/v1/namespaces/{b}")
