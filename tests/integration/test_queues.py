"""Jobs in the queues of a real Kueue: they wait and report why, are preempted, resume, or stall if no wait helps."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import RunFolder, Stage
from tests.documents import blocks
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.invariants import nothing_doubled
from tests.integration.jobs import (
    await_file,
    charged,
    condition,
    condition_of,
    job_path,
    jobset_path,
    jobsets,
    phase,
    uid_of,
)
from tests.integration.queues import (
    HIGH,
    KUEUE,
    LOCAL_QUEUE,
    LOW,
    PRIORITIES,
    Autoscaler,
    Team,
    kueue,
    provisioning_requests,
    queued_provisioning,
)

pytestmark = pytest.mark.matrix

type Object = dict[str, Any]


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("queues")
    with LocalCluster.started(folder / "cluster", operator=True, warm=False, extra=("kueue",)) as running:
        running.apply(provisioning_requests())
        running.stop("kueue")
        running.start("kueue")
        running.apply(kueue("ResourceFlavor", "tpu"))
        for name, value in PRIORITIES.items():
            running.apply({**kueue("WorkloadPriorityClass", name), "value": value})
        yield running


@pytest.fixture
def team(queues: LocalCluster, tmp_path: Path) -> Team:
    """A team with a queue. Only training takes time: it runs until it is asked to stop."""
    queues.add_image(
        fake_trainer.IMAGE,
        fake_trainer.install(tmp_path / "bin", seconds=3600, stages=[Stage.TRAIN], saves=True),
    )
    made = Team(queues, queues.namespace(), tmp_path)
    made.quota(4)
    local: Object = kueue("LocalQueue", LOCAL_QUEUE)
    local["metadata"]["namespace"] = made.namespace
    queues.apply({**local, "spec": {"clusterQueue": made.namespace}})
    return made


def start(team: Team, name: str, profile: str, **labels: str) -> str:
    """Applies a job and returns its path."""
    job: Object = fake_trainer.job(team.namespace, name, profile)
    job["metadata"]["labels"] = labels
    team.cluster.apply(job)
    return job_path(team.namespace, name)


def trains(team: Team, path: str) -> None:
    """Returns when the job's training runs and has installed its signal handlers."""
    found = team.cluster.wait(path, in_training, seconds=60)
    await_file(RunFolder(found["status"]["resolved"]["runFolder"]).request("train", 1))


def in_training(found: Object) -> bool:
    status = found.get("status", {})
    return status.get("phase") == "Running" and status.get("stage") == "Train"


def waits_for_quota(found: Object) -> bool:
    return bool(found.get("status", {}).get("waiting", {}).get("reason") == "WaitingForQuota")


def quota(status: str, *said: str) -> Callable[[Object], bool]:
    """Returns a predicate: QuotaReserved has that status, and its message contains all of ``said``."""

    def holds(found: Object) -> bool:
        seen = condition_of(found, "QuotaReserved")
        return seen.get("status") == status and all(part in seen["message"] for part in said)

    return holds


def test_workloads_are_watched_where_there_are_any(team: Team) -> None:
    watched = {sample.labels["watch"] for sample in team.cluster.metrics("finetune_watch_age_seconds")}
    assert "workloads" in watched


def test_of_two_jobs_with_quota_for_one_the_second_waits_and_then_runs(team: Team) -> None:
    profile = team.profile("first", localQueue=LOCAL_QUEUE)
    first = start(team, "first", profile)
    trains(team, first)
    assert condition(team.cluster.get(first), "QuotaReserved") == "True"
    second = start(team, "second", profile)
    waiting = team.cluster.wait(second, quota("False", "insufficient unused quota", "google.com/tpu"))
    status = waiting["status"]
    assert status["phase"] == "Queued"
    assert status["waiting"]["reason"] == "WaitingForQuota"
    assert LOCAL_QUEUE in status["waiting"]["message"]
    assert (condition(waiting, "Reconciling"), condition(waiting, "Stalled")) == ("True", "False")
    assert condition_of(waiting, "QuotaReserved")["reason"] == "WaitingForQuota"
    # CPU stages are in no queue, and no pod has asked for a TPU.
    assert len(team.workloads()) == 2
    assert [stage["phase"] for stage in status["stages"][:2]] == ["Succeeded", "Succeeded"]
    team.cluster.delete(first)
    trains(team, second)
    done = team.cluster.get(second)
    assert condition(done, "QuotaReserved") == "True"
    assert "waiting" not in done["status"]
    team.cluster.delete(second)


