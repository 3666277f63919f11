"""Two tenants that do not trust each other: one attacks with all its rights while the other trains.

Nothing of the other tenant is read, changed, stopped or delayed. Each attack either is within the attacker's rights and
has no effect, or is refused by the component that the case names: the API server, the operator at admission, or the
store.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden
from google.cloud import storage

from finetune_contract import CacheLayout, RunFolder, Stage
from tests import bucket_grants
from tests.bucket_grants import ARTIFACTS, CACHE
from tests.doubles.bucket_iam import LIST
from tests.doubles.bucketproxy import BucketProxy
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, pods, training
from tests.integration.jobs import Object, condition, jobset_path, jobsets, phase
from tests.integration.tenants import (
    LASTING,
    LASTING_IMAGE,
    PROFILE,
    UNPLACED,
    Tenant,
    TenantState,
    admit,
    profile,
    replaced,
    stored,
)

SYSTEM = "finetune-system"
#: The job that trains while everything else happens.
KEPT = "kept"
#: The attacker's own job, which waits for a node.
OWN = "own"
NO_TEMPLATE = {"configMapRef": {"name": "template", "key": "text"}}
EVIL_IMAGE = "evil.example/miner:latest"


@pytest.fixture(scope="module")
def store() -> Iterator[BucketProxy]:
    with BucketProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster(store: BucketProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("tenants")
    with LocalCluster.started(folder / "cluster", warm=False, store=store.url) as running:
        store.serve(running.gcs)
        running.add_image(pods.IMAGE, Path("/usr/bin"))
        running.add_image(fake_trainer.IMAGE, fake_trainer.install(folder / "quick"))
        lasting = fake_trainer.install(folder / "lasting", seconds=3600, stages=[Stage.TRAIN])
        running.add_image(LASTING_IMAGE, lasting)
        running.apply(profile(PROFILE))
        running.apply(profile(LASTING, LASTING_IMAGE))
        running.apply(profile(UNPLACED, cpuPool={"nodeSelector": {"pool": "none"}}))
        running.start("operator")
        yield running


def _tenant(cluster: LocalCluster, store: BucketProxy, prefix: str) -> Tenant:
    tenant = Tenant(cluster, store, cluster.namespace(prefix))
    admit(cluster, tenant.namespace, tenant.user)
    store.grant(*bucket_grants.of_team(tenant.namespace))
    return tenant


@pytest.fixture(scope="module")
def attacker(cluster: LocalCluster, store: BucketProxy) -> Tenant:
    found = _tenant(cluster, store, "team")
    cluster.wait(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit",
        lambda role: any("finetunejobs" in rule.get("resources", ()) for rule in role["rules"]),
    )
    found.make(found.job(OWN, UNPLACED))
    cluster.wait(jobset_path(found.namespace, f"{OWN}-prep-1"), lambda _: True)
    return found


@pytest.fixture(scope="module")
def victim(attacker: Tenant) -> Iterator[Tenant]:
    """A tenant whose namespace name begins with the attacker's. Its job trains during all attacks and then succeeds."""
    found = _tenant(attacker.cluster, attacker.proxy, attacker.namespace)
    found.make(found.job(KEPT, LASTING))
    running = found.cluster.wait(
        found.path(KEPT),
        lambda job: phase("Running")(job) and job["status"]["stage"] == "Train",
        seconds=180,
    )
    begun = RunFolder(running["status"]["resolved"]["runFolder"]).request("train", 1)
    deadline = time.monotonic() + 60
    while begun.removeprefix("gs://") not in stored(found.cluster, found.namespace):
        assert time.monotonic() < deadline, f"{begun} does not exist after 60 s"
        time.sleep(0.1)  # a bucket sends no events that a test could wait for
    yield found
    for pid in training.processes(running["metadata"]["uid"]):
        os.kill(pid, fake_trainer.RELEASE)
    done = found.cluster.wait(found.path(KEPT), lambda job: condition(job, "Finished") == "True", seconds=180)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert {stage["attempt"] for stage in done["status"]["stages"]} == {1}


@pytest.fixture(autouse=True)
def untouched(victim: Tenant) -> Iterator[None]:
    """Asserts after each test that the victim's state has not changed, once the operator has observed the job again."""
    before = TenantState.of(victim, KEPT)
    yield
    victim.settled(KEPT)
    after = TenantState.of(victim, KEPT)
    assert dataclasses.asdict(after) == dataclasses.asdict(before)


