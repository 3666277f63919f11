"""Argo CD's actions on jobs in every state, and what git then shows, with Argo CD's interpreter and its way to apply.

Argo CD patches the object with what an action has changed. It applies manifests from git with its field manager, and
shows as a difference what a dry run of that would change.
"""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.layout import ROOT
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, Object, condition, job_path, phase
from tests.integration.training import started
from tests.judges.run import ActionsResult, try_actions
from tests.unit.lifecycle.states import STATES, reach

# The program that runs the scripts is built on first use, which can take minutes without a build cache.
pytestmark = pytest.mark.timeout(600)

ACTIONS = frozenset({"suspend", "resume", "retry", "cancel"})
#: What is enabled in states that differ from the others of their phase.
ENABLED: Mapping[str, frozenset[str]] = {
    "not seen yet": frozenset({"suspend", "cancel"}),
    "training": frozenset({"suspend", "cancel"}),
    "recovering": frozenset({"suspend", "cancel"}),
    "no profile": frozenset({"suspend", "cancel"}),
    "suspending": frozenset({"resume", "cancel"}),
    "suspended": frozenset({"resume", "cancel"}),
    "suspended without a profile": frozenset({"resume", "cancel"}),
    "resumed": frozenset({"suspend", "cancel"}),
    "cancelling": frozenset(),
    "cancelled": frozenset(),
    "planned": frozenset(),
    "succeeded": frozenset(),
    "failed": frozenset({"retry"}),
    "retries exhausted": frozenset({"retry"}),
    "failed, edited since": frozenset({"retry"}),
    "retried by hand": frozenset({"suspend", "cancel"}),
}


@pytest.fixture(scope="module")
def jobs() -> Mapping[str, Object]:
    return {state: dict(reach(state)) for state in STATES}


@pytest.fixture(scope="module")
def results(jobs: Mapping[str, Object]) -> Mapping[str, ActionsResult]:
    return dict(zip(jobs, try_actions(list(jobs.values())), strict=True))


@pytest.mark.parametrize("state", ENABLED)
def test_actions_are_enabled_where_they_do_something(
    state: str, results: Mapping[str, ActionsResult]
) -> None:
    assert results[state].enabled == ENABLED[state]


@pytest.mark.parametrize("state", STATES)
def test_an_action_changes_its_field_alone(
    state: str, jobs: Mapping[str, Object], results: Mapping[str, ActionsResult]
) -> None:
    job, edited = jobs[state], results[state].edited
    assert set(edited) == ACTIONS
    given = (job["spec"].get("retry") or {}).get("generation") or 0
    done = job.get("status", {}).get("retryGeneration") or 0
    changes: Mapping[str, Object] = {
        "suspend": {"suspend": True},
        "resume": {"suspend": False},
        "cancel": {"cancel": True},
        "retry": {"retry": {"generation": max(given, done) + 1}},
    }
    for name, change in changes.items():
        expected = copy.deepcopy(job)
        expected["spec"] |= change
        assert edited[name] == json.loads(json.dumps(expected))


def test_the_configuration_contains_the_scripts() -> None:
    config = yaml.safe_load((ROOT / "examples/argo-cd/argocd-cm.yaml").read_text())["data"]
    actions = yaml.safe_load(config["resource.customizations.actions.tpu-finetune.dev_FineTuneJob"])
    folder = ROOT / "examples/argo-cd/tpu-finetune.dev/FineTuneJob/actions"
    assert actions["discovery.lua"] == (folder / "discovery.lua").read_text()
    scripts = {each["name"]: each["action.lua"] for each in actions["definitions"]}
    assert scripts == {path.parent.name: path.read_text() for path in folder.glob("*/action.lua")}
    assert set(scripts) == ACTIONS


# --- on the real control plane


def act(cluster: LocalCluster, namespace: str, name: str, action: str) -> None:
    """Does what Argo CD does: patches the object with what the action has changed. Fails if it is not enabled."""
    path = job_path(namespace, name)
    job = cluster.get(path)
    (found,) = try_actions([job])
    assert action in found.enabled
    changed = {
        key: each for key, each in found.edited[action]["spec"].items() if each != job["spec"].get(key)
    }
    cluster.patch(path, {"spec": changed})


def synced(cluster: LocalCluster, manifest: Mapping[str, Any]) -> None:
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-f", "-",
        stdin=json.dumps(manifest),
    )  # fmt: skip


def in_sync(cluster: LocalCluster, manifest: Mapping[str, Any]) -> bool:
    try:
        cluster.kubectl(
            "diff", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-f", "-",
            stdin=json.dumps(manifest),
        )  # fmt: skip
    except AssertionError:
        return False
    return True


def suspended(wanted: bool) -> Callable[[Object], bool]:
    return lambda job: condition(job, "Suspended") == str(wanted)


def test_actions_suspend_resume_and_cancel_a_job_whose_manifest_says_nothing_of_it(
    training: LocalCluster, namespace: str, runs: Path
) -> None:
    manifest = fake_trainer.job(namespace, "job", PROFILE, resources={"tpu": "v6e-4"})
    synced(training, manifest)
    started(training, namespace, "job", tpu="v6e-4")
    path = job_path(namespace, "job")
    assert in_sync(training, manifest)
    act(training, namespace, "job", "suspend")
    training.wait(path, phase("Suspended"), seconds=60)
    assert in_sync(training, manifest), "a field that git does not contain is no difference"
    synced(training, manifest)
    assert training.get(path)["spec"]["suspend"] is True
    act(training, namespace, "job", "resume")
    training.wait(path, phase("Running"), seconds=60)
    assert in_sync(training, manifest)
    act(training, namespace, "job", "cancel")
    failed = training.wait(path, phase("Failed"), seconds=60)
    assert failed["status"]["failure"]["reason"] == "Cancelled"
    assert in_sync(training, manifest)


def test_self_heal_reverts_an_action_on_a_field_that_git_sets(held: LocalCluster, namespace: str) -> None:
    manifest = fake_trainer.job(namespace, "job", PROFILE, suspend=False)
    synced(held, manifest)
    path = job_path(namespace, "job")
    held.wait(path, suspended(False))
    act(held, namespace, "job", "suspend")
    held.wait(path, suspended(True), seconds=60)
    assert not in_sync(held, manifest)
    synced(held, manifest)
    held.wait(path, suspended(False), seconds=60)
    assert in_sync(held, manifest)
    held.delete(path)  # its pod would hold a node until the end of all tests
    held.wait_gone(path, seconds=60)


def test_an_action_retries_a_failed_job(double: LocalCluster, namespace: str, runs: Path) -> None:
    manifest = fake_trainer.job(namespace, "job", f"failing-{namespace}")
    failing = runs / f"failing-{namespace}"
    failing.mkdir()
    (failing / "finetune-stage").write_text("#!/bin/sh\nexit 78\n")
    (failing / "finetune-stage").chmod(0o755)
    image = f"localhost/failing-{namespace}:test"
    double.add_image(image, failing)
    profile: Any = fake_trainer.profile(f"failing-{namespace}", runs)
    profile["spec"]["images"] = {"trainer": image}
    double.apply(profile)
    synced(double, manifest)
    path = job_path(namespace, "job")
    double.wait(path, phase("Failed"), seconds=60)
    assert in_sync(double, manifest)
    double.add_image(image, fake_trainer.install(runs / f"mended-{namespace}"))
    act(double, namespace, "job", "retry")
    double.wait(path, phase("Succeeded"), seconds=120)
    assert in_sync(double, manifest)
