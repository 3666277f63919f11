"""A job whose objects are refused, or that Kueue queues although its profile names no queue, shows what and why."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, condition, condition_of, job_path, jobset_path, phase
from tests.integration.queues import kueue

type Object = dict[str, Any]

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with Kueue. Stages take no time, and the profile names no queue."""
    folder = tmp_path_factory.mktemp("refusing")
    with LocalCluster.started(folder / "cluster", operator=True, warm=False, extra=("kueue",)) as running:
        running.add_image(fake_trainer.IMAGE, fake_trainer.install(folder / "bin"))
        running.apply(fake_trainer.profile(PROFILE, folder))
        running.apply(kueue("ResourceFlavor", "any"))
        yield running


@pytest.fixture
def namespace(refusing: LocalCluster) -> str:
    return refusing.namespace()


def reconciling(reason: str) -> Callable[[Object], bool]:
    return lambda job: condition_of(job, "Reconciling").get("reason") == reason


def start(cluster: LocalCluster, namespace: str, name: str, **spec: object) -> str:
    """Applies a job that ends after preflight, and returns its path."""
    cluster.apply(fake_trainer.job(namespace, name, PROFILE, planOnly=True, **spec))
    return job_path(namespace, name)


def admitted_but_refused(job: Object) -> None:
    """Asserts that the status says of a job that nothing could be created of what it would say otherwise."""
    status = job["status"]
    assert (condition(job, "Valid"), condition_of(job, "Valid")["reason"]) == ("True", "Accepted")
    assert (status["phase"], status["observedGeneration"]) == ("Validating", job["metadata"]["generation"])
    assert status["summary"] == condition_of(job, "Reconciling")["message"]
    assert "not been checked" not in str(status["conditions"])


def test_a_quota_that_refuses_the_first_jobset_is_named_in_a_whole_status(
    refusing: LocalCluster, namespace: str
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
        "spec": {"hard": {"count/jobsets.jobset.x-k8s.io": "0"}},
    }
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/none"
    refusing.apply(quota)
    refusing.wait(path, lambda found: "used" in found.get("status", {}))
    job = start(refusing, namespace, "none")
    refused = refusing.wait(job, reconciling("RefusedByAPIServer"), seconds=30)
    admitted_but_refused(refused)
    assert "exceeded quota: none" in refused["status"]["summary"]
    assert refused["status"]["resolved"]["runFolder"]
    refusing.delete(path)
    refusing.wait(job, phase("Planned"), seconds=120)


