"""How attempts end, and the class that is charged."""

from collections.abc import Sequence
from typing import Any

import pytest

from finetune_contract import ExitCode, Failure, Stage
from finetune_contract.failure import PEER_LOST
from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import ReadFailure
from tests.unit.lifecycle.world import World, job
from tests.unit.lifecycle.writes import writes

DISRUPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]}
RACED = {
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "ExclusivePlacementViolation"}]
}


def counters(world: World) -> dict[str, int]:
    attempts = world.status["attempts"]
    return {name: attempts[name] for name in ("preemption", "infrastructure", "user")}


def add_worker(world: World, name: str, **status: Any) -> None:
    """Adds the first Pathways worker, which the world does not create."""
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


def steps_of_history(world: World) -> list[tuple[int | None, int | None, int | None]]:
    """First, last and lost steps of each attempt of Train that has ended."""
    return [
        (each.get("startStep"), each.get("endStep"), each.get("lostSteps"))
        for each in world.status["attempts"]["history"]
        if each["stage"] == "Train"
    ]


def test_steps_of_a_killed_attempt_are_known_and_those_that_the_next_one_repeats() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 37)
    world.kill(name)
    world.reconcile()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert (record.start_step, record.step, record.checkpoint) == (0, 37, 30)
    assert steps_of_history(world) == [(0, 37, None)]
    # The progress of the next attempt replaces that of the first one.
    name = world.until(Stage.TRAIN)
    world.train(name, 41)
    world.reconcile()
    assert steps_of_history(world) == [(0, 37, 7)]
    world.stop(name)
    world.reconcile()
    assert steps_of_history(world) == [(0, 37, 7), (30, 41, None)]
    world.to_the_end()
    assert steps_of_history(world)[:2] == [(0, 37, 7), (30, 41, None)]


def test_steps_of_a_suspended_attempt_that_could_not_save_are_known() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 25)
    world.edit(suspend=True)
    world.reconcile()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert (record.reason, record.start_step, record.step, record.checkpoint) == ("Suspended", 0, 25, None)
    world.kill(name)
    world.reconcile()
    assert steps_of_history(world) == [(0, 25, None)]


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
def test_the_trainers_record_decides_the_result(code: int, charged: dict[str, int], phase: str) -> None:
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
def test_without_a_record_the_pods_decide_the_result(
    code: int, status: dict[str, Any], charged: dict[str, int], reason: str
) -> None:
    world = World()
    world.kill(world.until(Stage.TRAIN), code, **status)
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def shown(world: World, name: str) -> None:
    """The JobSet restarts while the pods of the disrupted attempt still exist."""
    world.jobsets[name]["status"] = {"restarts": 1}


def evicted_over_its_own_limit(expected: str) -> dict[str, Any]:
    """As kubelet 1.36 leaves the pod: without DisruptionTarget."""
    return {"reason": "Evicted", "message": expected}


def evicted_by_kubelet(expected: str) -> dict[str, Any]:
    if "exceed" in expected or "rejected" in expected:
        return evicted_over_its_own_limit(expected)
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": expected,
    }
    return {"reason": "Evicted", "message": expected, "conditions": [condition]}


LOW_ON_DISK = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. Container trainer was "
    "using 85Gi, request is 0, has larger consumption of ephemeral-storage. "
)


@pytest.mark.parametrize(
    ("expected", "reason", "charged"),
    [
        (LOW_ON_DISK, "DiskPressure", CHARGED),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ", "DiskPressure", CHARGED),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "5Gi". ', "DiskPressure", CHARGED),
        ("The node was low on resource: inodes. ", "DiskPressure", CHARGED),
        ("Pod was rejected: The node had condition: [DiskPressure]. ", "DiskPressure", CHARGED),
        ("Pod was rejected: The node had condition: [MemoryPressure]. ", "MemoryPressure", CHARGED),
        ("The node was low on resource: memory. Container trainer was using 60Gi. ", "MemoryPressure", CHARGED),
        ("Pod was terminated in response to imminent node shutdown.", "Preempted", NOT_CHARGED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN])
def test_eviction_from_a_node_without_disk_space_is_not_a_preemption(
    stage: Stage, expected: str, reason: str, charged: dict[str, int]
) -> None:
    world = World()
    name = world.until(stage)
    world.end_pods(name, 137, **evicted_by_kubelet(expected))
    shown(world, name)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == reason
    assert counters(world) == charged
    # The record remains after the pods are deleted.
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
def test_a_pod_over_its_scratch_limit_differs_from_a_full_node(message: str, fix: str) -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 0}))
    name = world.until(Stage.EXPORT)
    world.end_pods(name, 137, **evicted_by_kubelet(message))
    shown(world, name)
    world.reconcile()
    world.pods.clear()
    world.reconcile()
    assert world.status["failure"]["reason"] == "DiskPressure"
    assert fix in world.status["failure"]["suggestion"]


