"""The life cycle of a local cluster: repeated `up`, two clusters at once, repair, and removal without a trace."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import control
from devcluster.errors import LocalClusterError
from devcluster.identity import ProcessIdentity
from devcluster.options import Options
from devcluster.supervisor import recorded_processes
from tests.doubles.local_cluster import LocalCluster


@pytest.mark.thorough
def test_a_cluster_is_mended_and_leaves_nothing_behind(cluster: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster.started(tmp_path / "deep" / "own", warm=False) as own:
        assert own.server != cluster.server
        own.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": "default"}}
        )
        first = recorded_processes(own.state)

        # a second `up` leaves all processes running
        control.up(own.state, Options.chosen(warm=False), operator=False)
        assert recorded_processes(own.state) == first

        # a component that ends is started again
        own.kill("kube-scheduler")
        own.await_ready("kube-scheduler")
        assert own.status()["kube-scheduler"]["restarts"] == 1

        # the supervisor is killed: its children keep running, and `up` replaces them
        first = recorded_processes(own.state)
        first["supervisor"].signal_group(signal.SIGKILL)
        control.up(own.state, Options.chosen(warm=False), operator=False)
        second = recorded_processes(own.state)
        assert set(second) == set(first)
        assert not any(identity.lives() for identity in first.values())
        assert own.find("/api/v1/namespaces/default/configmaps/kept") is not None

        # `up` replaces an operator whose code has changed, and nothing else
        options = Options.chosen(warm=False)
        control.up(own.state, options, operator=True)
        older = recorded_processes(own.state)
        control.up(own.state, replace(options, operator_code="edited"), operator=True)
        second = recorded_processes(own.state)
        assert {name for name in second if second[name] != older[name]} == {"operator"}

    assert not any(identity.lives() for identity in second.values())
    with pytest.raises(LocalClusterError, match="no cluster runs in"):
        control.call(own.state, {"do": "status"})
    assert cluster.status()["kube-apiserver"]["state"] == "ready"


def test_only_recorded_processes_are_ever_ended(tmp_path: Path) -> None:
    own = ProcessIdentity.of(1)
    assert own is not None
    other_boot = ProcessIdentity(pid=own.pid, start=own.start, boot="before the reboot")
    reused = ProcessIdentity(pid=own.pid, start=own.start + 1, boot=own.boot)
    assert own.lives()
    assert not other_boot.lives()
    assert not reused.lives()


def test_the_operator_runs_as_its_own_service_account(operator: LocalCluster) -> None:
    assert operator.status()["operator"]["state"] == "ready"
    token = (operator.service_account / "token").read_text()
    review = operator.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
    )
    assert review["status"]["user"]["username"] == "system:serviceaccount:finetune-system:finetune-operator"

    def allowed(verb: str, group: str, resource: str) -> bool:
        access = {"namespace": "default", "verb": verb, "group": group, "resource": resource}
        answer = operator.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": review["status"]["user"]["username"], "resourceAttributes": access},
            },
        )
        return bool(answer["status"]["allowed"])

    assert allowed("create", "jobset.x-k8s.io", "jobsets")
    assert not allowed("get", "", "secrets")
    assert not allowed("update", "tpu-finetune.dev", "finetunejobs")


def test_a_killed_operator_comes_back_and_leads_again(operator: LocalCluster) -> None:
    before = operator.status()["operator"]["pid"]
    operator.kill("operator")
    operator.await_ready("operator")
    after = operator.status()["operator"]
    assert after["pid"] != before
    assert after["state"] == "ready"
