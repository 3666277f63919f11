"""A complete job on a store that grants each account exactly the rights of the installation guide."""

import json
from collections.abc import Iterator

import pytest

from devcluster import samples
from finetune_contract import Stage
from tests import bucket_grants
from tests.bucket_grants import ARTIFACTS
from tests.doubles.bucket_iam import BUCKET, CREATE, LIST
from tests.doubles.bucketproxy import BucketProxy
from tests.doubles.local_cluster import LocalCluster
from tests.e2e.user_client import Object, UserClient, condition, finetune_job, folder_of
from tests.unit.cli.bad_input.runs import run

#: This module has its own cluster, whose first stage starts before the warm server is ready.
pytestmark = pytest.mark.timeout(600)


def in_folder_of(namespace: str, item: samples.SampleFolder) -> str:
    """URI of the team's copy of the input, in the team's managed folder of the input's bucket."""
    bucket, _, name = item.uri.removeprefix("gs://").partition("/")
    return f"gs://{bucket}/{namespace}/{name}"


@pytest.fixture(scope="module")
def store() -> Iterator[BucketProxy]:
    with BucketProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bench(store: BucketProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserClient]:
    folder = tmp_path_factory.mktemp("accounts") / "cluster"
    with LocalCluster.started(folder, operator=True, store=store.url) as cluster:
        store.serve(cluster.gcs)
        namespace = cluster.namespace("team")
        for item in (samples.TINY_MODEL, samples.CAPITALS):
            samples.put(item, cluster.gcs, in_folder_of(namespace, item))
        store.grant(*bucket_grants.of_team(namespace))
        yield UserClient(
            kubectl_binary=cluster.kubectl_program,
            kubeconfig=cluster.kubeconfig,
            namespace=namespace,
            gcs_endpoint=cluster.gcs,
        )


@pytest.fixture(scope="module")
def job(bench: UserClient) -> Object:
    data = in_folder_of(bench.namespace, samples.CAPITALS)
    inputs: Object = {
        "model": {"uri": in_folder_of(bench.namespace, samples.TINY_MODEL)},
        "datasets": {
            "train": [{"uri": f"{data}/train.jsonl"}],
            "validation": [{"uri": f"{data}/eval.jsonl"}],
            "maxSeqLength": 64,
        },
    }
    evaluation = {
        "prompts": ["What is the capital of France?"],
        "datasets": [{"name": "capitals", "uri": f"{data}/eval.jsonl"}],
    }
    smoke = {"smoke": {"steps": 2, "examples": 8}}
    export = {
        "content": "Both",
        "destinations": [{"uri": f"gs://{ARTIFACTS}/{bench.namespace}/exports/capitals"}],
    }
    bench.apply(
        finetune_job("whole", lora=True, **inputs, preflight=smoke, evaluation=evaluation, export=export)
    )
    return bench.succeed("whole", patience=480)


def test_a_whole_job_needs_no_more_than_the_guide_gives(
    bench: UserClient, job: Object, store: BucketProxy
) -> None:
    assert folder_of(job).uri.startswith(f"gs://{ARTIFACTS}/{bench.namespace}/")
    assert [str(access) for access in store.denied] == []


def test_every_role_of_the_guide_is_used(bench: UserClient, job: Object, store: BucketProxy) -> None:
    unused = [
        grant
        for grant in bucket_grants.of_team(bench.namespace)
        if not any(grant.gives(access.account, access.need) for access in store.accesses)
    ]
    assert unused == []


def test_nothing_lists_a_whole_bucket(bench: UserClient, job: Object, store: BucketProxy) -> None:
    """No account needs roles/storage.legacyBucketReader, which grants the right to list the objects of all teams."""
    asked = {
        (access.account, access.need.bucket) for access in store.accesses if access.need.permission == BUCKET
    }
    assert (f"{bench.namespace}/ft-train", ARTIFACTS) in asked
    assert not [each for each in store.accesses if each.need.permission == LIST and not each.need.name]


def test_a_probe_tries_what_the_guide_grants_and_names_what_is_withdrawn(
    bench: UserClient, store: BucketProxy
) -> None:
    """The team's profile lists its inputs. Both pods are deleted, and nothing is left in the buckets."""
    inputs = [f"gs://{bucket}/{bench.namespace}/*" for bucket in (bucket_grants.MODELS, bucket_grants.DATA)]
    bench.apply_profile(
        "probed", namespaces=[bench.namespace], constraints={"mode": "Strict", "uris": {"read": inputs}}
    )
    asked = len(store.accesses)
    code, found = _probe(bench)
    assert [each for each in found if each["state"] == "missing"] == []
    written = [each.need for each in list(store.accesses)[asked:] if each.need.permission == CREATE]
    assert {need.bucket for need in written} == {ARTIFACTS, bucket_grants.CACHE}
    left = [blob.name for need in written for blob in bench.store().list_blobs(need.bucket, prefix=need.name)]
    assert left == []
    assert bench.kubectl("get", "pods", "-l", "tpu-finetune.dev/doctor", "-o", "name") == ""

    account = f"{bench.namespace}/ft-train"
    folder = f"{bench.namespace}/"
    with store.withdrawn(account, bucket_grants.DATA, folder):
        code, found = _probe(bench)
    assert code == 1
    (fault,) = (each for each in found if each["state"] == "missing")
    assert fault["message"].startswith(
        f"{account} may not read in gs://{bucket_grants.DATA}/{bench.namespace}"
    )
    assert f"gs://{bucket_grants.DATA}/{folder} --member principal://" in fault["fix"]


def test_roles_that_arrive_late_are_waited_for_without_a_slice(bench: UserClient, store: BucketProxy) -> None:
    """Preflight and Train may not even write their records: only their pods report what is missing."""
    data, team = in_folder_of(bench.namespace, samples.CAPITALS), f"{bench.namespace}/"
    early = finetune_job(
        "early",
        lora=True,
        model={"uri": in_folder_of(bench.namespace, samples.TINY_MODEL)},
        datasets={"train": [{"uri": f"{data}/train.jsonl"}], "maxSeqLength": 64},
    )
    with store.withdrawn(f"{team}ft-train", ARTIFACTS, team):
        with store.withdrawn(f"{team}ft-cpu", ARTIFACTS, team):
            bench.apply(early)
            _waits_for_role(bench, "early", "ft-cpu")
        _waits_for_role(bench, "early", "ft-train")
        phases = {pod["status"]["phase"] for pod in bench.list("pods", job="early", stage=Stage.TRAIN)}
        assert phases <= {"Failed"}
    job = bench.succeed("early", patience=300)
    assert job["status"]["attempts"]["user"] == 0


def _waits_for_role(bench: UserClient, name: str, account: str) -> None:
    """Returns once the job waits for the next attempt after its stage, of that account, was refused."""
    named = f'ServiceAccount "{account}" of namespace "{bench.namespace}"'

    def refused(job: Object) -> bool:
        said = job["status"].get("waiting", {}).get("message", "")
        return named in said and "The next attempt" in said

    job = bench.wait(name, refused, patience=300)
    assert f"gs://{ARTIFACTS}/{bench.namespace}/" in job["status"]["waiting"]["message"]
    assert "roles/storage.objectViewer there, or objectUser to write" in job["status"]["summary"]
    assert condition(job, "Finished") == "False"


def _probe(bench: UserClient) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings on storage and images."""
    options = ("-n", bench.namespace, "--kubeconfig", str(bench.kubeconfig))
    done = run(["doctor", "--probe", "-o", "json", *options])
    findings = json.loads(done.stdout)["findings"]
    return done.code, [each for each in findings if each["check"] in {"storage", "images"}]
