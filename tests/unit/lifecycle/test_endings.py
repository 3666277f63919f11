"""How attempts end, and who is charged."""

from typing import Any

import pytest

from finetune_contract import ExitCode, Failure, Stage
from finetune_contract.failure import PEER_LOST
from finetune_operator.api import Reason
from finetune_operator.lifecycle import AttemptKey, ReadFailure
from tests.unit.lifecycle.world import World, job

DISRUPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]}
RACED = {
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "ExclusivePlacementViolation"}]
}


def counters(world: World) -> dict[str, int]:
    attempts = world.status["attempts"]
    return {name: attempts[name] for name in ("preemption", "infrastructure", "user")}


def add_worker(world: World, name: str, **status: Any) -> None:
    """The first of Pathways' workers, which the world itself does not make."""
    labels = {
        **world.jobsets[name]["metadata"]["labels"],
        "jobset.sigs.k8s.io/replicatedjob-name": "worker",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    world.pods[f"{name}-worker-0"] = {
        "metadata": {
            "name": f"{name}-worker-0",
            "labels": {**labels, "jobset.sigs.k8s.io/jobset-name": name},
            "ownerReferences": [{"kind": "Job", "name": f"{name}-worker-0", "controller": True}],
        },
        "spec": {"nodeName": "tpu-node"},
        "status": {"phase": "Failed", **status},
    }


NOT_CHARGED = {"preemption": 1, "infrastructure": 0, "user": 0}
CHARGED = {"preemption": 0, "infrastructure": 1, "user": 0}
USERS = {"preemption": 0, "infrastructure": 0, "user": 1}


@pytest.mark.parametrize(
    ("code", "charged", "phase"),
    [
        (ExitCode.BAD_REQUEST, USERS, "Failed"),
        (ExitCode.BAD_DATA, USERS, "Failed"),
        (ExitCode.INPUT_MISSING, USERS, "Failed"),
        (ExitCode.UNAVAILABLE, CHARGED, "Recovering"),
        (ExitCode.DIVERGED, USERS, "Failed"),
        (ExitCode.PERMISSION_DENIED, USERS, "Failed"),
        (ExitCode.OUT_OF_MEMORY, USERS, "Failed"),
        (1, CHARGED, "Recovering"),
        (134, CHARGED, "Recovering"),
    ],
)
def test_the_trainers_own_record_decides(code: int, charged: dict[str, int], phase: str) -> None:
    world = World()
    world.fail(world.until(Stage.TRAIN), code)
    world.reconcile()
    assert counters(world) == charged
    assert world.status["phase"] == phase


@pytest.mark.parametrize(
    ("code", "status", "charged", "reason"),
    [
        (137, {}, CHARGED, "ProcessDied"),
        (137, DISRUPTED, NOT_CHARGED, "Preempted"),
        (137, RACED, NOT_CHARGED, "Preempted"),
        (1, DISRUPTED, NOT_CHARGED, "Preempted"),
        (75, {}, NOT_CHARGED, "Preempted"),
        (143, {}, NOT_CHARGED, "Preempted"),
        (0, {}, CHARGED, "PodLost"),
        (64, {}, USERS, "BadRequest"),
    ],
)
def test_without_a_record_the_pods_tell(
    code: int, status: dict[str, Any], charged: dict[str, int], reason: str
) -> None:
    world = World()
    world.kill(world.until(Stage.TRAIN), code, **status)
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def shown(world: World, name: str) -> None:
    """JobSet restarts, and the pods of the attempt that was disrupted can still be seen."""
    world.jobsets[name]["status"] = {"restarts": 1}


def evicted_by_kubelet(told: str) -> dict[str, Any]:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": told,
    }
    return {"reason": "Evicted", "message": told, "conditions": [condition]}


LOW_ON_DISK = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. Container trainer was "
    "using 85Gi, request is 0, has larger consumption of ephemeral-storage. "
)


