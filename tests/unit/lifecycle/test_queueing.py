"""Every state of a Workload: what the job's conditions, phase and waiting say, and who is charged."""

from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.lifecycle import kueue
from finetune_operator.lifecycle.kueue import UNSEEN_SECONDS, QuotaState
from tests.unit.lifecycle.world import World, job, profile

type Condition = tuple[str, str, str, str]

RESERVED: Condition = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue tpu")
ADMITTED: Condition = ("Admitted", "True", "Admitted", "The workload is admitted")
#: As Kueue 0.19 words them: coarse reasons by default, fine ones with UnadmittedWorkloadsObservability.
USED_UP = (
    "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu in flavor v6e, "
    "4 more needed"
)
TOO_MUCH = (
    "couldn't assign flavors to pod set slice: insufficient quota for google.com/tpu in flavor v6e, previously "
    "considered podsets requests (0) + current podset request (4) > maximum capacity (2)"
)
PREEMPTED = "Preempted to accommodate a workload (UID: 1) due to prioritization in the ClusterQueue"
EVICTED: Condition = ("Evicted", "True", "Preempted", PREEMPTED)
BACK: Condition = ("Evicted", "False", "QuotaReserved", f"Previously: {PREEMPTED}")


def waits(reason: str, message: str) -> Condition:
    return ("QuotaReserved", "False", reason, message)


def queued(**queue: Any) -> World:
    return World(profiles=[profile(queue={"localQueue": "team-tpu", **queue})])


@pytest.mark.parametrize(
    ("conditions", "standing", "reason"),
    [
        ([], QuotaState.WAITING, "PendingEvaluation"),
        ([waits("Pending", USED_UP)], QuotaState.WAITING, "WaitingForQuota"),
        ([waits("WaitingForQuota", USED_UP)], QuotaState.WAITING, "WaitingForQuota"),
        ([waits("Pending", TOO_MUCH)], QuotaState.NEVER, "ExceedsMaxQuota"),
        ([waits("ExceedsMaxQuota", TOO_MUCH)], QuotaState.NEVER, "ExceedsMaxQuota"),
        ([waits("NoMatchingFlavor", "flavor a doesn't match node affinity")], QuotaState.NEVER, "NoMatchingFlavor"),
        ([waits("Pending", f"{USED_UP}, flavor b doesn't match node affinity")], QuotaState.WAITING, "WaitingForQuota"),
        ([waits("Pending", "flavor a doesn't match node affinity")], QuotaState.NEVER, "NoMatchingFlavor"),
        (
            [waits("Pending", "resource google.com/tpu unavailable in ClusterQueue")],
            QuotaState.NEVER,
            "NoMatchingFlavor",
        ),
        ([waits("Inadmissible", "LocalQueue team-tpu doesn't exist")], QuotaState.NEVER, "Inadmissible"),
        ([waits("Misconfigured", "LocalQueue team-tpu doesn't exist")], QuotaState.NEVER, "Misconfigured"),
        ([waits("Suspended", "ClusterQueue tpu is stopped")], QuotaState.NEVER, "Suspended"),
        ([waits("Waiting", "waiting for all admitted workloads")], QuotaState.WAITING, "WaitingForPodsReady"),
        (
            [waits("WaitingForPreemptedWorkloads", "pending the preemption of 1 workload(s)")],
            QuotaState.WAITING,
            "WaitingForPreemptedWorkloads",
        ),
        ([waits("TopologyPlacementFailed", "topology")], QuotaState.WAITING, "TopologyPlacementFailed"),
        ([RESERVED], QuotaState.CHECKED, "QuotaReserved"),
        ([RESERVED, ADMITTED], QuotaState.ADMITTED, "QuotaReserved"),
        ([RESERVED, ADMITTED, EVICTED], QuotaState.WAITING, "Preempted"),
        ([waits("Pending", PREEMPTED), EVICTED], QuotaState.WAITING, "WaitingForQuota"),
        ([RESERVED, ADMITTED, BACK], QuotaState.ADMITTED, "QuotaReserved"),
        ([("Finished", "True", "FailedToStart", "pod sets differ")], QuotaState.NEVER, "FailedToStart"),
    ],
)  # fmt: skip
def test_a_workload_says_where_the_attempt_stands(
    conditions: list[Condition], standing: QuotaState, reason: str
) -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    found = kueue.queue_status(
        world.jobsets[name], world.workload(name, *conditions), served=True, now=world.now
    )
    assert found is not None
    assert (found.standing, found.reason, found.queue) == (standing, reason, "team-tpu")
    if conditions:
        assert found.message