def _run_folder(tenant: Tenant, job: str) -> str:
    """Name of the job's run folder in the bucket."""
    uid = tenant.cluster.get(tenant.path(job))["metadata"]["uid"]
    return f"{tenant.namespace}/{job}-{uid[:8]}"


def _short(*case: object) -> str:
    """A short digest of the case, for unique names of its objects."""
    return hashlib.sha256(repr(case).encode()).hexdigest()[:8]


def _filled(text: str, attacker: Tenant, victim: Tenant) -> str:
    """``text`` with each placeholder replaced by a location or namespace of the two tenants."""
    return (
        text.replace("OWN", f"gs://{ARTIFACTS}/{attacker.namespace}")
        .replace("THEIRS", f"gs://{ARTIFACTS}/{victim.namespace}")
        .replace("THEIR_RUN", f"gs://{ARTIFACTS}/{_run_folder(victim, KEPT)}")
        .replace("VICTIM", victim.namespace)
        .replace("ATTACKER", attacker.namespace)
    )


# --- the API server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        f"get configmaps -n {SYSTEM}",
        f"delete configmaps --all -n {SYSTEM}",
        f"create configmap finetune-plan-1 -n {SYSTEM}",
        f"get secrets -n {SYSTEM}",
        f"create token finetune-operator -n {SYSTEM}",
        f"delete lease finetune-operator -n {SYSTEM}",
        "patch finetuneprofile tenants --type=merge --patch={}",
        "delete finetuneprofile tenants",
        "patch finetunejob own -n ATTACKER --subresource=status --type=merge --patch={}",
        "get finetunejobs -n VICTIM",
        "delete finetunejob kept -n VICTIM",
        "get pods -n VICTIM",
        "label pods --all tpu-finetune.dev/attempt=999 -n VICTIM",
        "delete jobsets --all -n VICTIM",
        "get secrets -n VICTIM",
        "create token ft-cpu -n VICTIM",
        "create configmap kept-plan -n VICTIM",
        "create rolebinding mine -n VICTIM --clusterrole=edit --user=mine",
        "create rolebinding mine -n ATTACKER --clusterrole=finetune-operator --user=mine",
    ],
)
def test_the_api_server_keeps_a_tenant_in_its_namespace(
    attacker: Tenant, victim: Tenant, arguments: str
) -> None:
    answer = attacker.ask(*_filled(arguments, attacker, victim).split())
    assert answer.refused
    assert "forbidden" in answer.text


# --- plans ------------------------------------------------------------------------------------------------------------


def _forged(cluster: LocalCluster, victim: Tenant, job: Object, name: str) -> Object:
    """A plan that allows that job everything, with all fields that the operator writes."""
    their_uid = cluster.get(victim.path(KEPT))["metadata"]["uid"]
    true: Object = cluster.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/finetune-plan-{their_uid}")
    opened = json.loads(true["data"]["profile.json"])
    opened["images"] = {"trainer": EVIL_IMAGE}
    opened["serviceAccounts"] = {"tpu": "default", "cpu": "default"}
    meta = job["metadata"]
    data = {
        **true["data"],
        "profile.json": json.dumps(opened, indent=1, sort_keys=True),
        "job-namespace": meta["namespace"],
        "job-name": meta["name"],
        "job-uid": meta["uid"],
    }
    del data["digest"]
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    labels = {**true["metadata"]["labels"], "tpu-finetune.dev/job-uid": meta["uid"]}
    owner = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": {**data, "digest": hashlib.sha256(canonical.encode()).hexdigest()},
    }


@pytest.mark.parametrize("name", ["{job}-plan", "finetune-plan-{uid}"])
def test_a_plan_that_lies_ready_before_admission_is_not_taken(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant, name: str
) -> None:
    job = "early" if "uid" in name else "earlier"
    waits = replaced(attacker.job(job, UNPLACED), ["spec", "datasets", "chatTemplate"], NO_TEMPLATE)
    attacker.make(waits)
    assert attacker.invalid(job)["reason"] == "ChatTemplateNotFound"
    made = cluster.get(attacker.path(job))
    attacker.make(_forged(cluster, victim, made, name.format(job=job, uid=made["metadata"]["uid"])))
    attacker.succeed(
        *f"create configmap template -n {attacker.namespace} --from-literal=text={{{{1}}}}".split()
    )
    try:
        jobset = cluster.wait(jobset_path(attacker.namespace, f"{job}-prep-1"), lambda _: True)
    finally:
        attacker.succeed("delete", "configmap", "template", "-n", attacker.namespace)
    assert EVIL_IMAGE not in json.dumps(jobset)
    assert fake_trainer.IMAGE in json.dumps(jobset)
    assert '"serviceAccountName": "ft-cpu"' in json.dumps(jobset)


