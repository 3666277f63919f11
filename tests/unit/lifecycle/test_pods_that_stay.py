"""Pods that outlive their trainer, pods that do not go, and children that go too early."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import ExitCode, Stage
from tests.unit.lifecycle.world import World, job, stamped

type Object = dict[str, Any]


def injected(world: World, name: str, code: int, *, pods: int | None = None, reason: str = "Error") -> None:
    """The trainers of the first ``pods`` pods end, and a container that a policy has added runs on."""
    for pod in world.pods_of(name)[:pods]:
        (trainer,) = pod["status"]["containerStatuses"]
        begun = trainer["state"]["running"]["startedAt"]
        ended = {"exitCode": code, "reason": reason, "startedAt": begun, "finishedAt": stamped(world)}
        trainer["state"] = {"terminated": ended}
        proxy = {"name": "istio-proxy", "state": {"running": {"startedAt": begun}}}
        pod["status"]["containerStatuses"] = [proxy, trainer]


def proxies_end(world: World, name: str) -> None:
    """The JobSet's deletion ends the pods."""
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    for pod in world.pods_of(name):
        pod["status"]["phase"] = "Failed"
        pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    world.reconcile()
    world.lose(name)


def stage(world: World, name: str) -> Object:
    found: Object = next(each for each in world.status["stages"] if each["name"] == name)
    return found


# --- containers of others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 7200, -7200])
def test_a_stage_ends_within_a_minute_of_its_trainer_whatever_else_its_pod_runs(ahead: int) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.write_success(name)
    injected(world, name, 0)
    terminated = world.pods_of(name)[0]["status"]["containerStatuses"][1]["state"]["terminated"]
    terminated["finishedAt"] = stamped(world, -ahead)
    world.reconcile()
    waited = 0.0
    while "deletionTimestamp" not in world.jobsets[name]["metadata"]:
        pause = world.requeue_after or 0.0
        waited += pause
        assert waited <= 60
        world.wait(pause)
        world.reconcile()
    assert stage(world, "Preflight")["phase"] == "Succeeded"
    assert "istio-proxy" in world.status["summary"]
    assert world.created == [name], "no other stage starts before the pods are gone"
    proxies_end(world, name)
    assert stage(world, "Preflight")["phase"] == "Succeeded"
    world.reconcile()
    assert len(world.created) == 2
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_container_beside_the_trainer_gets_time_to_end_by_itself() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.write_success(name)
    injected(world, name, 0)
    world.wait(20)
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]


def test_a_record_alone_ends_no_stage() -> None:
    """Tenants write it."""
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.write_success(name)
    for _ in range(20):
        world.wait(60)
        world.reconcile()
    assert world.live() == [name]
    assert stage(world, "Preflight")["phase"] == "Running"