def test_a_job_of_higher_priority_takes_the_quota_and_the_other_resumes_in_its_place(team: Team) -> None:
    profile = team.profile("tiers", localQueue=LOCAL_QUEUE, priorityClass=LOW, allowJobLabels=True)
    low = start(team, "low", profile)
    trains(team, low)
    before = uid_of(team.cluster, team.namespace, "low-train-1")
    high = start(team, "high", profile, **{"kueue.x-k8s.io/priority-class": HIGH})
    evicted = team.cluster.wait(low, lambda found: phase("Queued")(found) and history(found) != [])
    trains(team, high)
    evicted = team.cluster.wait(low, lambda found: history(found)[:1] and "endStep" in history(found)[0])
    (entry,) = history(evicted)
    # The node is known only if the pod was observed before its deletion, and this pod is deleted at once.
    assert {name: value for name, value in entry.items() if name != "node"} == {
        "stage": "Train",
        "attempt": 1,
        "class": "Quota",
        "reason": "KueuePreempted",
        "startStep": 0,
        "endStep": fake_trainer.SAVED_STEP,
    }
    assert waits_for_quota(evicted)
    assert condition(evicted, "Stalled") == "False"
    team.cluster.delete(high)

    done = team.cluster.wait(low, lambda found: condition(found, "Finished") == "True", seconds=90)
    status = done["status"]
    assert status["phase"] == "Succeeded", status
    # The same JobSet and attempt: nothing was charged, and training resumed from its checkpoint.
    assert uid_of(team.cluster, team.namespace, "low-train-1") == before
    assert [name for name in jobsets(team.cluster, team.namespace) if "train" in name] == ["low-train-1"]
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}
    (train,) = (stage for stage in status["stages"] if stage["name"] == "Train")
    assert train["resumedFromStep"] == fake_trainer.SAVED_STEP
    assert history(done)[-1]["reason"] == "Succeeded"
    assert [each["reason"] for each in history(done)].count("KueuePreempted") == 1
    told = team.cluster.list(
        f"/api/v1/namespaces/{team.namespace}/events", fieldSelector="reason=KueuePreempted"
    )
    assert len(told) == 1
    codes = {s.labels["code"] for s in team.cluster.metrics("finetune_api_requests_total") if s.value}
    assert "403" not in codes


def history(found: Object) -> list[Object]:
    """Training's entries in the attempt history."""
    told = found.get("status", {}).get("attempts", {}).get("history", [])
    return [each for each in told if each["stage"] == "Train"]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_eviction_that_the_operator_did_not_see_is_reported_and_the_second_run_judged_by_its_own_record(
    team: Team, restarted: bool
) -> None:
    """``restarted``: the JobSet is resumed before its pod is deleted. The Job then fails, and JobSet restarts it."""
    path = start(team, "away", team.profile("away", localQueue=LOCAL_QUEUE))
    trains(team, path)
    # Times of conditions are whole seconds: a run is known to precede a resumption only if it began in another second.
    time.sleep(1)
    team.cluster.stop("operator")
    jobset = jobset_path(team.namespace, "away-train-1")
    if restarted:
        hold_pod(team)
    team.stop_queue("HoldAndDrain")
    # Kueue may evict a second time if the queue reopens before the first eviction is complete.
    team.cluster.wait(
        jobset, lambda found: bool(found["spec"]["suspend"]) and condition(found, "Suspended") == "True"
    )
    team.stop_queue("None")
    team.cluster.wait(jobset, lambda found: not found["spec"]["suspend"])
    if restarted:
        team.cluster.wait(jobset, lambda found: found["status"].get("restarts") == 1)
        release_pod(team)
    team.cluster.start("operator")
    done = team.cluster.wait(path, lambda found: condition(found, "Finished") == "True", seconds=90)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert [each["reason"] for each in history(done)] == ["KueueClusterQueueStopped", "Succeeded"]
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}
    assert [name for name in jobsets(team.cluster, team.namespace) if "train" in name] == ["away-train-1"]