def test_a_plan_that_is_forged_after_admission_changes_nothing(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant
) -> None:
    made = cluster.get(attacker.path(OWN))
    before = cluster.get(jobset_path(attacker.namespace, f"{OWN}-prep-1"))["metadata"]["uid"]
    for name in (f"{OWN}-plan", f"finetune-plan-{made['metadata']['uid']}"):
        attacker.make(_forged(cluster, victim, made, name))
    attacker.settled(OWN)
    assert cluster.get(jobset_path(attacker.namespace, f"{OWN}-prep-1"))["metadata"]["uid"] == before


# --- labels and owner references --------------------------------------------------------------------------------------


def _labels(tenant: Tenant, job: str, **more: str) -> dict[str, str]:
    """The labels of a child of that job; ``more`` replaces or adds labels."""
    uid = tenant.cluster.get(tenant.path(job))["metadata"]["uid"]
    given = {"job": job, "job-uid": uid, "stage": "Preflight", "attempt": "1"} | more
    return {
        "app.kubernetes.io/managed-by": "finetune-operator",
        "jobset.sigs.k8s.io/jobset-name": f"{job}-prep-1",
        **{f"tpu-finetune.dev/{name}": value for name, value in given.items() if "/" not in name},
        **{name: value for name, value in more.items() if "/" in name},
    }


def _controller(kind: str, version: str, owner: Object) -> Object:
    meta = owner["metadata"]
    return {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}


HOSTILE_LABELS = {
    "a restart that would take years to count": {"jobset.sigs.k8s.io/restart-attempt": "999999999"},
    "a restart that exceeds every integer type": {"jobset.sigs.k8s.io/restart-attempt": "9" * 63},
    "an attempt with 63 digits": {"attempt": "9" * 63},
    "an attempt that is no integer": {"attempt": "1.0"},
    "a stage that does not exist": {"stage": "Everything"},
}


@pytest.mark.parametrize("labels", HOSTILE_LABELS.values(), ids=HOSTILE_LABELS.keys())
@pytest.mark.parametrize("owned", [False, True])
def test_labels_of_a_pod_cost_at_most_the_job_that_they_name(
    cluster: LocalCluster, attacker: Tenant, labels: Mapping[str, str], owned: bool
) -> None:
    name = f"labelled-{_short(labels, owned)}"
    job = cluster.get(f"/apis/batch/v1/namespaces/{attacker.namespace}/jobs/{OWN}-prep-1-cpu-0")
    meta: Object = {"labels": _labels(attacker, OWN, **labels)}
    if owned:
        meta["ownerReferences"] = [_controller("Job", "batch/v1", job)]
    attacker.make(pods.shell(attacker.namespace, name, "true", meta=meta))
    assert attacker.settled(OWN)["status"]["phase"] not in ("Failed", "Succeeded")


def test_no_number_of_pods_with_a_jobs_labels_keeps_its_training_from_being_stopped(
    cluster: LocalCluster, attacker: Tenant
) -> None:
    attacker.make(attacker.job("flooded", LASTING))
    path, trains = attacker.path("flooded"), jobset_path(attacker.namespace, "flooded-train-1")
    cluster.wait(path, lambda job: phase("Running")(job) and job["status"]["stage"] == "Train", seconds=180)
    meta, env = {"labels": _labels(attacker, "flooded")}, {"env": [{"name": "X", "value": "x" * 1_450_000}]}
    names = [f"flood-{number}" for number in range(48)]
    for name in names:
        nowhere = {"nodeSelector": {"pool": "none"}}
        attacker.make(pods.shell(attacker.namespace, name, "true", main=env, meta=meta, **nowhere))
    cluster.patch(path, {"spec": {"suspend": True}})
    suspended = cluster.wait(path, phase("Suspended"), seconds=120)
    assert cluster.find(trains) is None
    readable = next(each for each in suspended["status"]["conditions"] if each["type"] == "RunFolderReadable")
    assert (readable["status"], readable["reason"]) == ("False", "TooManyObjects")
    assert "more than 64 MiB" in readable["message"]
    cluster.delete(path)
    for name in names:
        cluster.delete(f"/api/v1/namespaces/{attacker.namespace}/pods/{name}")


