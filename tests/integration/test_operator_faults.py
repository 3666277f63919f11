"""Jobs with problems on the real control plane: what is reported, what stays unchanged, and how the jobs continue."""

import itertools
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from devcluster import operator_process
from finetune_contract import RunFolder, Stage
from finetune_operator.cluster.port import ClusterError
from tests.doubles.faultproxy import FaultProxy, ProxiedRequest
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, pods
from tests.integration.invariants import nothing_doubled
from tests.integration.jobs import (
    PROFILE,
    Object,
    await_file,
    condition,
    condition_of,
    job_path,
    jobset_path,
    jobsets,
    phase,
    says,
    uid_of,
)

pytestmark = pytest.mark.usefixtures("watches_are_late")

LEASE = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


def started(cluster: LocalCluster, namespace: str, name: str, **spec: object) -> RunFolder:
    """Starts a job and returns its run folder once preflight runs."""
    cluster.apply(fake_trainer.job(namespace, name, PROFILE, **spec))
    found = cluster.wait(
        job_path(namespace, name), lambda job: "resolved" in job.get("status", {}), seconds=30
    )
    run = RunFolder(found["status"]["resolved"]["runFolder"])
    await_file(run.request("prep", 1))
    return run


def speed_up(cluster: LocalCluster, runs: Path) -> None:
    """Makes stages of attempts that start from now on take no time."""
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))


@pytest.fixture(scope="module", autouse=True)
def without_accounts(cluster: LocalCluster, runs: Path) -> str:
    """A namespace where a job waits for pods from the module's start, as the operator reports this only after 20 s."""
    cluster.start("operator")
    cluster.apply(fake_trainer.profile(PROFILE, runs))
    namespace = cluster.namespace()
    cluster.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/ft-cpu")
    cluster.apply(fake_trainer.job(namespace, "nobody", PROFILE, planOnly=True))
    return namespace


# --- deletion