HOLD = "test.tpu-finetune.dev/hold"


def hold_pod(team: Team) -> None:
    """Keeps the training's pod after its end and deletion until :func:`release_pod`."""
    pod = training_pod(team)
    finalizers = [*pod["metadata"].get("finalizers", ()), HOLD]
    team.cluster.patch(pod_path(team, pod), {"metadata": {"finalizers": finalizers}})


def release_pod(team: Team) -> None:
    pod = training_pod(team)
    finalizers = [each for each in pod["metadata"]["finalizers"] if each != HOLD]
    team.cluster.patch(pod_path(team, pod), {"metadata": {"finalizers": finalizers}})


def training_pod(team: Team) -> Object:
    (pod,) = team.cluster.list(
        f"/api/v1/namespaces/{team.namespace}/pods",
        labelSelector="jobset.sigs.k8s.io/jobset-name=away-train-1",
    )
    return pod


def pod_path(team: Team, pod: Object) -> str:
    return f"/api/v1/namespaces/{team.namespace}/pods/{pod['metadata']['name']}"


@pytest.mark.parametrize(
    ("queue", "chips", "said"),
    [(LOCAL_QUEUE, 2, "maximum capacity (2)"), ("nowhere", 4, "LocalQueue nowhere doesn't exist")],
)
def test_what_never_fits_is_stalled_and_continues_when_it_does(
    team: Team, queue: str, chips: int, said: str
) -> None:
    team.quota(chips)
    path = start(team, "stuck", team.profile("stuck", localQueue=queue))
    stuck = team.cluster.wait(path, quota("False", said))
    assert stuck["status"]["phase"] == "Queued"
    assert (condition(stuck, "Stalled"), condition(stuck, "Reconciling")) == ("True", "False")
    assert (condition(stuck, "Succeeded"), condition(stuck, "Finished")) == ("Unknown", "False")
    assert "cannot be admitted" in condition_of(stuck, "Stalled")["message"]
    if queue == LOCAL_QUEUE:
        team.quota(4)
        trains(team, path)
        assert condition(team.cluster.get(path), "Stalled") == "False"
    team.cluster.delete(path)


def test_a_workload_that_was_deactivated_is_stalled_until_it_is_active_again(team: Team) -> None:
    path = start(team, "off", team.profile("off", localQueue=LOCAL_QUEUE))
    trains(team, path)
    (workload,) = team.workloads()
    address = (
        f"/apis/{workload['apiVersion']}/namespaces/{team.namespace}/workloads/{workload['metadata']['name']}"
    )
    team.cluster.patch(address, {"spec": {"active": False}})
    off = team.cluster.wait(path, lambda found: condition(found, "Stalled") == "True")
    assert condition_of(off, "Stalled")["reason"] == "Deactivated"
    team.cluster.patch(address, {"spec": {"active": True}})
    done = team.cluster.wait(path, lambda found: condition(found, "Finished") == "True", seconds=90)
    assert done["status"]["phase"] == "Succeeded", done["status"]