@pytest.mark.parametrize("with_owner", [False, True])
@pytest.mark.parametrize("kind", ["Pod", "JobSet"])
def test_children_that_claim_another_namespaces_job_are_none(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant, kind: str, with_owner: bool
) -> None:
    """The garbage collector deletes an object whose owner does not exist in the object's namespace."""
    theirs = cluster.get(victim.path(KEPT))
    labels = _labels(victim, KEPT, stage="Train", attempt="999")
    name = f"{KEPT}-train-999"
    meta: Object = {"labels": labels}
    if with_owner:
        meta["ownerReferences"] = [_controller("FineTuneJob", theirs["apiVersion"], theirs)]
    if kind == "Pod":
        attacker.make(pods.shell(attacker.namespace, name, "true", meta=meta))
    else:
        manifest = pods.jobset(attacker.namespace, name, pods.replicated_job("cpu", pods.spec("true")))
        attacker.make({**manifest, "metadata": {**manifest["metadata"], **meta}})
    attacker.settled(OWN)
    attacker.succeed(
        "delete", kind.lower(), name, "-n", attacker.namespace, "--ignore-not-found", "--wait=true"
    )


def test_a_jobset_that_only_carries_a_jobs_labels_is_not_deleted_with_it(
    cluster: LocalCluster, attacker: Tenant
) -> None:
    """Another owner's JobSet in the same namespace, with labels that any user may set."""
    manifest = pods.jobset(
        attacker.namespace, "elsewhere", pods.replicated_job("cpu", pods.spec("sleep", "3600"))
    )
    attacker.make(manifest)
    path = jobset_path(attacker.namespace, "elsewhere")
    labels = [f"{name}={value}" for name, value in _labels(attacker, OWN, attempt="7").items()]
    attacker.succeed("label", "jobset", "elsewhere", "-n", attacker.namespace, *labels)
    before = cluster.get(path)["metadata"]["uid"]
    attacker.settled(OWN)
    suspend = '{"spec": {"suspend": true}}'
    attacker.succeed(
        "patch", "finetunejob", OWN, "-n", attacker.namespace, "--type=merge", f"--patch={suspend}"
    )
    cluster.wait(attacker.path(OWN), phase("Suspended"))
    found = cluster.get(path)["metadata"]
    assert (found["uid"], found.get("deletionTimestamp")) == (before, None)
    attacker.succeed("delete", "jobset", "elsewhere", "-n", attacker.namespace)
    suspend = '{"spec": {"suspend": false}}'
    attacker.succeed(
        "patch", "finetunejob", OWN, "-n", attacker.namespace, "--type=merge", f"--patch={suspend}"
    )
    # the number of the new attempt does not matter
    cluster.wait(attacker.path(OWN), lambda job: not phase("Suspended")(job))


# --- places -----------------------------------------------------------------------------------------------------------