def test_a_deactivated_workload_does_not_come_back_by_itself() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    workload = world.workload(name, RESERVED, ADMITTED, EVICTED)
    workload["spec"]["active"] = False
    found = kueue.queue_status(world.jobsets[name], workload, served=True, now=world.now)
    assert found is not None
    assert (found.standing, found.reason, found.message) == (QuotaState.NEVER, "Deactivated", PREEMPTED)


def test_a_jobset_that_ends_while_it_is_looked_at_is_not_called_stuck() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=False)
    over = world.workload(name, RESERVED, ADMITTED, ("Finished", "True", "Succeeded", "jobset completed"))
    found = kueue.queue_status(world.jobsets[name], over, served=True, now=world.now)
    assert found is not None
    assert found.standing is QuotaState.ADMITTED


def test_without_a_queue_there_is_nothing_to_say() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    assert kueue.queue_status(world.jobsets[name], None, served=True, now=world.now) is None
    assert world.condition("QuotaReserved")["reason"] == "NotQueued"


# --- the job's status


def in_queue(*conditions: Condition, **status: Any) -> World:
    """Training's JobSet is made, and Kueue says that of it."""
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=True)
    world.workload(name, *conditions, **status)
    world.reconcile()
    return world


def told(world: World) -> tuple[str, ...]:
    kinds = ("QuotaReserved", "Running", "Reconciling", "Stalled", "Succeeded", "Finished")
    return (world.status["phase"], *(world.condition(kind)["status"] for kind in kinds))


def test_waiting_for_quota_is_told_with_kueues_own_words() -> None:
    world = in_queue(waits("Pending", USED_UP))
    assert told(world) == ("Queued", "False", "False", "True", "False", "Unknown", "False")
    assert world.condition("QuotaReserved")["message"] == USED_UP
    assert world.status["waiting"]["reason"] == "WaitingForQuota"
    assert world.status["waiting"]["message"] == f'LocalQueue "team-tpu": {USED_UP}.'
    assert "waits" in world.status["summary"]
    assert [each.reason for each in world.events].count("WaitingForQuota") == 1


def test_waiting_counts_from_kueues_own_time() -> None:
    world = in_queue(waits("Pending", USED_UP))
    since = world.status["waiting"]["since"]
    world.wait(600)
    world.reconcile()
    assert world.status["waiting"]["since"] == since
    assert [each.reason for each in world.events].count("WaitingForQuota") == 1


def test_what_can_never_be_admitted_is_stalled_until_it_can() -> None:
    world = in_queue(waits("ExceedsMaxQuota", TOO_MUCH))
    assert told(world) == ("Queued", "False", "False", "False", "True", "Unknown", "False")
    assert world.condition("Stalled")["reason"] == "ExceedsMaxQuota"
    assert "platform team" in world.condition("Stalled")["message"]
    (name,) = world.live()
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.reconcile()
    assert told(world) == ("Running", "True", "True", "True", "False", "Unknown", "False")
    assert "waiting" not in world.status


def test_admission_checks_are_a_wait_for_capacity_with_their_own_words() -> None:
    check = {"name": "provision", "state": "Pending", "message": "no capacity in us-east5-b"}
    world = in_queue(
        RESERVED, ("Admitted", "False", "UnsatisfiedAdmissionChecks", ""), admissionChecks=[check]
    )
    assert told(world)[:2] == ("Provisioning", "True")
    assert world.status["waiting"]["reason"] == "WaitingForCapacity"
    assert "provision: no capacity in us-east5-b" in world.status["waiting"]["message"]
    world.wait(3600)
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForCapacity"


def test_between_kueues_word_and_the_jobset_controllers_deed_nothing_is_missed() -> None:
    world = in_queue(waits("Pending", USED_UP))
    world.wait(3600)
    (name,) = world.live()
    world.workload(name, RESERVED, ADMITTED)
    world.reconcile()
    assert told(world)[:2] == ("Provisioning", "True")
    assert "waiting" not in world.status
    world.jobsets[name]["spec"]["suspend"] = False
    world.reconcile()
    assert "waiting" not in world.status


def test_kueue_is_given_a_moment_before_its_silence_is_told() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=True)
    world.reconcile()
    assert told(world)[:2] == ("Queued", "Unknown")
    world.wait(UNSEEN_SECONDS + 1)
    world.reconcile()
    assert told(world)[:2] == ("Queued", "False")
    assert world.condition("QuotaReserved")["reason"] == "NoWorkload"
    assert "jobset.x-k8s.io/jobset" in world.status["waiting"]["message"]


