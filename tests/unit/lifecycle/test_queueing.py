"""Every state of a Workload: the job's conditions, phase and waiting, and the class that is charged."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.lifecycle.children import kueue
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.kueue import UNSEEN_SECONDS, QueueStatus, QuotaState
from finetune_operator.lifecycle.children.workload import Workload
from tests.unit.lifecycle.world import World, job, profile

type Condition = tuple[str, str, str, str]

RESERVED: Condition = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue tpu")
ADMITTED: Condition = ("Admitted", "True", "Admitted", "The workload is admitted")
#: Conditions of Kueue 0.19: coarse reasons by default, detailed ones with UnadmittedWorkloadsObservability.
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


def queue_status(world: World, jobset: dict[str, Any], workload: dict[str, Any] | None) -> QueueStatus | None:
    made = Workload.parse(workload) if workload else None
    return kueue.queue_status(JobSet.parse(jobset), made, served=True, now=world.now)


def queued(**queue: Any) -> World:
    return World(profiles=[profile(queue={"localQueue": "team-tpu", **queue})])


@pytest.mark.parametrize(
    ("conditions", "quota_state", "reason"),
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
        ([waits("Inadmissible", "ClusterQueue tpu is stopped")], QuotaState.NEVER, "Suspended"),
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
def test_a_workload_determines_the_queue_state_of_an_attempt(
    conditions: list[Condition], quota_state: QuotaState, reason: str
) -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    found = queue_status(world, world.jobsets[name], world.workload(name, *conditions))
    assert found is not None
    assert (found.quota_state, found.reason, found.queue) == (quota_state, reason, "team-tpu")
    if conditions:
        assert found.message


def test_a_jobset_that_multikueue_sends_to_another_cluster_is_deleted_and_the_job_fails() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=True)
    world.jobsets[name]["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    # Kueue's way to say that a worker cluster runs it.
    world.workload(name, RESERVED, ADMITTED)
    world.reconcile()
    assert name not in world.live()
    world.reconcile()
    assert world.status["phase"] == "Failed"
    failure = world.status["failure"]
    assert (failure["reason"], failure["class"]) == ("MultiKueueUnsupported", "User")
    assert '"team-tpu" belongs to MultiKueue' in failure["message"]
    assert world.live() == []


def test_a_jobset_that_its_own_controller_manages_by_name_is_left_alone() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.jobsets[name]["spec"]["managedBy"] = "jobset.sigs.k8s.io/jobset-controller"
    world.reconcile()
    assert world.live() == [name]


def test_a_deactivated_workload_does_not_resume_by_itself() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    workload = world.workload(name, RESERVED, ADMITTED, EVICTED)
    workload["spec"]["active"] = False
    found = queue_status(world, world.jobsets[name], workload)
    assert found is not None
    assert (found.quota_state, found.reason, found.message) == (QuotaState.NEVER, "Deactivated", PREEMPTED)


def test_a_jobset_that_ends_during_the_reconcile_is_not_reported_as_stuck() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=False)
    over = world.workload(name, RESERVED, ADMITTED, ("Finished", "True", "Succeeded", "jobset completed"))
    found = queue_status(world, world.jobsets[name], over)
    assert found is not None
    assert found.quota_state is QuotaState.ADMITTED


def test_without_a_queue_no_queue_state_is_reported() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    assert queue_status(world, world.jobsets[name], None) is None
    assert world.condition("QuotaReserved")["reason"] == "NotQueued"


# --- the job's status


def in_queue(*conditions: Condition, **status: Any) -> World:
    """The JobSet of training exists, and its Workload has these conditions."""
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=True)
    world.workload(name, *conditions, **status)
    world.reconcile()
    return world


def reported(world: World) -> tuple[str, ...]:
    kinds = ("QuotaReserved", "Running", "Reconciling", "Stalled", "Succeeded", "Finished")
    return (world.status["phase"], *(world.condition(kind)["status"] for kind in kinds))


def test_a_wait_for_quota_is_reported_with_kueues_message() -> None:
    world = in_queue(waits("Pending", USED_UP))
    assert reported(world) == ("Queued", "False", "False", "True", "False", "Unknown", "False")
    assert world.condition("QuotaReserved")["message"] == USED_UP
    assert world.status["waiting"]["reason"] == "WaitingForQuota"
    assert world.status["waiting"]["message"] == f'LocalQueue "team-tpu": {USED_UP}.'
    assert "is waiting" in world.status["summary"]
    assert [each.reason for each in world.events].count("WaitingForQuota") == 1


NO_CPU = waits("Pending", "couldn't assign flavors to pod set cpu: resource cpu unavailable in ClusterQueue")


@pytest.mark.parametrize(
    ("stage", "requests", "field", "other"),
    [
        (Stage.PREFLIGHT, "cpu, memory and ephemeral-storage", "queue.cpuLocalQueue", "queue.localQueue"),
        (Stage.TRAIN, "google.com/tpu", "queue.localQueue", "queue.cpuLocalQueue"),
    ],
)
@pytest.mark.parametrize("named", [None, "default", "label"])
def test_a_stage_that_kueue_queues_although_its_profile_names_no_queue_says_why_and_what_to_set(
    stage: Stage, requests: str, field: str, other: str, named: str | None
) -> None:
    world = World()
    world.reconcile()
    name = world.until(stage)
    if named is not None:
        world.jobsets[name]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = named
    world.hold(name, held=True)
    said = waits("Inadmissible", "LocalQueue  doesn't exist") if named is None else NO_CPU
    world.workload(name, said)["spec"]["queueName"] = named or ""
    world.reconcile()
    message = world.condition("Stalled")["message"]
    assert world.condition("Stalled")["status"] == "True"
    assert f"The profile names no queue for {stage}, " in message
    assert f"{field} of the profile" in message
    assert (other in message, "spec.resources" in message) == (False, False)
    if named is None:
        assert "manageJobsWithoutQueueName" in message
        assert 'LocalQueue "' not in message
    else:
        why = "which takes every JobSet without a queue" if named == "default" else "by a label"
        assert f'LocalQueue "{named}", {why}: {NO_CPU[3]}.' in message
        assert f"has to cover {requests}." in message


def test_a_wait_in_a_local_queue_named_default_says_why_it_is_there() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.jobsets[name]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "default"
    world.hold(name, held=True)
    world.workload(name, waits("Pending", USED_UP))["spec"]["queueName"] = "default"
    world.reconcile()
    assert reported(world) == ("Queued", "False", "False", "True", "False", "Unknown", "False")
    assert world.status["waiting"]["message"] == (
        'The profile names no queue for Train, but its JobSet was put into LocalQueue "default", which takes every '
        f"JobSet without a queue: {USED_UP}."
    )


def test_a_stage_on_cpu_that_its_queue_never_admits_is_not_offered_another_slice() -> None:
    world = queued(cpuLocalQueue="team-cpu")
    world.reconcile()
    world.reconcile()
    (name,) = world.live()
    world.workload(name, NO_CPU)
    world.reconcile()
    assert 'LocalQueue "team-cpu": ' in world.condition("Stalled")["message"]
    assert "spec.resources" not in world.condition("Stalled")["message"]


def test_a_wait_starts_at_kueues_transition_time() -> None:
    world = in_queue(waits("Pending", USED_UP))
    since = world.status["waiting"]["since"]
    world.wait(600)
    world.reconcile()
    assert world.status["waiting"]["since"] == since
    assert [each.reason for each in world.events].count("WaitingForQuota") == 1


def test_a_workload_that_cannot_be_admitted_stalls_the_job() -> None:
    world = in_queue(waits("ExceedsMaxQuota", TOO_MUCH))
    assert reported(world) == ("Queued", "False", "False", "False", "True", "Unknown", "False")
    assert world.condition("Stalled")["reason"] == "ExceedsMaxQuota"
    assert "platform team" in world.condition("Stalled")["message"]
    (name,) = world.live()
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.reconcile()
    assert reported(world) == ("Running", "True", "True", "True", "False", "Unknown", "False")
    assert "waiting" not in world.status


def test_admission_checks_are_a_wait_for_capacity_with_their_message() -> None:
    check = {"name": "provision", "state": "Pending", "message": "no capacity in us-east5-b"}
    world = in_queue(
        RESERVED, ("Admitted", "False", "UnsatisfiedAdmissionChecks", ""), admissionChecks=[check]
    )
    assert reported(world)[:2] == ("Provisioning", "True")
    assert world.status["waiting"]["reason"] == "WaitingForCapacity"
    assert "provision: no capacity in us-east5-b" in world.status["waiting"]["message"]
    world.wait(3600)
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForCapacity"


def test_an_admitted_jobset_that_is_still_suspended_is_provisioning() -> None:
    world = in_queue(waits("Pending", USED_UP))
    world.wait(3600)
    (name,) = world.live()
    world.workload(name, RESERVED, ADMITTED)
    world.reconcile()
    assert reported(world)[:2] == ("Provisioning", "True")
    assert "waiting" not in world.status
    world.jobsets[name]["spec"]["suspend"] = False
    world.reconcile()
    assert "waiting" not in world.status


def test_a_missing_workload_is_reported_after_a_delay() -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.hold(name, held=True)
    world.reconcile()
    assert reported(world)[:2] == ("Queued", "Unknown")
    world.wait(UNSEEN_SECONDS + 1)
    world.reconcile()
    assert reported(world)[:2] == ("Queued", "False")
    assert world.condition("QuotaReserved")["reason"] == "NoWorkload"
    assert "jobset.x-k8s.io/jobset" in world.status["waiting"]["message"]


def test_a_queued_stage_without_kueue_is_stalled() -> None:
    world = queued()
    world.workloads = None
    name = world.until(Stage.TRAIN)
    assert world.jobsets[name]["spec"]["suspend"] is True
    assert world.condition("Stalled")["reason"] == "KueueNotInstalled"


def test_cpu_stages_without_a_queue_go_to_the_scheduler() -> None:
    world = queued()
    name = world.until(Stage.CONVERT)
    assert world.jobsets[name]["spec"]["suspend"] is False
    assert world.condition("QuotaReserved")["reason"] == "NotQueued"


# --- eviction


def evicted(times: int = 1) -> tuple[World, str]:
    """Training ran to step 40, received SIGTERM, saved, and waits again."""
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


def test_an_eviction_is_recorded_and_not_charged() -> None:
    world, name = evicted()
    assert reported(world)[:3] == ("Queued", "False", "False")
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


def test_the_steps_of_an_attempt_in_the_ledger_are_those_of_all_of_its_runs() -> None:
    """Its usage is that of all of them."""
    world, name = evicted()
    world.ledger = {}
    resume(world, name)
    assert world.progress is not None
    world.progress = world.progress.model_copy(update={"start_step": 40})
    world.succeed(name)
    world.to_the_end()
    (found,) = (each for each in world.ledger.values() if each.stage is Stage.TRAIN)
    (*_, last) = (each for each in world.status["attempts"]["history"] if each["stage"] == "Train")
    assert last["startStep"] == 40
    assert found.trained is not None
    assert (found.trained.start_step, found.trained.end_step) == (0, last["endStep"])


def test_a_second_eviction_is_a_second_entry_and_a_second_event() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    evict(world, name, 2)
    entries = [each for each in world.status["attempts"]["history"] if each["stage"] == "Train"]
    assert [each["reason"] for each in entries] == ["KueuePreempted"] * 2
    assert [each.reason for each in world.events].count("KueuePreempted") == 2


def test_a_run_after_an_eviction_ignores_records_of_the_run_before() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    world.kill(name, 137, containerStatuses=[
        {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    ])  # fmt: skip
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "NodeOutOfMemory"


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("late", [0, 20])
def test_a_run_without_pods_does_not_hang_though_an_earlier_one_steps_late(late: int, saved: bool) -> None:
    """Kueue assigns the quota again while the evicted trainer still saves, and reports its last step."""
    world, name = evicted()
    world.hold(name, held=False)
    world.workload(name, RESERVED, ADMITTED, BACK)
    world.wait(late)
    world.train(name, 50)
    key = world.key_of(name)
    before = world.attempts[key].result
    assert before is not None
    result = before.model_copy(update={"finished": world.now}) if saved else None
    world.attempts[key] = replace(world.attempts[key], result=result)
    for _ in range(12):
        world.wait(100)
        world.reconcile()
    record = world.attempts[key].failure
    assert record is not None
    assert record.reason == ("Evicted" if saved else "PodsMissing")


def test_a_resumed_run_steps_although_the_evicted_one_ended_by_a_fast_clock() -> None:
    world, name = evicted()
    key = world.key_of(name)
    before = world.attempts[key].result
    assert before is not None
    result = before.model_copy(update={"finished": before.finished + timedelta(hours=3)})
    world.attempts[key] = replace(world.attempts[key], result=result)
    world.hold(name, held=False)
    world.workload(name, RESERVED, ADMITTED, BACK)
    world.wait(30)
    world.run(name)
    for step in range(42, 90):
        world.wait(60)
        world.train(name, step)
        world.reconcile()
    assert world.live() == [name]


def test_a_restart_of_a_jobset_that_lost_its_quota_is_not_charged() -> None:
    """If the Job controller counts the pods that it deletes for a suspension, the Job fails, and JobSet restarts
    all pods after the resumption."""
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


def unseen_restart(*, evictions: int) -> tuple[World, str]:
    """The JobSet was suspended, restarted and resumed between two reconciles; ``evictions``: counted by Kueue."""
    world = queued()
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.train(name, 40)
    world.reconcile()
    world.wait(60)
    world.save(name)
    world.hold(name, held=True)
    world.restart(name)
    world.wait(60)
    counted = [{"reason": "Preempted", "underlyingCause": "", "count": evictions}] if evictions else []
    world.workload(name, RESERVED, ADMITTED, BACK, schedulingStats={"evictions": counted})
    world.hold(name, held=False)
    world.wait(5)
    world.run(name)
    return world, name


@pytest.mark.parametrize(
    ("evictions", "charged", "reasons"),
    [
        (1, 0, ["KueuePreempted", "Succeeded"]),
        (2, 0, ["KueuePreempted", "KueuePreempted", "Succeeded"]),
        (0, 1, ["Preempted", "Succeeded"]),
    ],
)
def test_a_restart_of_an_evicted_jobset_is_not_charged_if_the_eviction_was_not_observed(
    evictions: int, charged: int, reasons: list[str]
) -> None:
    world, name = unseen_restart(evictions=evictions)
    world.reconcile()
    assert world.key_of(name).restart == 1
    world.succeed(name)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["attempts"]["preemption"] == charged
    entries = [each for each in world.status["attempts"]["history"] if each["stage"] == "Train"]
    assert [each["reason"] for each in entries] == reasons
    assert [each.reason for each in world.events if each.reason in reasons] == reasons


def test_a_disruption_before_an_unseen_eviction_is_charged() -> None:
    world, name = unseen_restart(evictions=1)
    # The run after the disruption left a record, too, before the JobSet was resumed.
    key = world.key_of(name)
    before = world.attempts[replace(key, restart=0)]
    world.attempts[key] = before
    world.reconcile()
    assert world.status["attempts"]["preemption"] == 1


def test_an_admitted_jobset_has_time_to_create_its_pods() -> None:
    world, name = evicted()
    world.wait(3600)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.reconcile()
    assert "waiting" not in world.status
    world.now += timedelta(seconds=30)
    world.reconcile()
    assert "creates no pods" in world.status["waiting"]["message"]


def test_a_suspended_job_leaves_the_queue() -> None:
    world, name = evicted()
    world.edit(suspend=True)
    world.reconcile()
    world.reconcile()
    assert world.jobsets.get(name) is None
    assert world.status["phase"] == "Suspended"


def test_labels_of_the_job_select_the_queue_if_the_profile_allows_it() -> None:
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


# --- users and a waiting JobSet


def slice_of(world: World, name: str) -> str:
    pod = world.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    found: str = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    return found


def never_ran(*conditions: Condition) -> tuple[World, str]:
    """The JobSet of training waits in its queue and has never run."""
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
def test_an_edit_that_keeps_the_slice_keeps_the_place_in_the_queue(edit: dict[str, Any]) -> None:
    world, name = never_ran(waits("Pending", USED_UP))
    world.edit(**edit)
    for _ in range(3):
        world.reconcile()
    assert world.live() == [name]


def test_another_rendering_of_the_same_slice_keeps_the_place_in_the_queue() -> None:
    world, name = never_ran(waits("Pending", USED_UP))
    world.jobsets[name]["metadata"]["annotations"]["tpu-finetune.dev/content"] = "of another release"
    world.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "nodeSelector"
    ] |= {"added-by": "a webhook"}
    world.reconcile()
    assert world.live() == [name]


def test_a_jobset_that_has_run_keeps_its_place_and_slice() -> None:
    world, name = evicted()
    world.edit(resources={"tpu": "v6e-8"})
    world.reconcile()
    assert world.live() == [name]
    assert slice_of(world, name) == "2x2"


def test_deleting_a_jobset_that_waits_after_an_eviction_is_not_charged() -> None:
    world, name = evicted()
    world.lose(name)
    assert world.workloads is not None
    world.workloads.clear()
    world.reconcile()
    assert {world.status["attempts"][kind] for kind in ("preemption", "infrastructure", "user")} == {0}
    assert world.live() == ["support-bot-train-2"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_restart_interrupted_by_an_eviction_is_not_charged() -> None:
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


def test_a_preemption_after_an_eviction_is_charged() -> None:
    world, name = evicted()
    resume(world, name)
    world.wait(60)
    world.stop(name)
    world.reconcile()
    assert world.status["attempts"]["preemption"] == 1


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_decisions_succeed_with_any_times_of_a_jobset(time: str) -> None:
    world = queued()
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.workloads[name]["status"]["accumulatedPastExecutionTimeSeconds"] = 60
    world.hold(name, held=False)
    for pod in world.pods_of(name):
        del world.pods[pod["metadata"]["name"]]
    world.jobsets[name]["status"] = {
        "conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": time}]
    }
    world.reconcile()
    world.edit(suspend=True)
    world.reconcile()
    assert name not in world.jobsets or "deletionTimestamp" in world.jobsets[name]["metadata"]