@pytest.mark.parametrize("operator_is_there", [True, False])
def test_a_deleted_job_takes_its_children_and_leaves_its_artefacts(
    held: LocalCluster, namespace: str, operator_is_there: bool
) -> None:
    run = started(held, namespace, "brief")
    pods = held.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="tpu-finetune.dev/job=brief")
    assert pods
    uid = held.get(job_path(namespace, "brief"))["metadata"]["uid"]
    plan = f"/api/v1/namespaces/finetune-system/configmaps/finetune-plan-{uid}"
    held.get(plan)
    if not operator_is_there:
        held.stop("operator")
    held.delete(job_path(namespace, "brief"))
    # The job has no finalizer, so no operator has to run.
    held.wait_gone(job_path(namespace, "brief"), seconds=10)
    held.wait_gone(jobset_path(namespace, "brief-prep-1"))
    if not operator_is_there:
        held.start("operator")
    held.wait_gone(plan)
    for pod in pods:
        held.wait_gone(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
    await_file(run.request("prep", 1), seconds=0)


def test_a_job_created_again_under_its_name_starts_fresh(
    held: LocalCluster, namespace: str, runs: Path
) -> None:
    first = started(held, namespace, "again")
    speed_up(held, runs)
    held.delete(job_path(namespace, "again"))
    held.apply(fake_trainer.job(namespace, "again", PROFILE))
    done = held.wait(job_path(namespace, "again"), phase("Succeeded"), seconds=120)
    assert done["status"]["resolved"]["runFolder"] != first.uri
    assert done["status"]["attempts"]["total"] == len(Stage)


# --- edits


def test_an_edit_that_is_refused_is_reported_and_stops_nothing(held: LocalCluster, namespace: str) -> None:
    started(held, namespace, "edited")
    before = uid_of(held, namespace, "edited-prep-1")
    path = job_path(namespace, "edited")
    with pytest.raises(ClusterError, match=r"spec: Invalid value.*model cannot be changed"):
        held.patch(path, {"spec": {"model": {"uri": "file:///models/other"}}})
    held.patch(path, {"spec": {"resources": {"tpu": "v6e-16"}}})
    told = held.wait(path, lambda job: condition(job, "Valid") == "False", seconds=30)
    valid = condition_of(told, "Valid")
    assert valid["reason"] == "NoFlavorFits"
    assert 'is not offered by profile "double". It offers: tpu-v6e-slice 2x2, 2x4' in valid["message"]
    held.patch(path, {"spec": {"resources": {"tpu": "v6e-2x2"}}})
    held.wait(path, lambda job: condition_of(job, "Valid").get("observedGeneration") == 3, seconds=30)
    assert condition(held.get(path), "Valid") == "True"
    assert uid_of(held, namespace, "edited-prep-1") == before
    held.delete(path)


def test_an_edit_of_what_is_still_to_come_takes_effect(
    held: LocalCluster, namespace: str, runs: Path
) -> None:
    started(held, namespace, "shorter")
    held.patch(job_path(namespace, "shorter"), {"spec": {"evaluation": None}})
    speed_up(held, runs)
    held.delete(jobset_path(namespace, "shorter-prep-1"))
    held.wait(job_path(namespace, "shorter"), phase("Succeeded"), seconds=120)
    assert "shorter-eval-1" not in jobsets(held, namespace)


# --- lifecycle


def test_a_job_that_is_born_suspended_waits_and_starts(double: LocalCluster, namespace: str) -> None:
    path = job_path(namespace, "later")
    double.apply(fake_trainer.job(namespace, "later", PROFILE, suspend=True))
    double.wait(path, phase("Suspended"), seconds=30)
    assert jobsets(double, namespace) == []
    double.patch(path, {"spec": {"suspend": False}})
    double.wait(path, phase("Succeeded"), seconds=120)


def test_a_job_is_suspended_in_the_middle_and_continues(
    held: LocalCluster, namespace: str, runs: Path
) -> None:
    started(held, namespace, "paused")
    path = job_path(namespace, "paused")
    held.patch(path, {"spec": {"suspend": True}})
    paused = held.wait(path, phase("Suspended"), seconds=60)
    assert condition(paused, "Suspended") == "True"
    assert jobsets(held, namespace) == []
    speed_up(held, runs)
    held.patch(path, {"spec": {"suspend": False}})
    done = held.wait(path, phase("Succeeded"), seconds=120)
    assert "paused-prep-2" in jobsets(held, namespace)
    attempts = done["status"]["attempts"]
    assert (attempts["preemption"], attempts["infrastructure"], attempts["user"]) == (0, 0, 0)
    assert attempts["history"][0]["reason"] == "Suspended"


def test_plan_only_ends_after_preflight(double: LocalCluster, namespace: str) -> None:
    double.apply(fake_trainer.job(namespace, "planned", PROFILE, planOnly=True))
    done = double.wait(job_path(namespace, "planned"), phase("Planned"), seconds=60)
    assert condition(done, "Finished") == "True"
    assert "No TPU time was used." in done["status"]["summary"]
    assert jobsets(double, namespace) == ["planned-prep-1"]


# --- missing inputs and objects


def test_a_profile_that_is_deleted_is_not_missed(held: LocalCluster, namespace: str, runs: Path) -> None:
    name = f"gone-{namespace}"
    held.apply(fake_trainer.profile(name, runs))
    started(held, namespace, "orphan", profileRef={"name": name})
    held.delete(f"/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles/{name}")
    speed_up(held, runs)
    held.delete(jobset_path(namespace, "orphan-prep-1"))
    held.wait(job_path(namespace, "orphan"), phase("Succeeded"), seconds=120)


def test_a_secret_that_is_missing_is_named_and_its_arrival_noticed(
    double: LocalCluster, namespace: str
) -> None:
    path = job_path(namespace, "secretive")
    double.apply(
        fake_trainer.job(
            namespace, "secretive", PROFILE, huggingFaceTokenSecretRef={"name": "hf"}, planOnly=True
        )
    )
    waiting = double.wait(path, lambda job: condition(job, "Valid") == "False", seconds=60)
    assert condition_of(waiting, "Valid")["reason"] == "SecretNotFound"
    assert f'key "token" of Secret "hf" in namespace {namespace}' in waiting["status"]["summary"]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "hf", "namespace": namespace},
        "stringData": {"token": "not-a-token"},
    }
    double.apply(secret)
    done = double.wait(path, phase("Planned"), seconds=120)
    assert condition(done, "Valid") == "True"
    assert jobsets(double, namespace) == ["secretive-prep-1"]


def test_a_namespace_without_the_service_accounts_is_reported(
    double: LocalCluster, without_accounts: str
) -> None:
    path = job_path(without_accounts, "nobody")
    double.wait(
        path,
        says("creates no pods", 'ServiceAccount "ft-cpu"', f'namespace "{without_accounts}"'),
        seconds=90,
    )
    double.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "ft-cpu", "namespace": without_accounts},
        }
    )
    # The Job controller now waits a minute between its attempts; a change of the Job makes it try at once.
    job = f"/apis/batch/v1/namespaces/{without_accounts}/jobs/nobody-prep-1-cpu-0"
    double.patch(job, {"metadata": {"annotations": {"seen-by": "a person"}}})
    double.wait(path, phase("Planned"), seconds=120)
    assert jobsets(double, without_accounts) == ["nobody-prep-1"]