def test_one_failed_process_of_a_slice_ends_the_attempt_and_is_judged_as_ever() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    injected(world, name, 137, pods=1, reason="OOMKilled")
    world.wait(60)
    world.reconcile()
    proxies_end(world, name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert world.status["failure"]["class"] == "User"


def ends(world: World) -> int:
    """Returns how many attempts are reported to have ended."""
    return len(world.status["attempts"]["history"])


def until(world: World, reached: Callable[[], bool]) -> float:
    """Reconciles as often as the operator asks for, and returns the seconds until something is reached."""
    begun = world.now
    world.reconcile()
    while not reached() and world.now - begun < timedelta(minutes=10):
        world.wait(world.requeue_after or 600)
        world.reconcile()
    return (world.now - begun).total_seconds()


def started_saving(world: World, name: str) -> None:
    """The pods that still run have got SIGTERM, with a grace period of five minutes."""
    for pod in world.pods_of(name):
        pod["metadata"]["deletionTimestamp"] = stamped(world, -300)


@pytest.mark.parametrize("code", [139, 137, int(ExitCode.STOPPED), int(ExitCode.BAD_REQUEST)])
def test_hosts_that_still_save_get_their_grace_period_after_one_has_failed(code: int) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    world.train(name, 15)
    injected(world, name, code, pods=1)
    assert until(world, lambda: "deletionTimestamp" in world.jobsets[name]["metadata"]) <= 60
    started_saving(world, name)
    for _ in range(25):
        world.wait(10)
        world.reconcile()
        assert stage(world, "Train")["phase"] in ("Running", "Waiting"), "the second host saves"
        assert ends(world) == 2
    (_, second) = world.pods_of(name)
    (trainer,) = second["status"]["containerStatuses"]
    begun = trainer["state"]["running"]["startedAt"]
    trainer["state"] = {"terminated": {"exitCode": 75, "startedAt": begun, "finishedAt": stamped(world)}}
    world.save(name)
    assert until(world, lambda: ends(world) > 2) <= 60, "the first pod's other container runs on"
    assert world.created[-1] == name, "no other attempt starts before the pods are gone"


@pytest.mark.parametrize("spec", [{"suspend": True}, {"cancel": True}])
def test_a_slice_that_is_stopped_is_saving_until_its_last_host_has_saved(spec: Object) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    world.train(name, 15)
    world.edit(**spec)
    world.reconcile()
    started_saving(world, name)
    first, _ = world.pods_of(name)
    ended = {"exitCode": 75, "finishedAt": stamped(world)}
    first["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    for _ in range(25):
        world.wait(10)
        world.reconcile()
        assert "Train is saving and stopping" in world.status["summary"]
    world.save(name)
    world.lose(name)
    world.reconcile()
    assert world.status["phase"] == ("Suspended" if "suspend" in spec else "Failed")


def test_a_slice_continues_while_one_of_its_trainers_runs() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    injected(world, name, 0, pods=1)
    world.wait(120)
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]


def test_a_trainer_runs_although_a_container_of_others_does_not_start() -> None:
    """The kubelet then reports the phase Pending."""
    world = World()
    name = world.until(Stage.CONVERT)
    (pod,) = world.pods_of(name)
    pod["status"]["phase"] = "Pending"
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    pod["status"]["containerStatuses"].append({"name": "istio-proxy", "image": "i", "state": waiting})
    for _ in range(4):
        world.wait(3600)
        world.reconcile()
    assert world.live() == [name]
    assert world.condition("Running")["status"] == "True"
    world.write_success(name)
    trainer, _ = pod["status"]["containerStatuses"]
    trainer["state"] = {"terminated": {"exitCode": 0, "finishedAt": stamped(world)}}
    world.wait(60)
    world.reconcile()
    assert stage(world, "Convert")["phase"] == "Succeeded"
    assert name not in world.jobsets


def test_the_usage_of_a_pod_ends_with_its_trainer() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.wait(3600)
    world.reconcile()
    world.write_success(name)
    injected(world, name, 0)
    for _ in range(10):
        world.wait(600)
        world.reconcile()
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(4.0, abs=0.01)


def test_the_end_of_a_container_of_others_is_not_that_of_the_trainer() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.end_pods(name, int(ExitCode.UNAVAILABLE))
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamped(world)}
    statuses = world.pods_of(name)[0]["status"]["containerStatuses"]
    statuses.append({"name": "istio-proxy", "state": {"terminated": killed}})
    world.end_jobset(name, "Failed")
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "Unavailable"


# --- what does not go ----------------------------------------------------------------------------------------


def deleted(world: World, name: str, *finalizers: str, ended: bool) -> None:
    """A pod of the JobSet is deleted, with Train's grace period of five minutes, and does not go."""
    pod = world.pods_of(name)[0]
    pod["metadata"] |= {"deletionTimestamp": stamped(world, -300), "finalizers": list(finalizers)}
    pod["spec"] = {**pod["spec"], "nodeName": "tpu-7"}
    if ended:
        world.end_pods(name, 75)