DATA = ("datasets", "train")
API, OPERATOR = "refused by the API server", "refused by the operator"
#: Field and URI -> the component that refuses a job with them.
PLACES: Mapping[tuple[tuple[str, ...], str], str] = {
    (DATA, "THEIR_RUN/preflight/samples.jsonl"): OPERATOR,
    (DATA, "THEIRS/*/preflight/samples.jsonl"): OPERATOR,
    (DATA, f"gs://{ARTIFACTS}/*/*/preflight/samples.jsonl"): OPERATOR,
    (DATA, "OWN*/x/preflight/samples.jsonl"): OPERATOR,
    (DATA, f"gs://{ARTIFACTS}/[a-z]*/x.jsonl"): OPERATOR,
    (DATA, f"gs://{ARTIFACTS}/ATTACKER?2?????/x.jsonl"): OPERATOR,
    (DATA, "OWN/../VICTIM/x.jsonl"): API,
    (DATA, "OWN/./../VICTIM/x.jsonl"): API,
    (DATA, "OWN/%2e%2e/VICTIM/x.jsonl"): API,
    (DATA, "OWN/..%2fVICTIM/x.jsonl"): API,
    (DATA, "OWN%2f..%2fVICTIM/x.jsonl"): API,
    (DATA, f"gs://{ARTIFACTS}//VICTIM/x.jsonl"): API,
    (DATA, "OWN/\\..\\VICTIM/x.jsonl"): API,
    (DATA, "OWN/x.jsonl#/../VICTIM"): API,
    (DATA, "OWN/\n/VICTIM/x.jsonl"): API,
    (DATA, f"gs://{ARTIFACTS}"): OPERATOR,
    (DATA, f"gs://{CACHE}/VICTIM/data/x/tokens.bin"): OPERATOR,
    (DATA, f"gs://{CACHE}/ATTACKER/data/x/tokens.bin"): OPERATOR,
    (DATA, "gs://of-another-company/x.jsonl"): OPERATOR,
    (DATA, f"gs://{bucket_grants.DATA}-of-others/x.jsonl"): OPERATOR,
    (DATA, "file:///etc/passwd"): OPERATOR,
    (("model", "uri"), "THEIR_RUN/export/model"): OPERATOR,
    (("model", "uri"), f"gs://{CACHE}/VICTIM/convert/x/0/items"): OPERATOR,
    (("model", "uri"), f"gs://{bucket_grants.MODELS}*/x"): API,
    (("model", "tokenizer", "uri"), "THEIR_RUN/export/model"): OPERATOR,
    (("resumeFrom", "runFolder"), "THEIR_RUN"): OPERATOR,
    (("resumeFrom", "runFolder"), "OWN/../VICTIM/x"): API,
    (("resumeFrom", "runFolder"), "OWN/exports"): OPERATOR,
    (("resumeFrom", "runFolder"), "OWN"): OPERATOR,
    (("export", "destinations"), "THEIR_RUN/export/model"): OPERATOR,
    (("export", "destinations"), "THEIR_RUN/attempts/eval-999"): OPERATOR,
    (("export", "destinations"), "THEIRS/exports/x"): OPERATOR,
    (("export", "destinations"), f"gs://{CACHE}/VICTIM/convert/x"): OPERATOR,
    (("export", "destinations"), f"gs://{ARTIFACTS}/x"): OPERATOR,
    (("export", "destinations"), "file:///export"): OPERATOR,
    (("evaluation", "benchmarks"), "THEIR_RUN/export/model"): OPERATOR,
    (("evaluation", "datasets"), "THEIR_RUN/preflight/samples.jsonl"): OPERATOR,
}


@pytest.mark.parametrize(("place", "door"), PLACES.items(), ids=[f"{p[-1]} {u!r}" for p, u in PLACES])
def test_a_job_names_no_place_of_another_tenant(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant, place: tuple[tuple[str, ...], str], door: str
) -> None:
    field, text = place
    uri = _filled(text, attacker, victim)
    value: Any = {
        "train": [{"uri": uri}],
        "destinations": [{"uri": uri}],
        "benchmarks": [{"name": "task", "uri": uri}],
        "datasets": [{"name": "rows", "uri": uri}],
    }.get(field[-1], uri)
    name = f"place-{_short(place)}"
    answer = attacker.create(replaced(attacker.job(name), ["spec", *field], value))
    if door == API:
        assert answer.refused
        assert "Invalid value" in answer.text
        return
    assert not answer.refused, answer.text
    assert attacker.invalid(name)["reason"] == "PolicyViolation"
    assert not [each for each in jobsets(cluster, attacker.namespace) if each.startswith(name)]


REFERENCES: Mapping[str, tuple[tuple[str, ...], Any, str]] = {
    "a dataset of the hub": (DATA, [{"huggingFace": {"repo": "somebody/rows"}}], "PolicyViolation"),
    "a job of the other namespace": (("model",), {"fromJob": {"name": KEPT}}, "SourceJobNotFound"),
    "a template of the other namespace": (
        ("datasets", "chatTemplate"),
        {"configMapRef": {"name": "theirs", "key": "text"}},
        "ChatTemplateNotFound",
    ),
    "the other job's plan as a template": (
        ("datasets", "chatTemplate"),
        {"configMapRef": {"name": "PLAN", "key": "spec.json"}},
        "ChatTemplateNotFound",
    ),
    **{
        f"the engine's {key}": (("engineOverrides",), {key: value}, "InvalidSpec")
        for key, value in {
            "base_output_directory": "THEIRS",
            "jax_cache_dir": "THEIRS/cache",
            "load_parameters_path": "THEIR_RUN/train/checkpoints/4/items",
            "load_full_state_path": "THEIR_RUN/train/checkpoints/4",
            "dump_hlo_gcs_dir": "THEIRS",
            "tokenizer_path": "THEIR_RUN/export/model",
            "hf_access_token": "x",
            "metrics_file": "THEIRS/x",
        }.items()
    },
}