@pytest.mark.parametrize(
    ("told", "reason", "charged"),
    [
        (LOW_ON_DISK, "DiskPressure", CHARGED),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ", "DiskPressure", CHARGED),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "5Gi". ', "DiskPressure", CHARGED),
        ("The node was low on resource: inodes. ", "DiskPressure", CHARGED),
        ("The node was low on resource: memory. Container trainer was using 60Gi. ", "MemoryPressure", CHARGED),
        ("Pod was terminated in response to imminent node shutdown.", "Preempted", NOT_CHARGED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN])
def test_a_node_that_ran_full_is_no_preemption(
    stage: Stage, told: str, reason: str, charged: dict[str, int]
) -> None:
    world = World()
    name = world.until(stage)
    world.end_pods(name, 137, **evicted_by_kubelet(told))
    shown(world, name)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == reason
    assert counters(world) == charged
    # The record stands when the pods are gone.
    world.pods.clear()
    world.reconcile()
    assert counters(world) == charged


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (LOW_ON_DISK, "larger boot disk"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 54Gi. ", "LimitRange"),
        ('Container trainer exceeded its local ephemeral storage limit "54Gi". ', "LimitRange"),
    ],
)
def test_a_pod_beyond_its_own_limit_of_scratch_space_is_distinguished_from_a_full_node(
    message: str, fix: str
) -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 0}))
    name = world.until(Stage.EXPORT)
    world.end_pods(name, 137, **evicted_by_kubelet(message))
    shown(world, name)
    world.reconcile()
    world.pods.clear()
    world.reconcile()
    assert world.status["failure"]["reason"] == "DiskPressure"
    assert fix in world.status["failure"]["suggestion"]


def test_a_killed_container_that_was_out_of_memory_is_the_users() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.end_pods(name, 137)
    world.pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    world.end_jobset(name, "Failed")
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert world.status["failure"]["class"] == "User"