def test_a_request_that_no_container_can_be_given_is_refused(double: LocalCluster, namespace: str) -> None:
    path = job_path(namespace, "wordy")
    double.apply(
        fake_trainer.job(
            namespace, "wordy", PROFILE, evaluation={"prompts": ["€" * 2048] * 16}, planOnly=True
        )
    )
    told = double.wait(path, lambda job: condition(job, "Valid") == "False", seconds=30)
    assert condition_of(told, "Valid")["reason"] == "RequestTooLarge"
    assert jobsets(double, namespace) == []
    double.patch(path, {"spec": {"evaluation": {"prompts": ["Hello"]}}})
    double.wait(path, phase("Planned"), seconds=120)


# --- conflicts and missing rights


def test_a_jobset_of_another_owner_is_neither_adopted_nor_touched(
    double: LocalCluster, namespace: str
) -> None:
    strange = pods.jobset(namespace, "squat-prep-1", pods.replicated_job("cpu", pods.spec("sleep", "3600")))
    double.apply(strange)
    before = double.get(jobset_path(namespace, "squat-prep-1"))["metadata"]
    path = job_path(namespace, "squat")
    double.apply(fake_trainer.job(namespace, "squat", PROFILE, planOnly=True))
    told = double.wait(
        path, lambda job: condition_of(job, "Reconciling").get("reason") == "NameTaken", seconds=60
    )
    assert f'JobSet "squat-prep-1" in namespace "{namespace}"' in told["status"]["summary"]
    assert "Delete or rename it" in told["status"]["summary"]
    after = double.get(jobset_path(namespace, "squat-prep-1"))["metadata"]
    assert (after["uid"], after.get("ownerReferences")) == (before["uid"], None)
    assert "deletionTimestamp" not in after
    double.delete(jobset_path(namespace, "squat-prep-1"))
    double.wait(path, phase("Planned"), seconds=180)


@contextmanager
def without_right(cluster: LocalCluster, resource: str, verb: str) -> Iterator[None]:
    """Removes one right from the operator's roles during the block."""
    spoilt: list[tuple[str, list[Object]]] = []
    for role in cluster.list(ROLES, labelSelector="app.kubernetes.io/name=finetune-operator"):
        rules = role.get("rules") or []
        fewer = [
            rule | {"verbs": [each for each in rule["verbs"] if each != verb]}
            if resource in rule.get("resources", ())
            else rule
            for rule in rules
        ]
        if fewer != rules:
            path = f"{ROLES}/{role['metadata']['name']}"
            spoilt.append((path, rules))
            cluster.patch(path, {"rules": fewer})
    assert spoilt, f"no role grants {verb} on {resource}"
    try:
        yield
    finally:
        for path, rules in spoilt:
            cluster.patch(path, {"rules": rules})


def test_a_right_that_is_missing_is_reported_and_its_return_noticed(
    double: LocalCluster, namespace: str
) -> None:
    path = job_path(namespace, "powerless")
    with without_right(double, "jobsets", "create"):
        double.apply(fake_trainer.job(namespace, "powerless", PROFILE, planOnly=True))
        told = double.wait(
            path,
            lambda job: condition_of(job, "Reconciling").get("reason") == "RefusedByAPIServer",
            seconds=60,
        )
        assert 'cannot create resource "jobsets"' in told["status"]["summary"]
        assert "operator's role" in told["status"]["summary"]
    done = double.wait(path, phase("Planned"), seconds=180)
    assert condition_of(done, "Reconciling")["reason"] == "Planned"
    assert jobsets(double, namespace) == ["powerless-prep-1"]


# --- two operators


