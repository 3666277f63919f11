"""The pods of ``finetune doctor --probe`` and what their ends mean."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.cli.doctor_checks import Finding, State
from finetune_operator.cli.doctor_probe import Probe, ended, judged, not_tested, probes, refused
from finetune_operator.cli.doctor_setup import Setup
from tests.unit.cli.test_doctor import changed, healthy

TEAM = "gs://my-project-models/team-a/*"


def setup(change: Callable[[dict[str, Any]], object] = lambda _: None) -> Setup:
    return dataclasses.replace(healthy(), **changed(change))


def probe(stages: str = "cpu") -> Probe:
    return next(each for each in probes(setup()) if each.stages == stages)


def pod(phase: str = "Running", *, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "trainer", "state": state}] if state else []
    return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": containers, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod("Pending", state={"waiting": {"reason": reason, "message": message}})


def terminated(message: str, code: int = 0) -> dict[str, Any]:
    return pod(
        "Failed" if code else "Succeeded", state={"terminated": {"exitCode": code, "message": message}}
    )


def fault(right: str, reason: str = "StoragePermissionDenied", detail: str = "403") -> dict[str, Any]:
    uri = "gs://my-bucket" if right == "bucket" else "gs://my-bucket/team-a/runs"
    return terminated(
        json.dumps({"faults": [{"right": right, "uri": uri, "reason": reason, "detail": detail}]}), 77
    )


def test_each_account_gets_a_pod_with_the_folders_of_its_stages() -> None:
    cpu, tpu = probes(
        setup(lambda spec: spec.update(constraints={"uris": {"read": [TEAM, "hf://models/*"]}}))
    )
    spec = healthy().profiles[0]["spec"]  # type: ignore[index]
    artifacts, cache = (f"{spec['storage'][name]}/team-a" for name in ("artifacts", "cache"))
    models = "gs://my-project-models/team-a"
    assert (cpu.account, cpu.read, cpu.write) == ("ft-cpu", [models], [artifacts, cache])
    assert (tpu.account, tpu.read, tpu.write) == ("ft-train", [models, cache], [artifacts])


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("gs://bucket/team-a/*", "gs://bucket/team-a"),
        ("gs://bucket/team-a/model-*", "gs://bucket/team-a"),
        ("gs://bucket/team-a/rows.jsonl", "gs://bucket/team-a/rows.jsonl"),
        ("gs://bucket/*", "gs://bucket"),
        ("gs://bucket-*", None),
        ("gs://*", None),
        ("hf://models/*", None),
        ("file:///data/*", None),
    ],
)
def test_a_pattern_is_tried_at_the_folder_that_holds_all_its_matches(
    pattern: str, folder: str | None
) -> None:
    (cpu, _) = probes(setup(lambda spec: spec.update(constraints={"uris": {"read": [pattern]}})))
    assert cpu.read == ([folder] if folder else [])


def test_a_pod_is_restricted_and_never_on_a_slice() -> None:
    for each in probes(setup()):
        manifest = each.pod
        spec = manifest["spec"]
        (container,) = spec["containers"]
        assert spec["nodeSelector"] == {"cloud.google.com/gke-nodepool": "finetune-cpu"}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "google.com/tpu" not in json.dumps(container["resources"])
        assert spec["activeDeadlineSeconds"] > 0
        assert container["command"][:2] == ["finetune-stage", "access"]


def test_the_image_for_cpu_stages_is_tried_where_the_profile_has_one() -> None:
    cpu, tpu = probes(setup(lambda spec: spec.update(images={"trainer": "a@sha256:1", "cpu": "b@sha256:2"})))
    assert (cpu.image, tpu.image) == ("b@sha256:2", "a@sha256:1")


def test_variables_of_the_profile_replace_those_of_the_probe() -> None:
    cpu, _ = probes(setup(lambda spec: spec.update(pod={"env": [{"name": "HOME", "value": "/tmp"}]})))
    homes = [each for each in cpu.pod["spec"]["containers"][0]["env"] if each["name"] == "HOME"]
    assert homes == [{"name": "HOME", "value": "/tmp"}]


@pytest.mark.parametrize(
    ("seen", "state", "message", "fix"),
    [
        (
            waiting("ImagePullBackOff", "manifest unknown"),
            State.MISSING,
            "cannot be pulled",
            "correct images",
        ),
        (
            waiting("ErrImagePull", "403 Forbidden"),
            State.MISSING,
            "cannot be pulled",
            "artifactregistry.reader",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "t" not found'),
            State.MISSING,
            "cannot start",
            "pod.env",
        ),
        (terminated("usage: finetune-stage", 2), State.MISSING, "has no command", "operator's release"),
        (terminated("[]", 1), State.MISSING, "has no command", "operator's release"),
        (
            fault("bucket"),
            State.MISSING,
            "may not read the metadata of gs://my-bucket",
            "finetuneBucketReader",
        ),
        (fault("read"), State.MISSING, "may not read in", "gs://my-bucket/team-a/ --member principal://"),
        (fault("write"), State.MISSING, "may not write in", "--role roles/storage.objectUser"),
        (fault("bucket", "InputMissing"), State.MISSING, "does not exist", "gcloud storage buckets create"),
        (fault("read", "StorageUnavailable", "timeout"), State.UNKNOWN, "timeout", "GKE_METADATA"),
        (
            fault("read", detail="Your default credentials were not found"),
            State.MISSING,
            "no Google identity",
            "GKE_METADATA",
        ),
        (
            pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]),
            State.MISSING,
            "No node took a pod of team-a/ft-cpu in 10 minutes: 0/3 nodes",
            "node-pools list",
        ),
        (
            pod("Failed", reason="DeadlineExceeded", message="longer than the deadline"),
            State.UNKNOWN,
            "did not end in 10 minutes: longer",
            "GKE_METADATA",
        ),
        (None, State.UNKNOWN, "was deleted meanwhile", ""),
    ],
    ids=str,
)
def test_each_end_of_a_pod_has_its_finding_and_fix(
    seen: dict[str, Any] | None, state: State, message: str, fix: str
) -> None:
    finding = list(judged(setup(), probe(), seen))[-1]
    assert finding.state is state
    assert message in finding.message
    assert fix in finding.fix


def test_a_pod_without_faults_is_ok() -> None:
    found = list(judged(setup(), probe(), terminated('{"faults": []}')))
    assert {each.state for each in found} == {State.OK}
    assert {each.check for each in found} == {"images", "storage"}


def test_a_role_is_granted_to_the_google_account_that_the_service_account_names() -> None:
    google = {"iam.gke.io/gcp-service-account": "cpu@my-project.iam.gserviceaccount.com"}
    own = [{"metadata": {"name": "ft-cpu", "annotations": google}}]
    found = list(judged(dataclasses.replace(setup(), accounts=own), probe(), fault("read")))
    assert "--member serviceAccount:cpu@my-project.iam.gserviceaccount.com" in found[-1].fix


@pytest.mark.parametrize(
    ("status", "message", "state", "fix"),
    [
        (403, 'pods is forbidden: User "a" cannot create resource "pods"', State.UNKNOWN, "create rolebinding"),
        (403, 'violates PodSecurity "restricted"', State.MISSING, "Pod Security level"),
        (403, "exceeded quota: finetune", State.MISSING, "edit resourcequota"),
        (403, 'serviceaccount "ft-cpu" not found', State.MISSING, "create serviceaccount ft-cpu"),
    ],
)  # fmt: skip
def test_each_refusal_of_a_pod_has_its_finding(status: int, message: str, state: State, fix: str) -> None:
    finding = refused(setup(), probe(), status, message)
    assert finding.state is state
    assert fix in finding.fix


def test_the_first_error_of_a_pull_may_pass() -> None:
    assert not ended(waiting("ErrImagePull"))
    assert ended(waiting("ImagePullBackOff"))
    assert not ended(waiting("ContainerCreating"))
    assert ended(terminated("", 1))


def test_without_the_option_the_report_says_what_was_not_tried() -> None:
    finding = not_tested(setup())
    assert finding.state is State.UNKNOWN
    assert "finetune doctor --probe --namespace team-a" in finding.fix


@given(st.text(max_size=200))
def test_any_termination_message_is_judged(message: str) -> None:
    """The image is a profile's, and may write anything."""
    found = list(judged(setup(), probe(), terminated(message, 1)))
    assert all(isinstance(each, Finding) for each in found)
    assert found
