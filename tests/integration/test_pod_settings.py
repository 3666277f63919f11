"""Settings of a profile's pods under a real API server: required labels, and a priority class."""

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import job_path, phase, says

#: A platform's rule that whatever runs is charged to someone.
LABEL = "cost-center"
KINDS = {"jobset.x-k8s.io/v1alpha2": "jobsets", "batch/v1": "jobs", "/v1": "pods"}


def policy(namespace: str) -> list[dict[str, Any]]:
    rules = [
        {
            "apiGroups": [version.split("/")[0]],
            "apiVersions": [version.split("/")[1]],
            "operations": ["CREATE"],
            "resources": [plural],
        }
        for version, plural in KINDS.items()
    ]
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"charged-{namespace}"}}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    holds = f"has(object.metadata.labels) && '{LABEL}' in object.metadata.labels"
    return [
        head
        | {
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": holds, "message": f"the label {LABEL} is required"}],
            },
        },
        head
        | {
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {
                "policyName": f"charged-{namespace}",
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": selector},
            },
        },
    ]


def settings(cluster: LocalCluster, runs: Path, name: str, **pod: object) -> str:
    """Applies a profile with these settings of its pods, and returns its name."""
    made = fake_trainer.profile(name, runs)
    made["spec"] |= {"pod": pod}  # type: ignore[operator]
    cluster.apply(made)
    return name


@pytest.mark.parametrize("of_job", [False, True], ids=["of the profile", "of the job"])
def test_a_job_runs_where_every_object_needs_a_label(
    double: LocalCluster, namespace: str, runs: Path, of_job: bool
) -> None:
    pod = {"jobLabels": [LABEL]} if of_job else {"labels": {LABEL: "42"}}
    profile = settings(double, runs, f"charged-{of_job}".lower(), **pod)
    for each in policy(namespace):
        double.apply(each)
    job = fake_trainer.job(namespace, "charged", profile)
    job["metadata"] |= {"labels": {LABEL: "42"} if of_job else {}}  # type: ignore[operator]
    double.apply(job)
    double.wait(job_path(namespace, "charged"), phase("Succeeded"))


def test_a_priority_class_that_does_not_exist_is_named(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    profile = settings(double, runs, "urgent", priorityClassName="no-such-class")
    double.apply(fake_trainer.job(namespace, "urgent", profile))
    double.wait(job_path(namespace, "urgent"), says("no PriorityClass with name no-such-class was found"))