@pytest.mark.parametrize("spec", [{}, {"suspend": True}, {"cancel": True}])
@pytest.mark.parametrize(
    ("finalizers", "ended", "parts"),
    [
        ((), False, ["tpu-7", "kubectl delete node tpu-7"]),
        (("corp.example/audit",), True, ["tpu-7", "corp.example/audit", "kubectl -n team-a patch pod"]),
        (("corp.example/audit",), False, ["kubectl delete node tpu-7", "corp.example/audit"]),
    ],
)
def test_a_pod_that_cannot_end_is_named_with_what_holds_it_and_what_to_delete(
    spec: Object, finalizers: tuple[str, ...], ended: bool, parts: list[str]
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.edit(**spec)
    if spec:
        world.reconcile()
    deleted(world, name, *finalizers, ended=ended)
    if ended and not spec:
        world.jobsets[name]["status"] = {"restarts": 1}
    world.wait(290)
    world.train(name, 11)
    world.reconcile()
    assert world.condition("Stalled")["status"] == "False", "its grace period has not ended"
    world.wait(60)
    world.reconcile()
    stalled = world.condition("Stalled")
    for text in (stalled["message"], world.status["summary"], world.status["waiting"]["message"]):
        assert all(part in text for part in [f"{name}-0", *parts]), text
    assert (stalled["status"], stalled["reason"]) == ("True", "WaitingForPod")
    assert world.condition("Running")["status"] == "False"
    if spec.get("suspend"):
        assert world.condition("Suspended")["status"] == "False"
    world.lose(name)
    world.reconcile()
    assert world.condition("Stalled")["status"] == str(bool(spec.get("cancel")))


def test_a_jobset_that_others_keep_is_named_too() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    world.pods.clear()
    world.jobsets[name]["metadata"]["finalizers"] = ["foregroundDeletion", "corp.example/audit"]
    world.wait(60)
    world.reconcile()
    text = world.condition("Stalled")["message"]
    assert "corp.example/audit" in text
    assert "foregroundDeletion" not in text


def test_a_stage_that_has_stopped_is_not_called_saving() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    assert world.status["summary"] == "Suspending: Train is saving and stopping."
    world.save(name)
    world.end_pods(name, 75)
    world.reconcile()
    assert world.status["summary"] == "Suspending: Train has stopped, and its pods are removed."


# --- machines ------------------------------------------------------------------------------------------------


def node(created: str, ready_since: str, heartbeat: str) -> Object:
    ready = {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": ready_since,
        "lastHeartbeatTime": heartbeat,
    }
    return {
        "metadata": {"name": "tpu-7", "creationTimestamp": created, "labels": {}},
        "status": {"conditions": [ready]},
    }


def crashed(world: World, made: Object, accepted: int = 0) -> None:
    """A pod that its kubelet accepted 600 s ago, by a clock that was that many seconds ahead, has crashed."""
    name = world.until(Stage.TRAIN)
    world.nodes = {"tpu-7": made}
    world.end_pods(name, 137)
    for pod in world.pods_of(name):
        pod["spec"] = {**pod["spec"], "nodeName": "tpu-7"}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamped(world, 600)}
        pod["status"] |= {"startTime": stamped(world, 600 - accepted), "conditions": [scheduled]}
    world.end_jobset(name, "Failed")
    world.reconcile()


def taken(world: World) -> bool:
    """Whether the crash is charged to the machine that was lost, and not to the platform."""
    charged = world.status["attempts"]
    assert (charged["preemption"], charged["infrastructure"]) in ((1, 0), (0, 1))
    return bool(charged["preemption"])


MACHINES = pytest.mark.parametrize(
    ("created", "ready", "lost"),
    [(900, 800, False), (10, 10, True), (900, 10, True), (900, 400, False)],
    ids=["older", "created-again", "restarted", "unready-long-before"],
)


@MACHINES
@pytest.mark.parametrize("ahead", [0, 7200, -7200, 400, -400])
def test_a_machine_that_came_back_under_its_name_is_a_lost_node(
    created: int, ready: int, lost: bool, ahead: int
) -> None:
    """Times are seconds before the crash's observation, 600 s after the pod was started. The node's clock is wrong."""
    world = World()
    world.until(Stage.TRAIN)
    world.wait(600)
    made = node(stamped(world, created), stamped(world, ready - ahead), stamped(world, 5 - ahead))
    crashed(world, made, ahead)
    assert taken(world) is lost