@contextmanager
def webhook(cluster: LocalCluster, service: str, resource: str, group: str) -> Iterator[None]:
    """A webhook of a Service that does not exist is called for each creation of the resource."""
    name, namespace = service.split("/")
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
    hook = {
        "name": "check.example.com",
        "rules": [rule],
        "clientConfig": {"service": {"name": name, "namespace": namespace, "path": "/check"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }
    cluster.apply(configuration)
    try:
        yield
    finally:
        cluster.delete(f"{WEBHOOKS}/{name}")


@pytest.mark.parametrize(
    ("service", "resource", "group", "owner"),
    [
        ("jobset-webhook-service/jobset-system", "jobsets", "jobset.x-k8s.io", "JobSet's"),
        ("kueue-webhook-service/kueue-system", "jobsets", "jobset.x-k8s.io", "Kueue's"),
        ("kyverno-svc/kyverno", "configmaps", "", "another component's"),
    ],
)
def test_a_webhook_that_is_down_is_named_with_its_service(
    refusing: LocalCluster, namespace: str, service: str, resource: str, group: str, owner: str
) -> None:
    name, space = service.split("/")
    with webhook(refusing, service, resource, group):
        job = start(refusing, namespace, "held")
        refused = refusing.wait(job, reconciling("WebhookUnavailable"), seconds=30)
        admitted_but_refused(refused)
        named = f'{owner} webhook "check.example.com" (Service "{name}" in namespace "{space}"): '
        assert named in refused["status"]["summary"]
    refusing.wait(job, phase("Planned"), seconds=120)


@pytest.mark.parametrize("controller", ["jobset", "kueue"])
def test_a_controller_that_is_down_is_not_the_api_server(
    refusing: LocalCluster, namespace: str, controller: str
) -> None:
    """Kueue's webhook is called for JobSets that are in no queue, too."""
    refusing.stop(controller)
    try:
        job = start(refusing, namespace, f"no-{controller}")
        refused = refusing.wait(job, reconciling("WebhookUnavailable"), seconds=30)
    finally:
        refusing.start(controller)
    admitted_but_refused(refused)
    # Webhooks of the local cluster are called by URL, and both controllers give them the same names.
    address = f"127.0.0.1:{refusing.ports[f'{controller}-webhook']}"
    assert f"JobSet's or Kueue's webhook \"mjobset.kb.io\" at {address}: " in refused["status"]["summary"]
    assert "connection refused" in refused["status"]["summary"]
    refusing.wait(job, phase("Planned"), seconds=120)


def test_a_local_queue_named_default_is_named_with_what_to_set(
    refusing: LocalCluster, namespace: str
) -> None:
    local_queue(refusing, namespace, "default", "google.com/tpu")
    job = start(refusing, namespace, "captured")
    stuck = refusing.wait(job, lambda found: condition(found, "Stalled") == "True", seconds=60)
    said = stuck["status"]["summary"]
    assert "The profile names no queue for Preflight, but " in said
    assert 'LocalQueue "default", which takes every JobSet without a queue: ' in said
    assert "queue.cpuLocalQueue" in said
    assert "spec.resources" not in said
    local_queue(refusing, namespace, "default", *ON_CPU)
    refusing.wait(job, phase("Planned"), seconds=120)


#: What stages on CPU request.
ON_CPU = ("cpu", "memory", "ephemeral-storage")


def local_queue(cluster: LocalCluster, namespace: str, name: str, *covered: str) -> None:
    """Makes a LocalQueue whose ClusterQueue covers these resources."""
    resources = [{"name": each, "nominalQuota": "100Ti"} for each in covered]
    group = {"coveredResources": list(covered), "flavors": [{"name": "any", "resources": resources}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    cluster.apply({**kueue("ClusterQueue", namespace), "spec": spec})
    local = kueue("LocalQueue", name)
    local["metadata"]["namespace"] = namespace
    cluster.apply({**local, "spec": {"clusterQueue": namespace}})


def test_a_kueue_that_manages_every_jobset_is_named_with_what_to_set(
    refusing: LocalCluster, namespace: str
) -> None:
    with every_jobset_managed(refusing):
        job = start(refusing, namespace, "managed")
        stuck = refusing.wait(job, lambda found: condition(found, "Stalled") == "True", seconds=60)
        said = stuck["status"]["summary"]
        assert "manageJobsWithoutQueueName" in said
        assert "queue.cpuLocalQueue" in said
        assert 'LocalQueue ""' not in said
        local_queue(refusing, namespace, "team-cpu", *ON_CPU)
        label = {"kueue.x-k8s.io/queue-name": "team-cpu"}
        refusing.patch(jobset_path(namespace, "managed-prep-1"), {"metadata": {"labels": label}})
        refusing.wait(job, phase("Planned"), seconds=120)


@contextmanager
def every_jobset_managed(cluster: LocalCluster) -> Iterator[None]:
    """Kueue runs with manageJobsWithoutQueueName. Only a killed process is restarted with the file as it is."""
    file: Path = cluster.state.root / "kueue" / "config.yaml"
    before = file.read_text()
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), "manageJobsWithoutQueueName": True}))
    try:
        cluster.kill("kueue")
        cluster.await_ready("kueue")
        yield
    finally:
        file.write_text(before)
        cluster.kill("kueue")
        cluster.await_ready("kueue")


@pytest.mark.parametrize("there", [{}, {"token": "read"}])
def test_the_secret_that_is_missing_is_the_one_that_is_named(
    refusing: LocalCluster, namespace: str, there: dict[str, str]
) -> None:
    """``there``: what the Secret to write with holds; it lacks the key. Empty: it does not exist."""
    secret = {"apiVersion": "v1", "kind": "Secret"}
    refusing.apply(
        {**secret, "metadata": {"name": "hf-read", "namespace": namespace}, "stringData": {"token": "x"}}
    )
    write = {"name": "hf-write", "key": "write"}
    if there:
        refusing.apply(
            {**secret, "metadata": {"name": "hf-write", "namespace": namespace}, "stringData": there}
        )
    hub = {"repo": "team/model", "private": True, "tokenSecretRef": write}
    job = start(
        refusing,
        namespace,
        "tokens",
        huggingFaceTokenSecretRef={"name": "hf-read"},
        export={"destinations": [{"huggingFaceHub": hub}]},
    )
    waiting = refusing.wait(job, lambda found: condition(found, "Valid") == "False", seconds=60)
    said = condition_of(waiting, "Valid")["message"]
    assert (
        'spec.export.destinations[0].huggingFaceHub.tokenSecretRef: key "write" of Secret "hf-write"' in said
    )
    assert "hf-read" not in said
    refusing.apply(
        {**secret, "metadata": {"name": "hf-write", "namespace": namespace}, "stringData": {"write": "x"}}
    )
    done = refusing.wait(job, phase("Planned"), seconds=120)
    assert condition(done, "Valid") == "True"