def test_where_kueue_is_not_installed_a_queued_stage_is_stalled() -> None:
    world = queued()
    world.workloads = None
    name = world.until(Stage.TRAIN)
    assert world.jobsets[name]["spec"]["suspend"] is True
    assert world.condition("Stalled")["reason"] == "KueueNotInstalled"


def test_stages_on_cpu_go_to_the_scheduler_where_they_have_no_queue() -> None:
    world = queued()
    name = world.until(Stage.CONVERT)
    assert world.jobsets[name]["spec"]["suspend"] is False
    assert world.condition("QuotaReserved")["reason"] == "NotQueued"


# --- eviction


def evicted(times: int = 1) -> tuple[World, str]:
    """Training ran to step 40, was told to stop, saved, and waits again."""
    world = queued()
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    for pod in world.pods_of(name):
        pod["spec"]["nodeName"] = "tpu-node-7"
    world.train(name, 40)
    world.reconcile()
    world.wait(60)
    evict(world, name, times)
    return world, name


def evict(world: World, name: str, times: int) -> None:
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": times}]}
    world.workload(name, RESERVED, ADMITTED, EVICTED, schedulingStats=stats)
    world.jobsets[name]["spec"]["suspend"] = True
    world.reconcile()  # while the pods still save
    world.save(name)
    world.hold(name, held=True)
    world.workload(name, waits("Pending", USED_UP), EVICTED, schedulingStats=stats)
    world.reconcile()


def resume(world: World, name: str) -> None:
    world.wait(60)
    stats = world.workloads[name]["status"]["schedulingStats"] if world.workloads else {}
    world.workload(name, RESERVED, ADMITTED, BACK, schedulingStats=stats)
    world.hold(name, held=False)
    world.wait(5)
    world.run(name)
    world.reconcile()


def test_an_eviction_is_recorded_and_charged_to_nobody() -> None:
    world, name = evicted()
    assert told(world)[:3] == ("Queued", "False", "False")
    (entry,) = [each for each in world.status["attempts"]["history"] if each["stage"] == "Train"]
    assert entry == {
        "stage": "Train",
        "attempt": 1,
        "class": "Quota",
        "reason": "KueuePreempted",
        "node": "tpu-node-7",
        "startStep": 0,
        "endStep": 40,
    }
    resume(world, name)
    assert world.status["phase"] == "Running"
    assert entry in world.status["attempts"]["history"]
    world.succeed(name)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert "support-bot-train-2" not in world.created
    assert {world.status["attempts"][kind] for kind in ("preemption", "infrastructure", "user")} == {0}
    assert [each.reason for each in world.events].count("KueuePreempted") == 1


def test_a_second_eviction_is_a_second_entry_and_a_second_event() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    evict(world, name, 2)
    entries = [each for each in world.status["attempts"]["history"] if each["stage"] == "Train"]
    assert [each["reason"] for each in entries] == ["KueuePreempted"] * 2
    assert [each.reason for each in world.events].count("KueuePreempted") == 2