@pytest.mark.parametrize("ahead", [0, 7200, -7200])
def test_a_lost_node_is_found_whatever_time_the_trainer_has_recorded(ahead: int) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.wait(600)
    world.now -= timedelta(seconds=-ahead)
    world.fail(name, ExitCode.UNAVAILABLE)
    world.now += timedelta(seconds=-ahead)
    for pod in world.pods_of(name):
        pod["spec"] = {**pod["spec"], "nodeName": "tpu-7"}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamped(world, 600)}
        pod["status"] |= {"startTime": stamped(world, 600 - ahead), "conditions": [scheduled]}
    world.jobsets[name]["status"]["conditions"][-1]["lastTransitionTime"] = stamped(world)
    world.nodes = {}
    world.reconcile()
    assert taken(world)


@pytest.mark.parametrize("ready", [10, 800])
@pytest.mark.parametrize("ahead", [7200, -7200])
def test_a_machine_that_came_back_with_a_clock_that_is_right_is_a_lost_node(ahead: int, ready: int) -> None:
    world = World()
    world.until(Stage.TRAIN)
    world.wait(600)
    # The machine that was ready before the pod has set its clock right since.
    wrong = ahead if ready > 600 else 0
    crashed(world, node(stamped(world, 900), stamped(world, ready - wrong), stamped(world)), ahead)
    assert taken(world) is (ready < 600)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_node_that_was_ready_in_the_future_has_set_its_clock_right_or_came_back(comes_back: bool) -> None:
    """Its clock was right when the kubelet accepted the pod."""
    world = World()
    world.until(Stage.TRAIN)
    world.wait(600)
    ready = 10 if comes_back else 610
    heartbeat = stamped(world, 8 - 7200) if comes_back else stamped(world, 8)
    crashed(world, node(stamped(world, 900), stamped(world, ready - 7200), heartbeat))
    assert taken(world) is comes_back


# --- what goes too early -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["nothing", "jobset"])
@pytest.mark.parametrize("which", [Stage.CONVERT, Stage.TRAIN])
def test_a_fault_of_the_user_that_was_seen_is_judged_as_it_was_seen(which: Stage, kept: str) -> None:
    """Policies set ttlSecondsAfterFinished of JobSets or Jobs to 0."""
    world = World()
    name = world.until(which)
    world.wait(30)
    world.end_pods(name, 137)
    world.pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    world.reconcile()
    assert world.live() == [name], "seen before the controllers have reacted"
    if kept == "jobset":
        world.pods.clear()
        world.end_jobset(name, "Failed")
    else:
        world.lose(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"
    assert world.status["failure"]["class"] == "User"
    assert world.created[-1] == name


def test_a_crash_that_was_seen_is_still_a_preemption_if_its_node_was_lost() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.end_pods(name, 139)
    world.reconcile()
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    for pod in world.pods_of(name):
        pod["status"]["conditions"] = [disrupted]
    world.end_jobset(name, "Failed")
    world.reconcile()
    assert world.status["attempts"]["preemption"] == 1


def test_the_usage_of_a_killed_attempt_is_that_of_its_end() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.wait(100)
    world.end_pods(name, 137)
    world.pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    world.reconcile()
    world.end_jobset(name, "Failed")
    world.reconcile()
    failure = world.attempts[world.key_of(name)].failure
    assert failure is not None
    assert failure.written == world.now
    assert failure.seconds == 100


# --- clocks --------------------------------------------------------------------------------------------------


def skewed(world: World, name: str, ahead: int, *, starting: int = 0, set_right: bool = False) -> None:
    """The pods' node has a clock that is that many seconds ahead when the kubelet accepts the pod, and the container
    starts after that many seconds, before which the clock may be set right."""
    for pod in world.pods_of(name):
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamped(world)}
        pod["status"] |= {"startTime": stamped(world, -ahead), "conditions": [scheduled]}
        begun = stamped(world, -starting - (0 if set_right else ahead))
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = begun
    world.wait(starting)