@pytest.mark.parametrize("case", REFERENCES)
def test_a_job_refers_to_nothing_outside_its_namespace(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant, case: str
) -> None:
    field, value, reason = REFERENCES[case]
    theirs = cluster.get(victim.path(KEPT))["metadata"]["uid"]
    if case.startswith("a template"):
        victim.ask(*f"create configmap theirs -n {victim.namespace} --from-literal=text=x".split())
    filled = json.loads(
        _filled(json.dumps(value), attacker, victim).replace("PLAN", f"finetune-plan-{theirs}")
    )
    name = f"refers-{_short(case)}"
    attacker.make(replaced(attacker.job(name), ["spec", *field], filled))
    assert attacker.invalid(name)["reason"] == reason


def test_a_secret_is_taken_from_the_jobs_own_namespace_alone(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant
) -> None:
    victim.succeed(*f"create secret generic hub -n {victim.namespace} --from-literal=token=hf_theirs".split())
    outside = replaced(
        attacker.job("outside"),
        ["spec", "huggingFaceTokenSecretRef"],
        {"name": f"{victim.namespace}/hub", "key": "t"},
    )
    assert attacker.create(outside).refused
    attacker.make(
        replaced(
            attacker.job("secret"), ["spec", "huggingFaceTokenSecretRef"], {"name": "hub", "key": "token"}
        )
    )
    assert attacker.invalid("secret")["reason"] == "SecretNotFound"
    assert "hf_theirs" not in json.dumps(cluster.get(attacker.path("secret")))
    attacker.succeed("delete", "finetunejob", "secret", "-n", attacker.namespace)


# --- the store --------------------------------------------------------------------------------------------------------

type Deed = Callable[[storage.Bucket, str, str], object]
"""Called with the artifacts' bucket, the victim's run folder and the attacker's folder."""
REQUEST = "attempts/train-1/request.json"


def _note(path: str) -> Deed:
    return lambda bucket, run, _: bucket.blob(f"{run}/{path}").upload_from_string("{}")


def _copy(bucket: storage.Bucket, run: str, own: str) -> object:
    return bucket.copy_blob(bucket.blob(f"{run}/{REQUEST}"), bucket, f"{own}/stolen")


def _compose(bucket: storage.Bucket, run: str, own: str) -> None:
    bucket.blob(f"{own}/stolen").compose([bucket.blob(f"{run}/{REQUEST}")])


DEEDS: Mapping[str, Deed] = {
    "read a request": lambda bucket, run, _: bucket.blob(f"{run}/{REQUEST}").download_as_bytes(),
    "ask whether there is a model": lambda bucket, run, _: bucket.blob(f"{run}/export/model/x").exists(),
    "list a run folder": lambda bucket, run, _: list(bucket.list_blobs(prefix=f"{run}/")),
    "list all names": lambda bucket, _, __: list(bucket.list_blobs()),
    "list by a common prefix": lambda bucket, _, own: list(bucket.list_blobs(prefix=own)),
    "take a run folder over": _note("attempts/taken-over-00000000.json"),
    "have a job retried": _note("attempts/retry-9.json"),
    "begin an attempt": _note("attempts/eval-999/result.json"),
    "report progress": _note("train/progress.json"),
    "replace a request": _note(REQUEST),
    "delete a request": lambda bucket, run, _: bucket.blob(f"{run}/{REQUEST}").delete(),
    "copy a request": _copy,
    "compose a request": _compose,
    "write beside all folders": lambda bucket, _, __: bucket.blob("x").upload_from_string("x"),
}


@pytest.mark.parametrize("account", ["ft-cpu", "ft-train"])
@pytest.mark.parametrize("deed", DEEDS)
def test_the_store_keeps_a_teams_accounts_in_its_folder(
    attacker: Tenant, victim: Tenant, deed: str, account: str
) -> None:
    """Accesses that a pod with the tenant's own code could try."""
    with pytest.raises(Forbidden):
        DEEDS[deed](attacker.bucket(ARTIFACTS, account), _run_folder(victim, KEPT), attacker.namespace)