def test_an_oom_killed_container_is_charged_to_the_user() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.end_pods(name, 137)
    world.pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    world.end_jobset(name, "Failed")
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert world.status["failure"]["class"] == "User"


def unlimited(world: World, name: str) -> None:
    """The pods have no memory limit, as in a queue."""
    template = world.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    for each in (template, *world.pods_of(name)):
        (container,) = each["spec"]["containers"]
        container["resources"]["limits"].pop("memory", None)


def kill_for_memory(world: World, name: str, **status: Any) -> None:
    world.run(name)
    unlimited(world, name)
    world.end_pods(name, 137, **status)
    state = world.pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    state["reason"] = "OOMKilled"
    world.end_jobset(name, "Failed")
    world.reconcile()


def test_an_oom_kill_without_a_memory_limit_is_that_of_the_node() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 0}))
    kill_for_memory(world, world.until(Stage.TRAIN))
    failure = world.status["failure"]
    assert (failure["reason"], failure["class"]) == ("NodeOutOfMemory", "Infrastructure")
    assert "node of pod support-bot-train-1-0 ran out of memory" in failure["message"]
    assert "hostResources.memory" in failure["suggestion"]


def test_a_job_that_always_exhausts_its_node_uses_up_the_infrastructure_budget() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 2}))
    world.until(Stage.TRAIN)
    for number in (1, 2, 3):
        assert world.live() == [f"support-bot-train-{number}"]
        kill_for_memory(world, world.live()[0])
        world.wait(400)
        world.reconcile()
    assert world.status["phase"] == "Failed"
    assert counters(world) == {**CHARGED, "infrastructure": 3}


def faults_of(world: World, steps: Sequence[int]) -> list[str]:
    """Trains to each step, where a checkpoint is saved, and crashes; returns the phase after each crash."""
    phases = []
    for step in steps:
        world.train(name := world.until(Stage.TRAIN), step)
        world.kill(name, 134)
        world.reconcile()
        phases.append(world.status["phase"])
        world.wait(400)
        world.reconcile()
    return phases


RENEWED = {"maxInfrastructureRetries": 2, "renewedBy": "Checkpoint"}


@pytest.mark.parametrize("wiped", [False, True])
def test_a_new_checkpoint_renews_the_budget_of_faults_if_asked(wiped: bool) -> None:
    world = World(job=job(recovery=RENEWED))
    steps = range(10, 60, 10)
    for step in steps:
        assert faults_of(world, [step]) == ["Recovering"]
        if wiped:
            world.job.pop("status", None)
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == len(steps)
    # The fault after the checkpoint counts, and two more without another one.
    assert faults_of(world, [50, 50]) == ["Recovering", "Failed"]
    assert "spec.recovery.maxInfrastructureRetries" in str(world.status["failure"])


def test_a_new_checkpoint_renews_nothing_by_default() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 2}))
    assert faults_of(world, [10, 20, 30]) == ["Recovering", "Recovering", "Failed"]


def test_no_retries_stay_none_whatever_is_saved() -> None:
    world = World(job=job(recovery={**RENEWED, "maxInfrastructureRetries": 0}))
    assert faults_of(world, [10]) == ["Failed"]


def test_faults_before_the_first_checkpoint_count_from_the_beginning() -> None:
    world = World(job=job(recovery=RENEWED))
    assert faults_of(world, [5, 5, 5]) == ["Recovering", "Recovering", "Failed"]


