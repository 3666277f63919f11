"""Pods that outlive their trainer, pods that do not go, and children that policies delete at their end, on the real
control plane."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, pods
from tests.integration.jobs import (
    PROFILE,
    Object,
    charged,
    condition,
    condition_of,
    job_path,
    jobset_path,
    jobsets,
    phase,
)
from tests.integration.training import pods_of, quick, started

POLICIES = "/apis/admissionregistration.k8s.io/v1"
PROXY = """[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{
  name: "istio-proxy", image: "localhost/machine:1", command: ["sleep", "3600"],
  securityContext: Object.spec.containers.securityContext{
    allowPrivilegeEscalation: false,
    capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}]"""
AT_ONCE = '[JSONPatch{op: "add", path: "/spec/ttlSecondsAfterFinished", value: 0}]'

type Mutate = Callable[[str, str, str, str], None]


@pytest.fixture
def mutate(cluster: LocalCluster, namespace: str) -> Iterator[Mutate]:
    """A function that has objects of the namespace changed as they are created, by a policy that ends with the test."""
    names: list[str] = []

    def applied(group: str, version: str, resource: str, patch: str) -> None:
        name = f"{namespace}-{resource}"
        names.append(name)
        rule = {
            "apiGroups": [group],
            "apiVersions": [version],
            "operations": ["CREATE"],
            "resources": [resource],
        }
        selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        for kind, spec in (
            (
                "MutatingAdmissionPolicy",
                {
                    "failurePolicy": "Fail",
                    "reinvocationPolicy": "Never",
                    "matchConstraints": {"resourceRules": [rule]},
                    "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
                },
            ),
            (
                "MutatingAdmissionPolicyBinding",
                {"policyName": name, "matchResources": {"namespaceSelector": selector}},
            ),
        ):
            made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
            cluster.apply(made | {"spec": spec})

    yield applied
    for name in names:
        cluster.delete(f"{POLICIES}/mutatingadmissionpolicybindings/{name}")
        cluster.delete(f"{POLICIES}/mutatingadmissionpolicies/{name}")


def injects(cluster: LocalCluster, namespace: str, mutate: Mutate) -> None:
    """Has a container added to every pod of the namespace. The API server needs a moment to know a new policy."""
    cluster.add_image(pods.IMAGE, Path("/usr/bin"))
    mutate("", "v1", "pods", PROXY)
    probe = pods.shell(namespace, "probe", "true") | {"apiVersion": "v1", "kind": "Pod"}
    path = f"/api/v1/namespaces/{namespace}/pods/probe"
    while True:
        cluster.apply(probe)
        added = len(cluster.get(path)["spec"]["containers"]) == 2
        cluster.delete(path)
        cluster.wait_gone(path)
        if added:
            return


def stage(job: Object, name: str) -> Object:
    return next((each for each in job.get("status", {}).get("stages", ()) if each["name"] == name), {})


def trainer_ended(pod: Object) -> bool:
    states = {each["name"]: each["state"] for each in pod.get("status", {}).get("containerStatuses", ())}
    return "terminated" in states.get("trainer", {})


def test_a_stage_ends_although_an_injected_container_runs_on(
    double: LocalCluster, namespace: str, mutate: Mutate
) -> None:
    injects(double, namespace, mutate)
    double.apply(fake_trainer.job(namespace, "job", PROFILE))
    double.wait(job_path(namespace, "job"), lambda job: condition(job, "Running") == "True", seconds=60)
    (pod,) = double.list(f"/api/v1/namespaces/{namespace}/pods")
    ended = double.wait(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", trainer_ended)
    assert ended["status"]["phase"] == "Running"
    double.wait(
        job_path(namespace, "job"),
        lambda job: stage(job, "Preflight").get("phase") == "Succeeded",
        seconds=75,
    )
    double.wait_gone(jobset_path(namespace, "job-preflight-1"), seconds=60)
    double.wait(job_path(namespace, "job"), lambda job: stage(job, "Convert").get("phase") == "Running")
    # Its training would run for an hour with the program of the next test, on a slice that others need.
    double.delete(job_path(namespace, "job"))


@pytest.mark.parametrize("held_by", ["node", "finalizer"])
def test_a_pod_that_cannot_end_is_named(held: LocalCluster, namespace: str, held_by: str) -> None:
    held.apply(fake_trainer.job(namespace, "job", PROFILE))
    held.wait(job_path(namespace, "job"), lambda job: condition(job, "Running") == "True", seconds=60)
    (pod,) = held.list(f"/api/v1/namespaces/{namespace}/pods")
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    if held_by == "node":
        held.freeze_nodes()
    else:
        held.patch(path, {"metadata": {"finalizers": [*pod["metadata"]["finalizers"], "corp.example/audit"]}})
    try:
        held.patch(job_path(namespace, "job"), {"spec": {"suspend": True}})
        stalled = held.wait(
            job_path(namespace, "job"), lambda job: condition(job, "Stalled") == "True", seconds=120
        )
    finally:
        if held_by == "node":
            held.thaw_nodes()
        else:
            held.patch(path, {"metadata": {"finalizers": None}})
    named = "corp.example/audit" if held_by == "finalizer" else "kubectl delete node"
    for text in (stalled["status"]["summary"], condition_of(stalled, "Stalled")["message"]):
        assert all(part in text for part in (pod["metadata"]["name"], pod["spec"]["nodeName"], named))
    held.wait(job_path(namespace, "job"), phase("Suspended"), seconds=60)


@pytest.mark.parametrize(
    ("group", "version", "resource"), [("jobset.x-k8s.io", "v1alpha2", "jobsets"), ("batch", "v1", "jobs")]
)
def test_a_kill_that_was_seen_is_the_users_although_policies_delete_its_traces(
    training: LocalCluster,
    namespace: str,
    runs: Path,
    mutate: Mutate,
    group: str,
    version: str,
    resource: str,
) -> None:
    mutate(group, version, resource, AT_ONCE)
    started(training, namespace, "job")
    quick(training, runs)
    training.run_out_of_memory(pods_of(training, namespace)[1])
    done = training.wait(job_path(namespace, "job"), phase("Failed", "Succeeded"), seconds=90)
    failure = done["status"].get("failure", {})
    assert (failure.get("class"), failure.get("reason")) == ("User", "HostOutOfMemory")
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 1}
    assert "job-train-2" not in jobsets(training, namespace)
