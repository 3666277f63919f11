"""The API server accepts both CRDs and, with them alone, refuses bad jobs at apply and names the field."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.cli.documents import read_documents
from finetune_operator.cluster.port import ClusterError
from tests.doubles.local_cluster import LocalCluster
from tests.unit.api.bad_jobs import BAD_JOBS
from tests.unit.api.documents import JOB, PROFILE, Document, job

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: The serving manifests that an exported model contains beside its weights.
SERVING = Path(__file__).parents[1] / "trainer/golden/serving"
GROUP = "/apis/tpu-finetune.dev/v1alpha1"


def placed(document: Document, namespace: str) -> Document:
    return {**document, "metadata": {**document["metadata"], "namespace": namespace}}


def refusal(cluster: LocalCluster, document: Document) -> str:
    """kubectl's message when the API server refuses the document."""
    with pytest.raises(AssertionError) as caught:
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))
    return str(caught.value)


@pytest.mark.parametrize("name", ["finetunejobs", "finetuneprofiles"])
def test_crds_are_established_without_complaint(cluster: LocalCluster, name: str) -> None:
    crd = cluster.get(f"{CRDS}/{name}.tpu-finetune.dev")
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_manifests_for_serving_are_accepted(cluster: LocalCluster, shared_namespace: str, kind: str) -> None:
    for document in yaml.safe_load_all((SERVING / f"{kind}.yaml").read_text()):
        document["metadata"]["namespace"] = shared_namespace
        said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))
        assert "support-bot created (server dry run)" in said


@BAD_JOBS
def test_a_bad_job_is_refused_with_the_place(
    cluster: LocalCluster, shared_namespace: str, document: Document, path: str
) -> None:
    said = refusal(cluster, placed(document, shared_namespace))
    assert path in said
    assert "finetunejob.tpu-finetune.dev" in said or "FineTuneJob" in said


@pytest.fixture(scope="module")
def shared_namespace(cluster: LocalCluster) -> str:
    """A namespace for tests that leave no objects behind."""
    return cluster.namespace()


@pytest.fixture
def stored(cluster: LocalCluster, namespace: str) -> Iterator[Document]:
    """A stored job with every identity field but resumeFrom, suspended, cancelled, and with a retry.

    The operator is stopped, so that only the test writes the job's status.
    """
    cluster.stop("operator")
    document = job(
        profileRef={"name": "nobody"},
        hyperparameters={"epochs": 1},
        retry={"generation": 2},
        planOnly=True,
        suspend=True,
        cancel=True,
    )
    yield cluster.apply(placed(document, namespace))
    cluster.delete(f"{GROUP}/namespaces/{namespace}/finetunejobs/{document['metadata']['name']}")


IDENTITY_EDITS: dict[str, Any] = {
    "profile changed": {"profileRef": {"name": "other"}},
    "profile removed": {"profileRef": None},
    "run folder added": {"resumeFrom": {"runFolder": "gs://artifacts/a/b"}},
    "model changed": {"model": {"huggingFace": {"repo": "Qwen/Qwen3-1.7B"}}},
    "model completed": {"model": {"maxtextModel": "qwen3-0.6b"}},
    "dataset added": {"datasets": {"validation": [{"uri": "gs://team-a/v.jsonl"}]}},
    "method changed": {"method": {"lora": {"rank": 8}}},
    "method turned to full": {"method": {"lora": None}},
    "hyperparameters changed": {"hyperparameters": {"epochs": 2}},
    "hyperparameters removed": {"hyperparameters": None},
}