def test_flex_start_holds_its_quota_until_its_nodes_are_provisioned(team: Team) -> None:
    check = f"nodes-{team.namespace}"
    autoscaler = Autoscaler(team, check)
    queued_provisioning(team.cluster, check)
    team.quota(4, check)
    path = start(team, "flex", team.profile("flex", "FlexStart", localQueue=LOCAL_QUEUE))
    team.cluster.wait(path, waits_for_nodes(check), seconds=60)
    jobset = jobset_path(team.namespace, "flex-train-1")
    asked = autoscaler.request()["spec"]
    assert asked["provisioningClassName"] == "queued-provisioning.gke.io"
    assert asked["parameters"]["maxRunDurationSeconds"] == str(7 * 24 * 3600)
    assert [each["count"] for each in asked["podSets"]] == [1]

    said = "no capacity for 4 chips of v6e in us-east5-b yet"
    autoscaler.answers(Accepted=("True", "taken"), Provisioned=("False", said))
    waiting = team.cluster.wait(path, waits_for_nodes(said))
    assert waiting["status"]["phase"] == "Provisioning"
    assert condition(waiting, "QuotaReserved") == "True"
    assert team.cluster.get(jobset)["spec"]["suspend"] is True

    autoscaler.answers(Accepted=("True", "taken"), Provisioned=("True", "nodes are there"))
    trains(team, path)
    (pod,) = team.cluster.list(
        f"/api/v1/namespaces/{team.namespace}/pods", labelSelector="tpu-finetune.dev/stage=Train"
    )
    consumed = pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"]
    assert consumed == autoscaler.request()["metadata"]["name"]
    tolerated = {each["key"] for each in pod["spec"]["tolerations"]}
    assert {"google.com/tpu", "cloud.google.com/gke-queued"} <= tolerated
    team.cluster.delete(path)


def waits_for_nodes(*said: str) -> Callable[[Object], bool]:
    """Returns a predicate: the job has its quota and waits for capacity, and its message contains all of ``said``."""

    def holds(found: Object) -> bool:
        waiting = found.get("status", {}).get("waiting", {})
        return waiting.get("reason") == "WaitingForCapacity" and all(
            part in waiting["message"] for part in said
        )

    return holds


def test_a_workload_that_is_deleted_costs_no_retry(team: Team) -> None:
    """Kueue suspends the JobSet that has lost its Workload, queues it again and soon admits it."""
    path = start(team, "lost", team.profile("lost", localQueue=LOCAL_QUEUE))
    trains(team, path)
    before = uid_of(team.cluster, team.namespace, "lost-train-1")
    (workload,) = team.workloads()
    with nothing_doubled(team.cluster):
        team.cluster.delete(
            f"/apis/{workload['apiVersion']}/namespaces/{team.namespace}/workloads/{workload['metadata']['name']}"
        )
        done = team.cluster.wait(path, lambda found: condition(found, "Finished") == "True", seconds=90)
    status = done["status"]
    assert status["phase"] == "Succeeded", status
    # On a busy machine, Kueue has admitted it again so soon that the suspension counted as a disruption.
    assert (charged(done)["infrastructure"], charged(done)["user"]) == (0, 0)
    # The same JobSet, resumed from its checkpoint.
    assert uid_of(team.cluster, team.namespace, "lost-train-1") == before
    (train,) = (stage for stage in status["stages"] if stage["name"] == "Train")
    assert train["resumedFromStep"] == fake_trainer.SAVED_STEP


def test_a_job_goes_through_the_queues_of_the_documentation(team: Team, tmp_path: Path) -> None:
    team.cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(tmp_path / "quick"))
    objects, queue = (
        list(yaml.safe_load_all(block.text))
        for block in blocks("yaml")
        if block.page == "queues.md" and ("kind: ClusterQueue" in block.text or "cpuLocalQueue" in block.text)
    )
    for each in objects:
        if each["kind"] == "LocalQueue":
            each["metadata"]["namespace"] = team.namespace
            # The fixture has made one of this name.
            team.cluster.delete(
                f"/apis/{KUEUE}/namespaces/{team.namespace}/localqueues/{each['metadata']['name']}"
            )
        team.cluster.apply(each)
    path = start(team, "job", team.profile("documented", **queue[0]["queue"]))
    team.cluster.wait(path, phase("Succeeded"), seconds=90)
    assert {each["spec"]["queueName"] for each in team.workloads()} == {"team-tpu", "team-cpu"}