def test_a_node_without_memory_that_is_lost_is_no_preemption() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    kill_for_memory(world, name, **DISRUPTED)
    assert counters(world) == CHARGED
    world.lose(name)
    world.reconcile()
    assert counters(world) == CHARGED
    assert world.status["attempts"]["history"][-1]["reason"] == "NodeOutOfMemory"


def test_a_result_derived_from_pods_is_kept_after_their_deletion() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.kill(name, 137, **DISRUPTED)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (DISRUPTED, "Preempted", "Kubernetes disrupted a pod (TerminationByKubelet)"),
        (RACED, "PlacementRace", "were scheduled to another node pool"),
        ({}, "Preempted", "JobSet restarted all pods"),
    ],
)
def test_a_restart_inside_the_jobset_is_an_attempt_with_a_cause(
    status: dict[str, Any], reason: str, expected: str
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.end_pods(name, 137, **status)
    shown(world, name)
    world.reconcile()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert (record.reason, record.failure_class) == (reason, "Preemption")
    assert expected in record.message
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


def test_a_restart_is_not_classified_while_its_old_pods_save() -> None:
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
    ids=["ready", "not ready", "terminating", "maintained", "gone", "gone much later", "not listed"],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_crash_of_hosts_on_a_preempted_node_is_a_preemption(
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
    # The nodes are as before again; the result remains.
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
    ids=["ready", "gone", "not ready", "of another slice"],
)
def test_a_crash_beside_a_lost_host_without_a_pod_is_a_preemption(
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


def test_a_node_found_gone_after_the_crash_was_charged_still_counts() -> None:
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


def test_training_interrupted_repeatedly_before_it_saves_fails() -> None:
    world = World()
    for number in range(10):
        world.train(name := world.until(Stage.TRAIN), 5)
        # Every attempt makes five steps; a checkpoint would be due after ten.
        world.checkpoint = 0
        world.kill(name, 137, **DISRUPTED)
        assert not world.finished, number
    world.reconcile()
    assert name not in world.jobsets, "JobSet was about to restart it"
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


def test_training_that_progressed_without_the_operator_continues() -> None:
    world, name = preempted_unwatched(12)
    world.train(name, 85)
    for _ in range(3):
        assert not writes(world.reconcile()).deletions
    assert world.status["phase"] == "Running"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_preemptions_after_the_newest_progress_record_count() -> None:
    world, name = preempted_unwatched(12)
    world.train(name, 85)
    world.reconcile()
    for number in range(11):
        # Killed before the first step: the progress record stays as it is.
        assert not writes(world.reconcile()).deletions, number
        world.restart(name)
        world.run(name)
    assert writes(world.reconcile()).deletions
    world.kill(name)
    world.lose(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "NoProgress"


def test_training_does_not_fail_while_its_progress_is_unknown() -> None:
    world, name = preempted_unwatched(12)
    world.progress_unknown = ReadFailure(
        reason=Reason.CONTRACT_NEWER, message="train/progress.json is newer."
    )
    for _ in range(3):
        assert not writes(world.reconcile()).deletions
    assert world.live() == [name]


def test_suspensions_do_not_count_as_interruptions_without_a_checkpoint() -> None:
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
    assert not writes(world.reconcile()).deletions
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_training_killed_after_each_checkpoint_continues() -> None:
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


def test_a_host_crash_caused_by_the_preemption_of_another_is_no_fault() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.fail(name, 1, "PeerLost")
    world.pods_of(name)[0]["status"].update(DISRUPTED)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


BAD_ROW = Failure(code=ExitCode.BAD_DATA, reason="BadRow", message="row 41", host=1)
CRASHED = Failure(code=1, reason="UnexpectedError", message="unforeseen", host=1)
PEER_GONE = Failure(code=ExitCode.UNAVAILABLE, reason=PEER_LOST, message="host 1 does not answer")


def two_hosts(**spec: Any) -> tuple[World, str]:
    world = World(job=job(resources={"tpu": "v6e-8"}, **spec))
    name = world.until(Stage.TRAIN)
    assert len(world.pods_of(name)) == 2
    return world, name


@pytest.mark.parametrize(
    ("failure_record", "status", "charged", "reason"),
    [
        (BAD_ROW, {}, USERS, "BadRow"),
        (BAD_ROW, DISRUPTED, USERS, "BadRow"),
        (CRASHED, {}, CHARGED, "UnexpectedError"),
        (CRASHED, DISRUPTED, NOT_CHARGED, "Preempted"),
        (None, {}, NOT_CHARGED, "Preempted"),
    ],
    ids=["user error", "user error, then preempted", "crashed", "crashed by preemption", "no host failed"],
)
@pytest.mark.parametrize(
    "recorded", [True, False], ids=["the first records its stop", "the first records nothing"]
)
def test_the_host_that_failed_decides_not_those_stopped_because_of_it(
    recorded: bool,
    failure_record: Failure | None,
    status: dict[str, Any],
    charged: dict[str, int],
    reason: str,
) -> None:
    world, name = two_hosts()
    world.note(name, failure_record)
    if recorded:
        world.stop(name, of_another=failure_record is not None)
        for pod in world.pods_of(name):
            pod["status"].update(status)
    else:
        world.kill(name, 75, of_another=failure_record is not None, **status)
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def test_an_oom_killed_host_explains_the_failure_of_the_first_host() -> None:
    world, name = two_hosts()
    world.fail(name, PEER_GONE.code, PEER_GONE.reason, PEER_GONE.message)
    state = world.pods_of(name)[1]["status"]["containerStatuses"][0]["state"]["terminated"]
    state.update({"exitCode": 137, "reason": "OOMKilled"})
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert counters(world) == USERS


@pytest.mark.parametrize(
    ("limited", "reason", "expected"), [(False, "NodeOutOfMemory", CHARGED), (True, "HostOutOfMemory", USERS)]
)
def test_what_another_host_was_killed_for_is_kept_after_its_pod(
    limited: bool, reason: str, expected: dict[str, int]
) -> None:
    world, name = two_hosts(recovery={"maxUserRetries": 1})
    if not limited:
        unlimited(world, name)
    world.fail(name, PEER_GONE.code, PEER_GONE.reason, PEER_GONE.message)
    state = world.pods_of(name)[1]["status"]["containerStatuses"][0]["state"]["terminated"]
    state.update({"exitCode": 137, "reason": "OOMKilled"})
    for _ in range(3):
        world.reconcile()
        assert world.status["attempts"]["history"][-1]["reason"] == reason
        assert counters(world) == expected
        world.lose(name)


def test_a_missing_host_of_unknown_fate_is_an_infrastructure_fault() -> None:
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
def test_of_two_pods_without_a_record_the_more_specific_one_decides(
    codes: tuple[int, int], charged: dict[str, int], reason: str
) -> None:
    world, name = two_hosts()
    world.kill(name, codes[0], of_another=True)
    terminated = world.pods_of(name)[1]["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated["exitCode"] = codes[1]
    world.reconcile()
    assert counters(world) == charged
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def test_a_success_record_counts_if_a_process_crashes_at_exit() -> None:
    world = World()
    name = world.until(Stage.EXPORT)
    world.write_success(name)
    world.kill(name, 134)
    world.reconcile()
    assert world.status["phase"] == "Succeeded"


def test_a_success_record_without_findings_does_not_count() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.details = lambda request: None  # type: ignore[method-assign,assignment]
    world.succeed(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "ResultIncomplete"


def test_a_manually_deleted_jobset_is_followed_by_one_new_attempt() -> None:
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


def test_a_remaining_pod_of_a_deleted_jobset_blocks_the_next_attempt() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    del world.jobsets[name]
    world.reconcile()
    assert world.created[-1] == name
    world.pods.clear()
    world.reconcile()
    assert world.created[-1] == "support-bot-train-2"


def test_preemptions_do_not_use_the_retry_budget() -> None:
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
def test_an_exhausted_retry_budget_fails_the_job(recovery: dict[str, int], code: int, tries: int) -> None:
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


def test_the_backoff_doubles_with_faults_and_starts_at_the_last_end() -> None:
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


def test_exit_codes_of_the_pathways_server_are_not_the_trainers() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    state = {"terminated": {"exitCode": int(ExitCode.BAD_REQUEST)}}
    add_worker(world, name, containerStatuses=[{"name": "pathways-worker", "state": state}])
    world.kill(name, 134)
    world.reconcile()
    assert counters(world) == CHARGED
    assert world.status["attempts"]["history"][-1]["reason"] == "ProcessDied"


def test_a_preempted_worker_explains_the_failure_of_the_head() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    add_worker(world, name, **DISRUPTED)
    world.fail(name, ExitCode.UNAVAILABLE)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


def test_the_node_of_a_head_outside_the_slice_is_not_missing() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["spec"] = pod["spec"] | {"nodeName": "cpu-node"}
    add_worker(world, name)  # ended because of the head
    world.nodes = {"tpu-node": NODE}
    world.kill(name, 1)
    world.reconcile()
    assert counters(world) == CHARGED


def test_the_node_of_an_attempt_under_pathways_is_that_of_the_head() -> None:
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
    """The Job of a worker has failed, and therefore the JobSet has failed."""
    world.end_jobset(name, "Failed")
    world.jobsets[name]["status"]["replicatedJobsStatus"] = [
        {"name": "pathways-head", "failed": 0},
        {"name": "worker", "failed": 1},
    ]


@pytest.mark.parametrize("saved", [True, False])
def test_workers_that_keep_failing_are_a_fault_not_a_preemption(saved: bool) -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    ended = {"terminated": {"exitCode": 139, "message": "out of luck"}}
    add_worker(world, name, containerStatuses=[{"restartCount": 4, "state": {}, "lastState": ended}])
    if saved:
        world.stop(name, of_another=True)
    else:
        world.kill(name, 143, of_another=True)
    given_up(world, name)
    for _ in range(2):  # the evidence no longer exists the second time
        world.reconcile()
        assert counters(world) == CHARGED
        assert world.status["attempts"]["history"][-1]["reason"] == "WorkersFailed"
        world.pods.clear()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert record.evidence == "exit code 139: out of luck"


def test_preempted_worker_pods_are_a_preemption() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    add_worker(world, name, **DISRUPTED)
    world.end_pods(name, 143)
    given_up(world, name)
    world.reconcile()
    assert counters(world) == NOT_CHARGED


def test_a_head_that_fails_by_itself_decides_though_workers_fail_too() -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    world.fail(name, ExitCode.DIVERGED)
    given_up(world, name)
    world.reconcile()
    assert counters(world) == USERS


def test_worker_restarts_are_reported_and_not_charged() -> None:
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
    reported, summary = restarts(2)
    assert reported == 2
    assert "Recovered from 2 restarts of workers." in summary
    # A replacement pod has no restarts.
    assert restarts(0)[0] == 2
    world.pods.pop(f"{name}-worker-0")
    world.fail(name, 1)
    world.reconcile()
    assert counters(world) == CHARGED
    name = world.until(Stage.TRAIN)
    add_worker(world, name)
    assert restarts(0)[0] is None


def test_a_head_without_its_server_reports_that_it_waits_for_it() -> None:
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
        "container pathways-rm keeps exiting (exit code 1): no permission to write /tmp."
    )


@pytest.mark.parametrize(
    ("reason", "named", "charged"),
    [
        ("UnexpectedAdmissionError", "PodRejected", CHARGED),
        ("NodeAffinity", "PodRejected", CHARGED),
        ("OutOfcpu", "PodRejected", CHARGED),
        ("NodeShutdown", "Preempted", NOT_CHARGED),
    ],
)
def test_a_pod_that_its_kubelet_did_not_run_is_named_with_the_kubelets_words(
    reason: str, named: str, charged: dict[str, int]
) -> None:
    """As after the restart of a node with device plugins: the pod has failed, and no container has run."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.end_pods(
        name, 1, reason=reason, message="Pod was rejected: Allocate failed due to no healthy devices"
    )
    for pod in world.pods_of(name):
        pod["status"]["containerStatuses"] = []
    world.end_jobset(name, "Failed")
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == named
    assert counters(world) == charged