def test_a_verdict_from_pods_outlives_them() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.kill(name, 137, **DISRUPTED)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        (DISRUPTED, "Preempted", "Kubernetes took a pod away (TerminationByKubelet)"),
        (RACED, "PlacementRace", "had landed in another node pool"),
        ({}, "Preempted", "JobSet started all of them again"),
    ],
)
def test_a_restart_inside_the_jobset_is_an_attempt_that_tells_its_cause(
    status: dict[str, Any], reason: str, told: str
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.end_pods(name, 137, **status)
    shown(world, name)
    world.reconcile()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert (record.reason, record.failure_class) == (reason, "Preemption")
    assert told in record.message
    assert world.status["attempts"]["history"][-1] == {
        "stage": "Train",
        "attempt": 1,
        "jobSet": name,
        "class": "Preemption",
        "reason": reason,
    }
    world.pods.clear()
    world.run(name)
    world.reconcile()
    train = next(each for each in world.status["stages"] if each["name"] == "Train")
    assert (train["attempt"], train["jobSet"], train["restart"]) == (2, name, 1)
    assert world.status["phase"] == "Running"
    world.to_the_end()
    assert world.created.count(name) == 1


def test_while_the_old_pods_still_save_nothing_is_judged() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    shown(world, name)
    world.reconcile()
    assert "history" not in world.status["attempts"] or all(
        each["stage"] != "Train" for each in world.status["attempts"]["history"]
    )
    assert world.live() == [name]


NODE = {"metadata": {"name": "n0"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
NOT_READY = {"metadata": {"name": "n0"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
LEAVING = NODE | {"spec": {"taints": [{"key": "cloud.google.com/impending-node-termination"}]}}
MAINTAINED = NODE | {
    "metadata": {"name": "n0", "labels": {"cloud.google.com/active-node-maintenance": "true"}}
}


@pytest.mark.parametrize(
    ("nodes", "seconds", "charged"),
    [
        ({"n0": NODE}, 1, CHARGED),
        ({"n0": NOT_READY}, 1, NOT_CHARGED),
        ({"n0": LEAVING}, 1, NOT_CHARGED),
        ({"n0": MAINTAINED}, 1, NOT_CHARGED),
        ({}, 1, NOT_CHARGED),
        ({}, 600, CHARGED),
        (None, 1, CHARGED),
    ],
    ids=["sound", "not ready", "leaving", "maintained", "gone", "gone much later", "not looked at"],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_crash_of_hosts_whose_node_was_taken_is_a_preemption(
    recorded: bool, nodes: dict[str, Any] | None, seconds: int, charged: dict[str, int]
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["spec"] = pod["spec"] | {"nodeName": "n0"}
    world.fail(name, 1, "UnexpectedError") if recorded else world.kill(name, 134)
    world.wait(seconds)
    world.nodes = nodes
    world.reconcile()
    assert counters(world) == charged
    # The nodes are as they were again; what was found out stays.
    world.nodes = {"n0": NODE}
    world.reconcile()
    assert counters(world) == charged


def in_pool(pool: str, ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"labels": {"cloud.google.com/gke-nodepool": pool}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("nodes", "charged"),
    [
        ({"n0": in_pool("a"), "n1": in_pool("a")}, CHARGED),
        ({"n0": in_pool("a")}, NOT_CHARGED),
        ({"n0": in_pool("a"), "n1": in_pool("a", "Unknown")}, NOT_CHARGED),
        ({"n0": in_pool("a"), "n1": in_pool("a"), "n2": in_pool("b", "Unknown")}, CHARGED),
    ],
    ids=["sound", "gone", "not ready", "of another slice"],
)
def test_a_crash_beside_a_host_that_was_lost_is_a_preemption_also_when_its_pod_is_gone(
    nodes: dict[str, Any], charged: dict[str, int]
) -> None:
    world = World()
    world.job = job(resources={"tpu": "v6e-8"})
    name = world.until(Stage.TRAIN)
    first, second = world.pods_of(name)
    first["spec"] = {"nodeName": "n0"}
    world.kill(name, 134)
    del world.pods[second["metadata"]["name"]]
    world.nodes = nodes
    world.reconcile()
    assert counters(world) == charged


def test_a_node_that_is_seen_to_be_gone_only_after_the_crash_was_charged_still_counts() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["spec"] = pod["spec"] | {"nodeName": "n0"}
    world.kill(name, 134)
    world.nodes = {"n0": NODE}
    world.reconcile()
    assert counters(world) == CHARGED
    world.wait(40)
    world.nodes = {"n0": NOT_READY}
    world.reconcile()
    assert counters(world) == NOT_CHARGED


def test_training_that_is_interrupted_again_and_again_before_it_saves_is_given_up() -> None:
    world = World()
    for number in range(10):
        world.train(name := world.until(Stage.TRAIN), 5)
        # Five steps into every attempt; a checkpoint would be due after ten.
        world.checkpoint = 0
        world.kill(name, 137, **DISRUPTED)
        assert not world.finished, number
    world.reconcile()
    assert name not in world.jobsets, "JobSet was about to start it once more"
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoProgress"
    assert "without a new checkpoint" in world.status["failure"]["message"]


def preempted_unwatched(times: int) -> tuple[World, str]:
    """Training makes progress between preemptions inside one JobSet, while the operator is away."""
    world = World(job=job(recovery={"maxPreemptions": 100}))
    name = world.until(Stage.TRAIN)
    for number in range(1, times + 1):
        world.wait(7200)
        world.train(name, number * 7)
        world.restart(name)
        world.wait(300)
        world.run(name)
    return world, name


def test_training_that_made_progress_while_the_operator_was_away_goes_on() -> None:
    world, name = preempted_unwatched(12)
    world.train(name, 85)
    for _ in range(3):
        assert not world.reconcile().deletions
    assert world.status["phase"] == "Running"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_preemptions_after_the_newest_progress_record_count_though_earlier_ones_are_not_recorded() -> None:
    world, name = preempted_unwatched(12)
    world.train(name, 85)
    world.reconcile()
    for number in range(11):
        # Killed before the first step: the progress record stays as it is.
        assert not world.reconcile().deletions, number
        world.restart(name)
        world.run(name)
    assert world.reconcile().deletions
    world.kill(name)
    world.lose(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "NoProgress"


def test_training_is_not_given_up_while_its_progress_is_unknown() -> None:
    world, name = preempted_unwatched(12)
    world.progress_unknown = ReadFailure(
        reason=Reason.CONTRACT_NEWER, message="train/progress.json is newer."
    )
    for _ in range(3):
        assert not world.reconcile().deletions
    assert world.live() == [name]


def test_suspensions_are_no_bad_ends_without_a_checkpoint() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 50)
    world.stop(name)
    world.reconcile()
    for _ in range(12):
        (name,) = world.live()
        world.schedule(name)
        world.reconcile()
        world.edit(suspend=True)
        world.reconcile()
        world.lose(name)
        world.reconcile()
        world.edit(suspend=False)
        name = world.until(Stage.TRAIN)
    world.train(name, 52)
    world.restart(name)
    assert not world.reconcile().deletions
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_training_that_is_killed_after_each_checkpoint_goes_on() -> None:
    world = World()
    for number in range(12):
        world.train(name := world.until(Stage.TRAIN), min(95, 10 * (number + 1)))
        world.reconcile()
        world.end_pods(name, 137, **DISRUPTED)
        shown(world, name)
        world.jobsets[name]["status"] = {"restarts": number + 1}
        world.reconcile()
        for pod in world.pods_of(name):
            del world.pods[pod["metadata"]["name"]]
    assert not world.finished
    assert world.attempts[AttemptKey(Stage.TRAIN, 1, 3)].failure.checkpoint == 40  # type: ignore[union-attr]


def test_a_host_that_crashes_because_another_was_taken_is_no_fault() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.fail(name, 1, "PeerLost")
    world.pods_of(name)[0]["status"].update(DISRUPTED)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


BAD_ROW = Failure(code=ExitCode.BAD_DATA, reason="BadRow", message="row 41", host=1)
CRASHED = Failure(code=1, reason="UnexpectedError", message="what nobody foresaw", host=1)
PEER_GONE = Failure(code=ExitCode.UNAVAILABLE, reason=PEER_LOST, message="host 1 does not answer")


def two_hosts() -> tuple[World, str]:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    assert len(world.pods_of(name)) == 2
    return world, name


@pytest.mark.parametrize(
    ("noted", "status", "charged", "reason"),
    [
        (BAD_ROW, {}, USERS, "BadRow"),
        (BAD_ROW, DISRUPTED, USERS, "BadRow"),
        (CRASHED, {}, CHARGED, "UnexpectedError"),
        (CRASHED, DISRUPTED, NOT_CHARGED, "Preempted"),
        (None, {}, NOT_CHARGED, "Preempted"),
    ],
    ids=["its own fault", "its own fault, and then taken", "crashed", "crashed of it", "nobody failed"],
)
@pytest.mark.parametrize(
    "recorded", [True, False], ids=["the first says it was stopped", "the first says nothing"]
)
def test_the_host_that_failed_is_judged_and_not_the_first_that_was_stopped_because_of_it(
    recorded: bool, noted: Failure | None, status: dict[str, Any], charged: dict[str, int], reason: str
) -> None:
    world, name = two_hosts()
    world.note(name, noted)
    if recorded:
        world.stop(name, of_another=noted is not None)
        for pod in world.pods_of(name):
            pod["status"].update(status)
    else:
        world.kill(name, 75, of_another=noted is not None, **status)
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def test_a_first_host_that_misses_another_is_asked_whether_that_ran_out_of_memory() -> None:
    world, name = two_hosts()
    world.fail(name, PEER_GONE.code, PEER_GONE.reason, PEER_GONE.message)
    state = world.pods_of(name)[1]["status"]["containerStatuses"][0]["state"]["terminated"]
    state.update({"exitCode": 137, "reason": "OOMKilled"})
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert counters(world) == USERS


def test_a_first_host_that_misses_another_of_which_nothing_is_known_is_a_fault_of_the_infrastructure() -> (
    None
):
    world, name = two_hosts()
    world.fail(name, PEER_GONE.code, PEER_GONE.reason, PEER_GONE.message)
    world.reconcile()
    assert counters(world) == CHARGED
    assert world.status["attempts"]["history"][-1]["reason"] == PEER_LOST


@pytest.mark.parametrize(
    ("codes", "charged", "reason"),
    [
        ((75, 65), USERS, "BadData"),
        ((75, 1), CHARGED, "ProcessDied"),
        ((69, 65), USERS, "BadData"),
        ((137, 75), NOT_CHARGED, "Preempted"),
        ((134, 1), CHARGED, "ProcessDied"),
    ],
)
def test_of_two_pods_without_a_record_the_one_that_tells_more_is_believed(
    codes: tuple[int, int], charged: dict[str, int], reason: str
) -> None:
    world, name = two_hosts()
    world.kill(name, codes[0], of_another=True)
    terminated = world.pods_of(name)[1]["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated["exitCode"] = codes[1]
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def test_a_success_is_believed_though_a_process_crashed_at_its_exit() -> None:
    world = World()
    name = world.until(Stage.EXPORT)
    world.write_success(name)
    world.kill(name, 134)
    world.reconcile()
    assert world.status["phase"] == "Succeeded"


def test_a_success_without_findings_is_not_believed() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.details = lambda request: None  # type: ignore[method-assign,assignment]
    world.succeed(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "ResultIncomplete"


def test_a_jobset_deleted_by_hand_is_followed_by_one_new_attempt() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 40)
    world.lose(name)
    world.reconcile()
    assert world.live() == ["support-bot-train-2"]
    assert counters(world) == CHARGED
    world.to_the_end()
    assert world.created.count("support-bot-train-2") == 1
    assert world.status["phase"] == "Succeeded"
    stages = {each["name"]: each for each in world.status["stages"]}
    assert stages["Train"]["resumedFromStep"] == 40
    assert "Recovered from 1 fault." in world.status["summary"]


def test_a_jobset_that_is_being_deleted_counts_as_live() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.jobsets[name]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    world.reconcile()
    assert world.created[-1] == name


def test_a_pod_that_lingers_without_its_jobset_blocks_the_next_attempt() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    del world.jobsets[name]
    world.reconcile()
    assert world.created[-1] == name
    world.pods.clear()
    world.reconcile()
    assert world.created[-1] == "support-bot-train-2"


def test_preemptions_do_not_touch_the_retry_budget() -> None:
    world = World()
    for number in range(20):
        world.train(name := world.until(Stage.TRAIN), 4 * (number + 1))
        world.stop(name)
    world.to_the_end()
    assert world.created.count("support-bot-train-1") == 1
    assert counters(world) == {"preemption": 20, "infrastructure": 0, "user": 0}
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("recovery", "code", "tries"),
    [({"maxInfrastructureRetries": 2}, 69, 3), ({"maxUserRetries": 1}, 70, 2), ({}, 70, 1)],
)
def test_a_budget_that_is_used_up_fails_the_job(recovery: dict[str, int], code: int, tries: int) -> None:
    world = World()
    world.edit(recovery=recovery)
    while True:
        world.reconcile()
        if world.finished:
            break
        if not world.live():
            world.wait(world.requeue_after or 0)
            continue
        (name,) = world.live()
        if world.key_of(name).stage is Stage.TRAIN:
            world.run(name)
            world.fail(name, code)
        else:
            world.succeed(name)
    assert len([name for name in world.created if "-train-" in name]) == tries
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["stage"] == "Train"
    assert world.status["failure"]["logsURI"].endswith(f"attempts/train-{tries}/log-tail.txt")
    assert world.condition("Succeeded")["status"] == "False"


def test_waits_double_between_faults_and_start_at_the_last_end() -> None:
    world = World()
    waits = []
    for _ in range(4):
        name = world.until(Stage.TRAIN)
        world.fail(name, 69)
        world.reconcile()
        waits.append(world.requeue_after)
        assert world.status["waiting"]["reason"] == "WaitingForRetry"
        world.wait(1)
        world.reconcile()
        assert world.requeue_after == waits[-1] - 1
    assert waits == [5, 10, 20, 40]


def pathways() -> World:
    return World(job=job(resources={"tpu": "v6e-4", "controller": "Pathways"}))


def test_the_end_of_pathways_server_is_not_told_in_the_trainers_codes() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    state = {"terminated": {"exitCode": int(ExitCode.BAD_REQUEST)}}
    add_worker(world, name, containerStatuses=[{"name": "pathways-worker", "state": state}])
    world.kill(name, 134)
    world.reconcile()
    assert counters(world) == CHARGED
    assert world.status["attempts"]["history"][-1]["reason"] == "ProcessDied"


def test_a_worker_that_is_taken_away_explains_the_heads_end() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    add_worker(world, name, **DISRUPTED)
    world.fail(name, ExitCode.UNAVAILABLE)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


def test_the_node_of_a_head_is_not_gone_because_it_is_none_of_the_slices() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["spec"] = pod["spec"] | {"nodeName": "cpu-node"}
    add_worker(world, name)  # it ended because the head did
    world.nodes = {"tpu-node": NODE}
    world.kill(name, 1)
    world.reconcile()
    assert counters(world) == CHARGED


def test_the_node_of_an_attempt_under_pathways_is_the_heads() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["spec"] = {"nodeName": "cpu-node"}
        pod["metadata"]["labels"] = pod["metadata"]["labels"] | {
            "batch.kubernetes.io/job-completion-index": "0"
        }
    add_worker(world, name)
    world.kill(name, 134)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["node"] == "cpu-node"


def given_up(world: World, name: str) -> None:
    """A worker's Job has failed, and the JobSet with it."""
    world.end_jobset(name, "Failed")
    world.jobsets[name]["status"]["replicatedJobsStatus"] = [
        {"name": "pathways-head", "failed": 0},
        {"name": "worker", "failed": 1},
    ]


@pytest.mark.parametrize("saved", [True, False])
def test_workers_that_keep_ending_are_a_fault_and_not_the_heads_preemption(saved: bool) -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    ended = {"terminated": {"exitCode": 139, "message": "out of luck"}}
    add_worker(world, name, containerStatuses=[{"restartCount": 4, "state": {}, "lastState": ended}])
    if saved:
        world.stop(name, of_another=True)
    else:
        world.kill(name, 143, of_another=True)
    given_up(world, name)
    for _ in range(2):  # the evidence is gone the second time
        world.reconcile()
        assert counters(world) == CHARGED
        assert world.status["attempts"]["history"][-1]["reason"] == "WorkersFailed"
        world.pods.clear()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert record.evidence == "exit code 139: out of luck"


def test_workers_whose_pods_were_taken_away_are_a_preemption() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    add_worker(world, name, **DISRUPTED)
    world.end_pods(name, 143)
    given_up(world, name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


def test_a_head_that_fails_by_itself_tells_so_though_workers_fail_of_it() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    world.fail(name, ExitCode.DIVERGED)
    given_up(world, name)
    world.reconcile()
    assert counters(world) == USERS


def test_restarts_of_workers_are_told_and_charged_to_nobody() -> None:
    def restarts(seen: int) -> tuple[int | None, str]:
        worker = world.pods[f"{name}-worker-0"]
        worker["status"] = {"phase": "Running", "containerStatuses": [{"restartCount": seen, "state": {}}]}
        world.reconcile()
        train = next(each for each in world.status["stages"] if each["name"] == "Train")
        return train.get("workerRestarts"), world.status["summary"]

    world = pathways()
    name = world.until(Stage.TRAIN)
    world.run(name)
    add_worker(world, name)
    assert restarts(0)[0] is None
    assert restarts(1)[0] == 1
    told, summary = restarts(2)
    assert told == 2
    assert "Recovered from 2 restarts of workers." in summary
    # Another pod in its place knows of none.
    assert restarts(0)[0] == 2
    world.pods.pop(f"{name}-worker-0")
    world.fail(name, 1)
    world.reconcile()
    assert counters(world) == CHARGED
    name = world.until(Stage.TRAIN)
    add_worker(world, name)
    assert restarts(0)[0] is None


def test_a_server_that_does_not_come_up_is_what_the_head_waits_for() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    world.schedule(name)
    ended = {"terminated": {"exitCode": 1, "message": "no permission to write /tmp\n"}}
    server = {"name": "pathways-rm", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    for pod in world.pods_of(name):
        pod["status"] = {"phase": "Pending", "initContainerStatuses": [server]}
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForRetry"
    assert world.status["waiting"]["message"] == (
        "container pathways-rm keeps ending (exit code 1): no permission to write /tmp."
    )