@pytest.mark.parametrize("edit", IDENTITY_EDITS.values(), ids=IDENTITY_EDITS)
def test_what_decides_the_result_cannot_be_edited(
    cluster: LocalCluster, stored: Document, edit: Document
) -> None:
    (field,) = edit
    with pytest.raises(ClusterError, match=f"spec: Invalid value.*{field} cannot be changed") as caught:
        cluster.patch(path_of(stored), {"spec": edit})
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"planOnly": False}, "planOnly cannot be set back"),
        ({"planOnly": None}, "planOnly cannot be set back"),
        ({"cancel": False}, "cancel cannot be taken back"),
        ({"cancel": None}, "cancel cannot be taken back"),
        ({"retry": {"generation": 1}}, "spec.retry"),
    ],
)
def test_what_only_goes_forward_cannot_be_set_back(
    cluster: LocalCluster, stored: Document, edit: Document, said: str
) -> None:
    with pytest.raises(ClusterError, match=said):
        cluster.patch(path_of(stored), {"spec": edit})


@pytest.mark.parametrize(
    "edit",
    [
        {"suspend": False},
        {"retry": {"generation": 3, "fromStage": "Train"}},
        {"retry": None},
        {"resources": {"tpu": "v6e-4"}},
        {"checkpointing": {"everySteps": 10}},
        {"evaluation": {"prompts": ["Reset my password"]}},
        {"budget": {"maxChipHours": 200}},
        {"cache": "Refresh"},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_lifecycle_and_placement_stay_open_to_edits(
    cluster: LocalCluster, stored: Document, edit: Document
) -> None:
    changed = cluster.patch(path_of(stored), {"spec": edit})
    assert changed["metadata"]["generation"] == 2


#: As written in a manifest, and as the API server stores it.
NUMBERS = {
    "2e-5": 2e-5,
    "2.0e-5": 2e-5,
    "1e-7": 1e-7,
    "1.0": 1,
    "1": 1,
    "1e0": 1,
    "0.1": 0.1,
    "1_000.5": 1000.5,
    "1e20": 1e20,
    "1e21": 1e21,
    "1.7e308": 1.7e308,
    "5e-324": 5e-324,
}


def written(namespace: str, numbers: str) -> str:
    """A manifest as a user writes it, with these hyperparameters."""
    document = placed(job(suspend=True), namespace)
    return yaml.safe_dump(document) + f"  hyperparameters: {numbers}\n"


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_a_decimal_is_stored_as_the_number_that_was_written(
    cluster: LocalCluster, shared_namespace: str, text: str, value: float
) -> None:
    manifest = written(shared_namespace, f"{{learningRate: {text}}}")
    said = cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=manifest)
    assert json.loads(said)["spec"]["hyperparameters"]["learningRate"] == value


@pytest.mark.parametrize(
    "numbers",
    [
        "{learningRate: '2e-5'}",
        "{learningRate: 0}",
        "{learningRate: -1e-9}",
        "{learningRate: 1e-400}",
        "{learningRate: 1e400}",
        "{warmupRatio: 1.0}",
        "{warmupRatio: -0.1}",
        "{weightDecay: -1e-9}",
    ],
)
def test_text_and_numbers_out_of_bounds_are_refused_with_the_place(
    cluster: LocalCluster, shared_namespace: str, numbers: str
) -> None:
    field = numbers.strip("{").partition(":")[0]
    with pytest.raises(AssertionError, match=rf"spec\.hyperparameters\.{field}"):
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=written(shared_namespace, numbers))


ALL_NUMBERS = "{learningRate: 1e-7, warmupRatio: 0.1, weightDecay: 1.0, maxGradNorm: 1e20}"
SERVER_SIDE = ("apply", "--server-side", "--field-manager=argocd-controller", "-f", "-")