@contextmanager
def operators(
    cluster: LocalCluster, folder: Path, *names: str, servers: Mapping[str, int] = {}
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Runs operator processes that no supervisor restarts, by name, in place of the cluster's own operator.

    ``servers``: ports at which some of them find the API server.
    """
    cluster.stop("operator")
    component = operator_process.operator(cluster.state, cluster.ports)
    inherited = {name: value for name, value in os.environ.items() if name not in component.env}
    own = {name: value for name, value in component.env.items() if value is not None}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            ports = {"FINETUNE_HEALTH_PORT": "0", "FINETUNE_METRICS_PORT": "0"}
            if name in servers:
                ports["KUBERNETES_SERVICE_PORT"] = str(servers[name])
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(
                    component.argv,
                    env=inherited | own | ports | {"FINETUNE_IDENTITY": name},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        cluster.start("operator")


def leader_of(cluster: LocalCluster, running: Mapping[str, object]) -> tuple[str, str]:
    """Waits until one of two operators leads. Returns its name and the other's."""
    lease = cluster.wait(LEASE, lambda found: found["spec"].get("holderIdentity") in running, seconds=60)
    leader = lease["spec"]["holderIdentity"]
    (other,) = running.keys() - {leader}
    return leader, other


def test_of_two_operators_one_acts_and_the_other_takes_over(
    held: LocalCluster, namespace: str, runs: Path, tmp_path: Path
) -> None:
    with operators(held, tmp_path, "one", "two") as running:
        leader, other = leader_of(held, running)
        started(held, namespace, "shared", planOnly=True)
        assert '"message": "created JobSet shared-prep-1"' in (tmp_path / f"{leader}.log").read_text()
        running[leader].kill()
        # The JobSet is deleted while no process leads, and the other process finds it missing.
        speed_up(held, runs)
        held.delete(jobset_path(namespace, "shared-prep-1"))
        held.wait(LEASE, lambda lease: lease["spec"].get("holderIdentity") == other, seconds=60)
        held.wait(job_path(namespace, "shared"), phase("Planned"), seconds=120)
        logs = {name: (tmp_path / f"{name}.log").read_text() for name in running}
        assert "created JobSet shared-prep-2" in logs[other]
        assert "shared-prep-2" not in logs[leader]
    assert jobsets(held, namespace) == ["shared-prep-2"]


def test_a_leader_that_was_stopped_writes_nothing_when_it_continues(
    double: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    """It is stopped while it reads a job before the creation of a JobSet, so that this write is its next step."""
    names = ("one", "two")
    jobs = [f"lagging-{number}" for number in range(3)]
    requests: defaultdict[str, list[ProxiedRequest]] = defaultdict(list)
    reading, stopped = f"/namespaces/{namespace}/finetunejobs/", threading.Event()
    leader = ""

    def note(name: str, request: ProxiedRequest) -> None:
        requests[name].append(request)
        if name == leader and not request.writes and reading in request.path and not stopped.is_set():
            running[name].send_signal(signal.SIGSTOP)
            stopped.set()

    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(
                FaultProxy(double.state, double.ports["kube-apiserver"], partial(note, name))
            )
            for name in names
        }
        servers = {name: proxy.port for name, proxy in proxies.items()}
        running = stack.enter_context(operators(double, tmp_path, *names, servers=servers))
        stack.enter_context(nothing_doubled(double))
        leader, other = leader_of(double, running)
        for job in jobs:
            double.apply(fake_trainer.job(namespace, job, PROFILE))
        assert stopped.wait(60), "no job was read before a JobSet was created"
        double.wait(LEASE, lambda lease: lease["spec"].get("holderIdentity") == other, seconds=60)
        done = [double.wait(job_path(namespace, job), phase("Succeeded"), seconds=120) for job in jobs]
        before = len(requests[leader])
        running[leader].send_signal(signal.SIGCONT)
        assert running[leader].wait(60) == 1, "it ends, and a kubelet would start it as a candidate"
        late = [
            (request.method, request.path)
            for request in requests[leader][before:]
            if request.writes and not request.path.endswith("/leases/finetune-operator")
        ]
        assert late == []
        assert "the Lease was not renewed" in (tmp_path / f"{leader}.log").read_text()
        versions = [double.get(job_path(namespace, job))["metadata"]["resourceVersion"] for job in jobs]
        assert versions == [job["metadata"]["resourceVersion"] for job in done]
        assert double.get(LEASE)["spec"]["holderIdentity"] == other
    every = sorted(f"{job}-{stage.short}-1" for job in jobs for stage in Stage)
    assert jobsets(double, namespace) == every


def test_edits_without_end_keep_no_status_from_being_written(training: LocalCluster, namespace: str) -> None:
    """Usage is known from statuses alone: a job without one would use chips that no budget counts."""
    path, ended = job_path(namespace, "job"), threading.Event()
    training.apply(fake_trainer.job(namespace, "job", PROFILE))

    def edit() -> None:
        for number in itertools.count():
            training.patch(path, {"metadata": {"annotations": {"example.com/number": str(number)}}})
            if ended.is_set():
                return

    with ThreadPoolExecutor() as pool:
        edits = [pool.submit(edit) for _ in range(3)]
        try:
            training.wait(
                path,
                lambda job: phase("Running")(job) and "chipHours" in job["status"].get("cost", {}),
                seconds=120,
            )
        finally:
            ended.set()
        for done in edits:
            done.result()
    # Its training would hold a slice for an hour.
    training.delete(path)