def test_a_run_after_an_eviction_is_not_judged_by_what_the_run_before_it_said() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    world.kill(name, 137, containerStatuses=[
        {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    ])  # fmt: skip
    world.reconcile()
    assert world.status["failure"]["reason"] == "HostOutOfMemory"


def test_a_jobset_that_restarts_because_its_quota_was_taken_away_charges_nobody() -> None:
    """Where the Job controller counts the pods that it deletes for a suspension, the Job fails of it, and JobSet starts
    all pods again when it is let go."""
    world = queued()
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.train(name, 40)
    world.workload(name, RESERVED, ADMITTED, EVICTED)
    world.stop(name)
    world.reconcile()
    assert world.created[-1] == name
    assert world.key_of(name).restart == 1
    world.workloads = {}
    world.reconcile()
    assert {world.status["attempts"][kind] for kind in ("preemption", "infrastructure", "user")} == {0}
    (entry,) = [each for each in world.status["attempts"]["history"] if each["stage"] == "Train"]
    assert (entry["class"], entry["reason"]) == ("Quota", "Evicted")


def test_an_admitted_jobset_is_given_time_to_make_its_pods() -> None:
    world, name = evicted()
    world.wait(3600)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.reconcile()
    assert "waiting" not in world.status
    world.now += timedelta(seconds=30)
    world.reconcile()
    assert "makes no pods" in world.status["waiting"]["message"]


def test_a_suspended_job_gives_up_its_place() -> None:
    world, name = evicted()
    world.edit(suspend=True)
    world.reconcile()
    world.reconcile()
    assert world.jobsets.get(name) is None
    assert world.status["phase"] == "Suspended"


def test_the_jobs_own_labels_choose_the_queue_where_the_profile_lets_them() -> None:
    wanted = job()
    wanted["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "mine"}
    world = World(job=wanted, profiles=[profile(queue={"localQueue": "team-tpu", "allowJobLabels": True})])
    name = world.until(Stage.TRAIN)
    assert world.jobsets[name]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "mine"
    refused = World(job=wanted, profiles=[profile(queue={"localQueue": "team-tpu"})])
    refused.reconcile()
    assert refused.condition("Valid")["reason"] == "PolicyViolation"
    for part in ("kueue.x-k8s.io/queue-name", "mine", "queue.allowJobLabels", "#ml-help"):
        assert part in refused.condition("Valid")["message"]


# --- what people do to a JobSet that waits


def slice_of(world: World, name: str) -> str:
    pod = world.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    found: str = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    return found


def never_ran(*conditions: Condition) -> tuple[World, str]:
    """Training's JobSet waits in its queue, and nothing of it has run."""
    world = queued()
    for stage in (Stage.PREFLIGHT, Stage.CONVERT):
        world.succeed(world.until(stage))
    world.reconcile()
    (name,) = world.live()
    world.hold(name, held=True)
    world.workload(name, *conditions)
    world.reconcile()
    return world, name


def test_an_edit_of_the_slice_replaces_a_jobset_that_has_not_run() -> None:
    world, name = never_ran(waits("ExceedsMaxQuota", TOO_MUCH))
    assert "Or change spec.resources" in world.status["waiting"]["message"]
    world.edit(resources={"tpu": "v6e-8"})
    for _ in range(3):
        world.reconcile()
    (second,) = world.live()
    assert (name, second) == ("support-bot-train-1", "support-bot-train-2")
    assert slice_of(world, second) == "2x4"
    assert {world.status["attempts"][kind] for kind in ("preemption", "infrastructure", "user")} == {0}
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    "edit", [{"resources": {"tpu": "v6e-2x2"}}, {"checkpointing": {"everySteps": 7}}, {"cache": "Refresh"}]
)
def test_an_edit_that_leaves_the_slice_as_it_is_keeps_the_place_in_the_queue(edit: dict[str, Any]) -> None:
    world, name = never_ran(waits("Pending", USED_UP))
    world.edit(**edit)
    for _ in range(3):
        world.reconcile()
    assert world.live() == [name]


def test_another_releases_words_for_the_same_slice_keep_the_place_in_the_queue() -> None:
    world, name = never_ran(waits("Pending", USED_UP))
    world.jobsets[name]["metadata"]["annotations"]["tpu-finetune.dev/content"] = "of another release"
    world.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "nodeSelector"
    ] |= {"added-by": "a webhook"}
    world.reconcile()
    assert world.live() == [name]


def test_one_that_has_run_keeps_its_place_and_its_slice() -> None:
    world, name = evicted()
    world.edit(resources={"tpu": "v6e-8"})
    world.reconcile()
    assert world.live() == [name]
    assert slice_of(world, name) == "2x2"


def test_deleting_a_jobset_that_waits_after_an_eviction_charges_nobody() -> None:
    world, name = evicted()
    world.lose(name)
    assert world.workloads is not None
    world.workloads.clear()
    world.reconcile()
    assert {world.status["attempts"][kind] for kind in ("preemption", "infrastructure", "user")} == {0}
    assert world.live() == ["support-bot-train-2"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_restart_that_an_eviction_came_to_is_charged_to_nobody_when_it_is_let_go() -> None:
    world, name = evicted()
    resume(world, name)
    world.restart(name)
    world.wait(5)
    world.run(name)
    for _ in range(2):
        world.reconcile()
    assert world.key_of(name).restart == 1
    assert world.status["attempts"]["preemption"] == 0
    entries = [each for each in world.status["attempts"]["history"] if each["reason"] == "KueuePreempted"]
    assert [each["attempt"] for each in entries] == [1]
    assert [each.reason for each in world.events].count("KueuePreempted") == 1


def test_a_preemption_after_an_eviction_is_charged_as_ever() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    world.stop(name)
    world.reconcile()
    assert world.status["attempts"]["preemption"] == 1