def test_a_manifest_that_is_applied_twice_changes_nothing_and_differs_from_nothing(
    cluster: LocalCluster, namespace: str
) -> None:
    """Argo CD is not installed here, so the test reproduces its operations.

    Its apply is kubectl's server-side apply with its field manager. Its server-side diff compares the answer to a dry
    run of that apply with the live object. Its structured diff compares desired and live state as JSON, which compares
    numbers by value. ``kubectl diff`` is the equivalent of Kubernetes' own client.
    """
    cluster.stop("operator")
    manifest = written(namespace, ALL_NUMBERS)
    cluster.kubectl(*SERVER_SIDE, stdin=manifest)
    path = path_of(placed(JOB, namespace))
    live = cluster.get(path)
    (desired,) = read_documents(manifest)
    numbers = json.loads(json.dumps(desired.content))["spec"]["hyperparameters"]
    assert numbers == live["spec"]["hyperparameters"]
    predicted = json.loads(cluster.kubectl(*SERVER_SIDE, "--dry-run=server", "-o", "json", stdin=manifest))
    assert predicted["spec"] == live["spec"]
    assert predicted["metadata"]["generation"] == live["metadata"]["generation"]
    cluster.kubectl("diff", "--server-side", "--field-manager=argocd-controller", "-f", "-", stdin=manifest)
    # The first apply after the creation changes the resourceVersion once, even for a manifest without decimals.
    cluster.kubectl(*SERVER_SIDE, stdin=manifest)
    stored = cluster.get(path)["metadata"]
    assert stored["generation"] == live["metadata"]["generation"]
    for notation in (manifest, manifest.replace("1.0", "1"), manifest.replace("1e-7", "0.0000001")):
        cluster.kubectl(*SERVER_SIDE, stdin=notation)
        again = cluster.get(path)["metadata"]
        for each in ("managedFields", "resourceVersion", "generation"):
            assert again[each] == stored[each], notation
    cluster.delete(path)


def test_immutable_numbers_are_compared_by_value(cluster: LocalCluster, namespace: str) -> None:
    """A client that sends 1.0 where 1 is stored does not change an identity field."""
    stored = cluster.apply(placed(job(hyperparameters={"maxGradNorm": 1, "learningRate": 2e-5}), namespace))
    same = {"maxGradNorm": 1.0, "learningRate": 2.0e-5}
    changed = cluster.patch(path_of(stored), {"spec": {"hyperparameters": same}})
    assert changed["spec"]["hyperparameters"] == same
    with pytest.raises(ClusterError, match="hyperparameters cannot be changed"):
        cluster.patch(path_of(stored), {"spec": {"hyperparameters": {"maxGradNorm": 1.0000001}}})
    cluster.delete(path_of(stored))


def test_an_unseen_job_says_so_and_status_is_the_operators_alone(
    cluster: LocalCluster, stored: Document
) -> None:
    assert stored["status"] == {"observedGeneration": -1}
    assert (stored["spec"]["suspend"], stored["spec"]["planOnly"]) == (True, True)
    changed = cluster.patch(path_of(stored), {"status": {"phase": "Succeeded"}})
    assert changed["status"] == {"observedGeneration": -1}


def test_a_job_of_another_name_starts_plain(cluster: LocalCluster, shared_namespace: str) -> None:
    document = cluster.apply(placed(JOB, shared_namespace))
    assert [document["spec"][each] for each in ("suspend", "cancel", "planOnly")] == [False, False, False]
    document = cluster.patch(path_of(document), {"spec": {"cancel": True}})
    assert document["spec"]["cancel"] is True
    cluster.delete(path_of(document))


def test_every_identity_field_at_its_largest_can_be_stored_and_edited(
    cluster: LocalCluster, namespace: str
) -> None:
    """The API server estimates the cost of the rules at installation; this test incurs their actual cost."""
    source = {
        "uri": "gs://team-a/" + "a" * 1000,
        "roleMap": {f"role-{n}": "user" for n in range(16)},
        "columns": dict.fromkeys(("messages", "prompt", "completion", "question"), "c" * 256),
        "maxExamples": 1000,
    }
    template = {"inline": "x" * 32 * 1024}
    large = job(datasets={"train": [source] * 32, "validation": [source] * 8, "chatTemplate": template})
    stored = cluster.apply(placed(large, namespace))
    changed = cluster.patch(path_of(stored), {"spec": {"suspend": True}})
    assert changed["metadata"]["generation"] == 2
    edited = deepcopy(stored["spec"]["datasets"])
    edited["train"][31]["roleMap"]["role-15"] = "tool"
    with pytest.raises(ClusterError, match="datasets cannot be changed"):
        cluster.patch(path_of(stored), {"spec": {"datasets": edited}})
    cluster.delete(path_of(stored))