def test_the_other_teams_cache_is_closed_and_training_writes_none(attacker: Tenant, victim: Tenant) -> None:
    uid = victim.cluster.get(victim.path(KEPT))["metadata"]["uid"]
    theirs = CacheLayout(victim.cache).convert_manifest(uid.replace("-", "").ljust(64, "0"))
    name = theirs.removeprefix(f"gs://{CACHE}/")
    for account in ("ft-cpu", "ft-train"):
        with pytest.raises(Forbidden):
            attacker.bucket(CACHE, account).blob(name).download_as_bytes()
        with pytest.raises(Forbidden):
            attacker.bucket(CACHE, account).blob(name).upload_from_string("{}")
    with pytest.raises(Forbidden):
        attacker.bucket(CACHE, "ft-train").blob(f"{attacker.namespace}/convert/x").upload_from_string("{}")


# --- hostile content --------------------------------------------------------------------------------------------------

CONTENTS: Mapping[str, tuple[str, bytes]] = {
    "junk for progress": ("train/progress.json", b"\x00\xff not json"),
    "huge progress": ("train/progress.json", b'{"x": "' + b"x" * (64 << 20) + b'"}'),
    "a huge result": ("attempts/prep-1/result.json", b"[" + b"0," * (4 << 20) + b"0]"),
    "deep nesting": ("attempts/prep-1/result.json", b"[" * 500_000),
    "a result of a newer major version": (
        "attempts/prep-1/result.json",
        b'{"version": 99, "stage": "Preflight"}',
    ),
    "a result of a newer minor version": ("attempts/prep-1/result.json", b'{"version": "1.99", "later": {}}'),
    "a number with a million digits": (
        "attempts/prep-1/result.json",
        b'{"version": ' + b"9" * 1_000_000 + b"}",
    ),
    "another job's request": ("attempts/prep-1/request.json", b'{"job": {"namespace": "kube-system"}}'),
    "a result of an attempt that does not exist": ("attempts/eval-999/result.json", b"{}"),
    "an attempt number of 200 digits": (f"attempts/eval-{'9' * 200}/result.json", b"{}"),
    "a record of a retry generation in the future": ("attempts/retry-99999999999999999999.json", b"{}"),
    "a record of a takeover of the folder": ("attempts/taken-over-00000000.json", b"{}"),
    "a failure record": ("attempts/prep-1/failure.json", b'{"message": "' + b"m" * 2_000_000 + b'"}'),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_what_a_tenant_writes_into_its_own_run_folder_reaches_no_other_tenant(
    attacker: Tenant, case: str
) -> None:
    name = f"holds-{_short(case)}"
    attacker.make(attacker.job(name, UNPLACED))
    attacker.cluster.wait(jobset_path(attacker.namespace, f"{name}-prep-1"), lambda _: True)
    path, content = CONTENTS[case]
    attacker.bucket(ARTIFACTS).blob(f"{_run_folder(attacker, name)}/{path}").upload_from_string(content)
    attacker.settled(name)
    attacker.succeed("delete", "finetunejob", name, "-n", attacker.namespace)


def test_more_names_than_a_listing_takes_reach_no_other_tenant(
    cluster: LocalCluster, attacker: Tenant
) -> None:
    """The objects are created as files, as if each had been uploaded, for which ``ft-cpu`` has the right."""
    attacker.make(attacker.job("names", UNPLACED))
    cluster.wait(jobset_path(attacker.namespace, "names-prep-1"), lambda _: True)
    folder = f"{_run_folder(attacker, 'names')}/attempts"
    attacker.bucket(ARTIFACTS).blob(f"{folder}/first").upload_from_string("")
    place = cluster.state.buckets / ARTIFACTS / folder
    for number in range(20_100):
        os.close(os.open(place / f"x-{number}", os.O_CREAT | os.O_WRONLY))
    attacker.settled("names")
    attacker.succeed("delete", "finetunejob", "names", "-n", attacker.namespace)
    shutil.rmtree(place)


@pytest.mark.parametrize("content", ["junk", "a manifest that points to the other team's cache"])
def test_a_poisoned_cache_gives_nothing_of_another_team(
    cluster: LocalCluster, attacker: Tenant, victim: Tenant, content: str
) -> None:
    """The cache entry exists before the job reads it, because the job first waits for its template."""
    name = "poison" if content == "junk" else "pointer"
    attacker.make(replaced(attacker.job(name), ["spec", "datasets", "chatTemplate"], NO_TEMPLATE))
    attacker.invalid(name)
    own, theirs = (
        CacheLayout(tenant.cache).convert_manifest(
            cluster.get(tenant.path(job))["metadata"]["uid"].replace("-", "").ljust(64, "0")
        )
        for tenant, job in ((attacker, name), (victim, KEPT))
    )
    fingerprint = own.split("/")[-2]
    true = _content(cluster, theirs).replace(theirs.split("/")[-2], fingerprint, 1)
    forged = "junk" if content == "junk" else true
    attacker.bucket(CACHE).blob(own.removeprefix(f"gs://{CACHE}/")).upload_from_string(forged)
    attacker.succeed(
        *f"create configmap template -n {attacker.namespace} --from-literal=text={{{{1}}}}".split()
    )
    with cluster.recorded(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{attacker.namespace}/jobsets") as seen:
        try:
            cluster.wait(attacker.path(name), lambda job: condition(job, "Finished") == "True", seconds=180)
        finally:
            attacker.succeed("delete", "configmap", "template", "-n", attacker.namespace)
    made = [each for event in seen for each in event.objects]
    assert not [each for each in made if f"{CACHE}/{victim.namespace}/" in json.dumps(each)]


def _content(cluster: LocalCluster, uri: str) -> str:
    """Content of an object, read as the administrator."""
    return (cluster.state.buckets / uri.removeprefix("gs://")).read_text()


# --- delay ------------------------------------------------------------------------------------------------------------


def _duration(tenant: Tenant, name: str) -> float:
    """Seconds from the creation of a job whose stages take no time until it has succeeded and been deleted."""
    began = time.monotonic()
    tenant.make(tenant.job(name))
    done = tenant.cluster.wait(
        tenant.path(name), lambda job: condition(job, "Finished") == "True", seconds=300
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    tenant.succeed("delete", "finetunejob", name, "-n", tenant.namespace, "--cascade=foreground")
    return time.monotonic() - began


def _longest_reconcile(tenant: Tenant) -> float:
    """The longest of ten times, in seconds, from an edit to the status that follows it. No pod takes part."""
    times = []
    for _ in range(10):
        began = time.monotonic()
        tenant.settled(KEPT)
        times.append(time.monotonic() - began)
    return max(times)


def test_a_queue_full_of_jobs_on_a_dead_store_does_not_keep_another_tenant_waiting(
    cluster: LocalCluster,
    attacker: Tenant,
    victim: Tenant,
    store: BucketProxy,
    record_property: Callable[[str, object], None],
) -> None:
    other = _tenant(cluster, store, "calm")
    alone, calm = _duration(other, "alone"), _longest_reconcile(victim)
    with store.held(ARTIFACTS, f"{attacker.namespace}/"):
        crowd = [f"crowd-{number}" for number in range(30)]
        attacker.make(
            {"apiVersion": "v1", "kind": "List", "items": [attacker.job(name, UNPLACED) for name in crowd]}
        )
        cluster.wait(attacker.path(crowd[-1]), lambda job: condition(job, "Valid") == "True", seconds=120)
        loaded, crowded = _longest_reconcile(victim), _duration(other, "crowded")
        # The other tenant's job has ended before the store answered for any of these jobs.
        assert not [name for name in jobsets(cluster, attacker.namespace) if name.startswith("crowd-")]
    for what, before, beside in (
        ("the longest reconcile", calm, loaded),
        ("a job of five stages", alone, crowded),
    ):
        print(f"\n{what}: {before:.1f} s, {beside:.1f} s beside 30 jobs on a dead store")
        record_property(what, (round(before, 1), round(beside, 1)))
    for name in (*crowd, OWN):
        attacker.succeed("delete", "finetunejob", name, "-n", attacker.namespace, "--wait=false")


def test_nothing_but_attacks_was_denied_by_the_store(
    attacker: Tenant, victim: Tenant, store: BucketProxy
) -> None:
    """The operator and the victim's stages need no more rights than the guide grants, and no stage lists a bucket."""
    accounts = {access.account for access in store.accesses}
    assert {
        f"{victim.namespace}/ft-cpu",
        f"{victim.namespace}/ft-train",
        f"{SYSTEM}/finetune-operator",
    } <= accounts
    denied = [
        str(access) for access in store.denied if not access.account.startswith(f"{attacker.namespace}/")
    ]
    assert denied == []
    listed = {each.need.name for each in store.accesses if each.need.permission == LIST and each.allowed}
    assert [name for name in listed if "/" not in name] == []
