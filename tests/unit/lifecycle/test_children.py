"""Views of a job's objects: the content of each field, and that any object of an API server can be parsed."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.children.object_events import ObjectEvent
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pod_blocker import lacks_input, pod_blocker
from finetune_operator.lifecycle.children.pods import (
    all_scheduled_at,
    first_start,
    last_start,
    last_worker_message,
    running_span,
    trainer_terminations,
    worker_restarts,
)
from finetune_operator.lifecycle.children.workload import Workload

type Object = dict[str, Any]

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
LABELS = {
    "tpu-finetune.dev/stage": "Train",
    "tpu-finetune.dev/attempt": "2",
    "jobset.sigs.k8s.io/restart-attempt": "3",
    "jobset.sigs.k8s.io/replicatedjob-name": "slice",
    "jobset.sigs.k8s.io/job-index": "1",
    "batch.kubernetes.io/job-completion-index": "0",
    "kueue.x-k8s.io/queue-name": "team",
    "kueue.x-k8s.io/priority-class": "high",
}
SELECTOR = {"cloud.google.com/gke-tpu-topology": "2x4", "cloud.google.com/gke-tpu-accelerator": "v6e"}


def at(seconds: int) -> str:
    return f"{START + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def condition(type_: str, status: str = "True", seconds: int = 0) -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": "Because",
        "message": "of it",
        "lastTransitionTime": at(seconds),
    }


METADATA = {
    "name": "demo",
    "uid": "1",
    "labels": LABELS,
    "annotations": {f"tpu-finetune.dev/{name}": name for name in ("plan", "spec", "claim", "flavor")},
    "creationTimestamp": at(0),
    "deletionTimestamp": at(9),
    "finalizers": ["corp.example/audit"],
    "ownerReferences": [{"uid": "3"}, {"uid": "2", "controller": True}],
}
CONTAINER = {
    "name": "trainer",
    "image": "i",
    "restartCount": 2,
    "state": {"running": {"startedAt": at(60)}},
    "lastState": {
        "terminated": {
            "exitCode": 7,
            "reason": "Error",
            "message": "m",
            "startedAt": at(20),
            "finishedAt": at(50),
        }
    },
}
POD = {
    "metadata": METADATA,
    "spec": {
        "nodeName": "n",
        "nodeSelector": SELECTOR,
        "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "trainer"}],
    },
    "status": {
        "phase": "Running",
        "startTime": at(10),
        "conditions": [condition("PodScheduled"), condition("DisruptionTarget", seconds=70)],
        "containerStatuses": [CONTAINER],
        "initContainerStatuses": [{"name": "init", "state": {"waiting": {"reason": "x", "message": "y"}}}],
    },
}
JOBSET = {
    "metadata": METADATA,
    "spec": {
        "suspend": True,
        "replicatedJobs": [
            {
                "name": "slice",
                "replicas": 2,
                "template": {
                    "spec": {
                        "parallelism": 4,
                        "template": {
                            "spec": {
                                "nodeSelector": SELECTOR,
                                "containers": [{"resources": {"limits": {"google.com/tpu": "4"}}}],
                            }
                        },
                    }
                },
            },
            {"name": "head"},
        ],
    },
    "status": {
        "restarts": 5,
        "conditions": [condition("Suspended", "False", 5), condition("Failed", seconds=80)],
        "replicatedJobsStatus": [{"name": "worker", "failed": 1}],
    },
}
WORKLOAD = {
    "metadata": METADATA,
    "spec": {"queueName": "team", "active": False},
    "status": {
        "accumulatedPastExecutionTimeSeconds": 60,
        "conditions": [condition("Evicted"), condition("QuotaReserved", "False")],
        "admissionChecks": [{"name": "provision", "state": "Pending", "message": "wait"}],
        "schedulingStats": {"evictions": [{"reason": "Preempted", "count": 2}]},
    },
}
NODE = {
    "metadata": {"name": "n", "labels": {"cloud.google.com/gke-nodepool": "tpu"}},
    "spec": {"taints": [{"key": "node.kubernetes.io/not-ready"}]},
    "status": {"conditions": [condition("Ready", "False")]},
}
EVENT = {
    "type": "Warning",
    "reason": "FailedScaleUp",
    "message": "no",
    "lastTimestamp": at(1),
    "series": {"lastObservedTime": at(2)},
    "metadata": {"creationTimestamp": at(0)},
}


def test_a_jobset_view_has_the_fields_that_decisions_read() -> None:
    jobset = JobSet.parse(JOBSET)
    # The JobSet's status counts its restarts, not its labels.
    assert jobset.key == AttemptKey(Stage.TRAIN, 2, 5)
    assert (jobset.name, jobset.uid, jobset.deleting, jobset.suspended) == ("demo", "1", True, True)
    assert (jobset.queue, jobset.priority_class) == ("team", "high")
    assert (jobset.plan_digest, jobset.spec_digest, jobset.claim, jobset.flavor) == (
        "plan", "spec", "claim", "flavor",
    )  # fmt: skip
    assert (jobset.pods_expected, jobset.chips, jobset.hosts_per_slice) == (9, 32, 4)
    assert jobset.slice_kinds == {(), tuple(sorted(SELECTOR.items()))}
    assert jobset.workers_failed
    assert jobset.ended
    assert (jobset.end_time, jobset.failure_message) == (START + timedelta(seconds=80), "of it")
    assert jobset.resumed_at == jobset.unsuspended_at(queued=True) == START + timedelta(seconds=5)


def test_an_unqueued_jobset_that_was_never_suspended_starts_at_creation() -> None:
    jobset = JobSet.parse({"metadata": {"creationTimestamp": at(0)}})
    assert (jobset.unsuspended_at(queued=False), jobset.unsuspended_at(queued=True)) == (START, None)


def test_a_pod_view_has_the_fields_that_decisions_read() -> None:
    pod = Pod.parse(POD)
    assert pod.key == AttemptKey(Stage.TRAIN, 2, 3)
    assert (pod.index, pod.node_name, pod.live, pod.started) == (("slice", "1", "0"), "n", True, True)
    assert pod.slice_kind == tuple(sorted(SELECTOR.items()))
    assert pod.unscheduled is None
    assert pod.disruption_target is not None
    assert pod.containers_started_at == START + timedelta(seconds=20)
    # A container that the kubelet restarted has not ended.
    assert pod.finished_at is None
    assert pod.last_change is None
    # It is being deleted, and its grace period has ended before.
    assert running_span([pod]) == (START + timedelta(seconds=20), START + timedelta(seconds=20))
    assert first_start([pod]) == START + timedelta(seconds=60)
    assert last_start([pod]) == START + timedelta(seconds=20)
    assert all_scheduled_at([pod]) == START + timedelta(seconds=10)
    assert trainer_terminations([pod]) == []


def test_a_failed_pod_that_never_ran_has_the_time_of_its_last_change() -> None:
    failed = copy.deepcopy(POD)
    failed["status"] = {"phase": "Failed", "conditions": [condition("PodScheduled", "False", 40)]}
    pod = Pod.parse(failed)
    assert (pod.finished_at, pod.last_change) == (None, START + timedelta(seconds=40))


def test_pathways_workers_report_restarts_and_last_termination() -> None:
    worker = copy.deepcopy(POD)
    worker["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = "worker"
    pods = [Pod.parse(worker), Pod.parse(POD)]
    assert worker_restarts(pods) == 2
    assert last_worker_message(pods) == "exit code 7: m"


def test_a_workload_view_has_the_fields_that_decisions_read() -> None:
    workload = Workload.parse(WORKLOAD)
    assert (workload.owner_uids, workload.queue_name, workload.active) == (("2",), "team", False)
    assert workload.evictions == ["Preempted", "Preempted"]
    assert workload.past_execution == timedelta(seconds=60)
    assert workload.evicted is not None
    assert not workload.pods_not_ready_in_time
    assert workload.finished is None


def test_texts_and_lists_of_any_length_are_cut() -> None:
    long = {**condition("Failed"), "message": "m" * 10**5, "reason": "r" * 10**5}
    jobset = JobSet.parse(
        {"metadata": {"finalizers": ["f" * 5000] * 50}, "status": {"conditions": [long] * 99}}
    )
    assert (len(jobset.conditions), len(jobset.finalizers), len(jobset.finalizers[0])) == (32, 32, 1024)
    assert (len(jobset.failure_message), len(jobset.conditions[0].reason or "")) == (32_768, 1024)
    pod = Pod.parse({"metadata": {}, "status": {"containerStatuses": [{"state": {"waiting": long}}] * 99}})
    assert (len(pod.containers), len(pod.containers[0].state.waiting_message)) == (32, 4096)


def test_any_count_of_evictions_takes_little_memory() -> None:
    evictions = [{"reason": "Preempted", "count": 2**31 - 1}, {"reason": "PodsReadyTimeout", "count": 1}]
    workload = Workload.parse({"status": {"schedulingStats": {"evictions": evictions}}})
    assert len(workload.evictions) < 2000
    assert workload.evictions[-1] == "PodsReadyTimeout"


def test_a_node_view_has_the_fields_that_decisions_read() -> None:
    node = SliceNode(
        name="n",
        pool="tpu",
        under_maintenance=False,
        taints=("node.kubernetes.io/not-ready",),
        ready=False,
        created=None,
        ready_since=None,
    )
    assert SliceNode.parse(NODE) == node


@pytest.mark.parametrize(
    ("label", "maintained"), [("false", False), ("", False), ("True", True), ("x", True)]
)
def test_a_node_is_under_maintenance_unless_its_label_is_false_or_empty(label: str, maintained: bool) -> None:
    node = {"metadata": {"labels": {"cloud.google.com/active-node-maintenance": label}}}
    assert SliceNode.parse(node).under_maintenance is maintained


def test_an_event_has_the_last_of_its_times() -> None:
    assert ObjectEvent.parse(EVENT).last_time == at(2)
    assert ObjectEvent.parse({key: EVENT[key] for key in ("metadata", "lastTimestamp")}).last_time == at(1)
    assert ObjectEvent.parse({"metadata": EVENT["metadata"]}).last_time == at(0)


@pytest.mark.parametrize("time", ["", "yesterday", "0000-01-01T00:00:00Z", "2026-11-21T12:00:00"])
def test_an_invalid_time_is_unknown(time: str) -> None:
    assert JobSet.parse({"metadata": {"creationTimestamp": time}}).creation_timestamp is None


def incomplete(found: Any, data: st.DataObject) -> Any:
    """Yields objects without some of their optional parts, and with unusual texts and numbers."""
    if isinstance(found, dict):
        left = {key: value for key, value in found.items() if data.draw(st.integers(0, 5))}
        return {key: incomplete(value, data) for key, value in left.items()}
    if isinstance(found, list):
        return [incomplete(each, data) for each in found]
    odd = st.integers(-(2**63), 2**63) if isinstance(found, int) else st.text(max_size=8)
    return found if data.draw(st.integers(0, 5)) else data.draw(odd)


@given(st.data())
def test_incomplete_objects_can_be_parsed(data: st.DataObject) -> None:
    def partly(found: Object) -> Object:
        return {"metadata": {}} | incomplete(found, data)

    jobset = JobSet.parse(partly(JOBSET))
    assert jobset.end_time is None or jobset.ended
    assert isinstance(jobset.failure_message, str)
    pods = [Pod.parse(partly(POD)), Pod.parse(partly(POD))]
    blocker = pod_blocker(pods)
    assert not any(map(lacks_input, pods)) or blocker is not None
    span = running_span(pods)
    assert span is None or span[1] is None or span[0] <= span[1]
    assert isinstance(last_worker_message(pods), str)
    assert Workload.parse(partly(WORKLOAD)).name is not None
    assert SliceNode.parse(partly(NODE)).name is not None
    assert ObjectEvent.parse(partly(EVENT)).last_time is not None


def test_what_is_searched_for_in_a_list_may_be_its_last_element() -> None:
    others = [{"apiVersion": "v1", "kind": "ConfigMap", "name": str(number)} for number in range(40)]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "uid": "u", "controller": True}
    assert Workload.parse({"metadata": {"ownerReferences": [*others, owner]}}).owner_uids == ("u",)
    problems = [{"type": f"Problem{number}", "status": "False"} for number in range(40)]
    ready = {"type": "Ready", "status": "True"}
    assert SliceNode.parse({"status": {"conditions": [*problems, ready]}}).ready


def test_the_end_of_a_long_message_of_kueue_decides_whether_waiting_helps() -> None:
    flavors = [
        f"insufficient quota for google.com/tpu in flavor {number}, > maximum capacity (128)"
        for number in range(90)
    ]
    message = ", ".join(
        [*flavors, "insufficient unused quota for google.com/tpu in flavor last, 64 more needed"]
    )
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    parsed = Workload.parse({"status": {"conditions": [condition]}})
    assert len(message) > 6000
    assert parsed.conditions[0].message == message