def test_a_profile_is_stored_and_a_bad_one_refused(cluster: LocalCluster) -> None:
    name = "crd-test"
    good = {**PROFILE, "metadata": {"name": name}}
    cluster.apply(good)
    cluster.delete(f"{GROUP}/finetuneprofiles/{name}")
    flavor = PROFILE["spec"]["flavors"][0]
    for flavors, said in (
        ([], "spec.flavors"),
        ([flavor, flavor], "spec.flavors[1]"),
        ([flavor | {"chipHourPrice": 1.20}], "currency"),
        ([flavor | {"topology": "2x2"}], "spec.flavors[0].topology"),
    ):
        assert said in refusal(cluster, {**good, "spec": {**good["spec"], "flavors": flavors}})
    on_host = {"pod": {"hostNetwork": True}, "serviceAccounts": {"tpu": "ft-train"}}
    assert "spec.pod.hostNetwork" in refusal(cluster, {**good, "spec": {**good["spec"], **on_host}})


def test_explain_has_text_for_every_level(cluster: LocalCluster) -> None:
    for place, said in {
        "ftj": "Fine-tunes a language model on TPU slices",
        "ftj.spec.hyperparameters.learningRate": "Peak learning rate",
        "ftj.spec.datasets.train.roleMap": "for example bot: assistant",
        "ftj.spec.export.onGateFailure": "Possible values: - Skip: Nothing is exported",
        "ftj.spec.export.formats": "- OrbaxParams: Unscanned Orbax parameters",
        "ftj.status.conditions": "all known types are set",
        "ftp.spec.flavors.chipHourPrice": "Price of a TPU chip hour",
    }.items():
        text = " ".join(cluster.kubectl("explain", place).split())
        assert said in text, place
        assert "<empty>" not in text


def test_printer_columns_show_the_status(cluster: LocalCluster, stored: Document) -> None:
    condition = {
        "type": "GatePassed",
        "status": "Unknown",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": "NotRequested",
        "message": "No gates.",
    }
    status = {
        "observedGeneration": 1,
        "phase": "Running",
        "stage": "Train",
        "conditions": [condition],
        "resolved": {"model": {"source": "Qwen/Qwen3-0.6B"}},
        "progress": {
            "step": 412,
            "totalSteps": 1000,
            "stepText": "412/1000",
            "etaText": "18-24m",
            "metrics": [{"name": "loss", "value": "1.21", "step": 412}],
            "curve": {"metric": "loss", "sparkline": "█▆▃▁"},
        },
        "attempts": {"total": 4, "preemption": 1, "infrastructure": 0, "user": 0},
    }
    cluster.patch(f"{path_of(stored)}/status", {"status": status})
    meta = stored["metadata"]
    table = cluster.kubectl("get", "ftj", meta["name"], "-n", meta["namespace"], "-o", "wide")
    header, row = table.strip().splitlines()
    assert header.split() == (
        [
            "NAME",
            "PHASE",
            "STAGE",
            "STEP",
            "LOSS",
            "ETA",
            "ATTEMPTS",
            "AGE",
            "MODEL",
            "TPU",
            "COST",
            "GATE",
            "CURVE",
        ]
    )
    for cell in ("Running", "Train", "412/1000", "1.21", "18-24m", "4", "Qwen/Qwen3-0.6B", "Unknown", "█▆▃▁"):
        assert cell in row.split()
    everything = json.loads(cluster.kubectl("get", "tuning", "-n", meta["namespace"], "-o", "json"))
    assert meta["name"] in [item["metadata"]["name"] for item in everything["items"]]


def path_of(document: Document) -> str:
    meta = document["metadata"]
    return f"{GROUP}/namespaces/{meta['namespace']}/finetunejobs/{meta['name']}"