@pytest.mark.parametrize("ahead", [7200, -7200, 0])
def test_a_nodes_clock_neither_hides_a_hang_nor_ends_a_healthy_run(ahead: int) -> None:
    """The progress has the store's time, see tests/unit/reconcile/test_run_folder.py."""
    world = World(job=job(hangPolicy={"noStepSeconds": 120, "startupSeconds": 600}))
    name = world.until(Stage.TRAIN)
    skewed(world, name, ahead)
    for step in range(1, 30):
        world.wait(60)
        world.train(name, step)
        world.reconcile()
        assert world.live() == [name], world.status["summary"]
    world.wait(150)
    world.reconcile()
    assert world.attempts[world.key_of(name)].failure.reason == "Hung"  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_a_nodes_clock_neither_hides_a_stuck_start_nor_ends_one(ahead: int) -> None:
    world = World(job=job(hangPolicy={"startupSeconds": 600}))
    name = world.until(Stage.TRAIN)
    world.wait(7000)
    skewed(world, name, ahead)
    world.wait(590)
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    world.wait(20)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_a_nodes_clock_changes_no_usage(ahead: int) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    skewed(world, name, ahead)
    for step in range(1, 11):
        world.wait(360)
        world.train(name, step)
        world.reconcile()
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(4.0, abs=0.01)


@pytest.mark.parametrize("ahead", [7200, -7200, 900, -900])
def test_a_clock_that_is_set_right_before_the_container_starts_hides_no_hang(ahead: int) -> None:
    world = World(job=job(hangPolicy={"noStepSeconds": 120, "startupSeconds": 600}))
    name = world.until(Stage.TRAIN)
    world.wait(7000)
    skewed(world, name, ahead, starting=60, set_right=True)
    for step in range(1, 5):
        world.wait(60)
        world.train(name, step)
        world.reconcile()
        assert world.live() == [name], world.status["summary"]
    world.wait(130)
    world.reconcile()
    assert world.attempts[world.key_of(name)].failure.reason == "Hung"  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", [7200, -7200, 900, -900])
def test_a_clock_that_is_set_right_before_the_container_starts_neither_hides_a_stuck_start_nor_ends_one(
    ahead: int,
) -> None:
    world = World(job=job(hangPolicy={"startupSeconds": 600}))
    name = world.until(Stage.TRAIN)
    world.wait(7000)
    skewed(world, name, ahead, starting=60, set_right=True)
    world.wait(590)
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    world.wait(20)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


@pytest.mark.parametrize("ran", [1800, 36_000])
@pytest.mark.parametrize("later", [False, True], ids=["before-the-start", "while-it-runs"])
@pytest.mark.parametrize("ahead", [7200, -7200])
def test_a_clock_that_is_set_right_changes_neither_usage_nor_the_time_of_others(
    ahead: int, later: bool, ran: int
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    skewed(world, name, ahead, set_right=not later)
    world.wait(ran)
    world.write_success(name)
    result = world.attempts[world.key_of(name)].result
    assert result is not None
    injected(world, name, 0)
    world.wait(20)
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"], "others end by themselves"
    world.wait(30)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(4 * ran / 3600, abs=0.01)


@pytest.mark.parametrize("stays_wrong", [False, True])
@pytest.mark.parametrize("ahead", [7200, -7200])
def test_the_usage_of_what_has_ended_stays_the_same(ahead: int, stays_wrong: bool) -> None:
    """While others of the job's stages run."""
    world = World()
    name = world.until(Stage.TRAIN)
    skewed(world, name, ahead)
    world.wait(3600)
    world.kill(name, 7)
    (pod,) = world.pods_of(name)
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["finishedAt"] = stamped(world, -ahead if stays_wrong else 0)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamped(world, 3600)}
    pod["status"] |= {"startTime": stamped(world, 3600 - ahead), "conditions": [scheduled]}
    for _ in range(30):
        world.reconcile()
        assert float(world.status["cost"]["chipHours"]) == pytest.approx(4, abs=0.01)
        world.wait(600)
        world.attempts = {}
