"""A pod's status follows from the states of its containers, as a kubelet derives it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from devcluster.agent.status import (
    TERMINATION_MESSAGE_BYTES,
    ContainerRecord,
    ContainerRole,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    PodTermination,
    container_status,
    ended,
    phase,
    pod_status,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD: dict[str, Any] = {"metadata": {"uid": "u"}}
WAITING = ContainerStateWaiting(reason="ContainerCreating")
RUNNING = ContainerStateRunning(since=NOW)


def done(code: int) -> ContainerStateTerminated:
    return ended(code, "", started=NOW, finished=NOW)


def records(*states: ContainerState) -> list[ContainerRecord]:
    return [ContainerRecord(name=f"c{index}", image="i", state=state) for index, state in enumerate(states)]


def status(
    *states: ContainerState, over: bool = False, ending: PodTermination | None = None
) -> dict[str, Any]:
    body = pod_status(POD, [], records(*states), over=over, ending=ending, started=NOW, now=NOW)
    assert body["metadata"] == {"uid": "u"}
    found: dict[str, Any] = body["status"]
    return found


@pytest.mark.parametrize(
    ("states", "over", "expected"),
    [
        ([WAITING], False, "Pending"),
        ([RUNNING, WAITING], False, "Pending"),
        ([RUNNING, RUNNING], False, "Running"),
        ([RUNNING, done(1)], False, "Running"),
        ([done(0), done(0)], True, "Succeeded"),
        ([done(0), done(75)], True, "Failed"),
    ],
)
def test_phase(states: list[ContainerState], over: bool, expected: str) -> None:
    assert phase([], records(*states), over=over) == expected


def of_role(
    role: ContainerRole, state: ContainerState, last: ContainerStateTerminated | None = None
) -> ContainerRecord:
    return ContainerRecord(name=role.name, image="i", role=role, state=state, last=last)


@pytest.mark.parametrize(
    ("init", "main", "over", "expected"),
    [
        (of_role(ContainerRole.SIDECAR, WAITING), WAITING, False, "Pending"),
        (of_role(ContainerRole.SIDECAR, RUNNING), WAITING, False, "Pending"),
        (of_role(ContainerRole.SIDECAR, RUNNING), RUNNING, False, "Running"),
        (of_role(ContainerRole.SIDECAR, RUNNING), done(0), False, "Running"),  # it is being ended
        (of_role(ContainerRole.SIDECAR, done(143)), done(0), True, "Succeeded"),
        (of_role(ContainerRole.SIDECAR, done(0)), done(1), True, "Failed"),
        (of_role(ContainerRole.INIT, done(1)), done(1), True, "Failed"),
    ],
)
def test_a_sidecar_does_not_decide_the_phase(
    init: ContainerRecord, main: ContainerState, over: bool, expected: str
) -> None:
    assert phase([init], records(main), over=over) == expected


@pytest.mark.parametrize(
    ("init", "main", "initialized", "ready"),
    [
        (of_role(ContainerRole.SIDECAR, WAITING), WAITING, "False", "False"),
        (of_role(ContainerRole.SIDECAR, RUNNING), WAITING, "True", "False"),
        (of_role(ContainerRole.SIDECAR, RUNNING), RUNNING, "True", "True"),
        (of_role(ContainerRole.SIDECAR, WAITING, last=done(1)), RUNNING, "True", "False"),
        (of_role(ContainerRole.INIT, RUNNING), WAITING, "False", "False"),
        (of_role(ContainerRole.INIT, done(0)), RUNNING, "True", "True"),
    ],
)
def test_a_pod_with_sidecars_is_ready_when_they_are_too(
    init: ContainerRecord, main: ContainerState, initialized: str, ready: str
) -> None:
    body = pod_status(POD, [init], records(main), over=False, ending=None, started=NOW, now=NOW)
    found = {each["type"]: each["status"] for each in body["status"]["conditions"]}
    assert (found["Initialized"], found["Ready"]) == (initialized, ready)
    (told,) = body["status"]["initContainerStatuses"]
    assert told["started"] is (init.role is ContainerRole.SIDECAR and init.state == RUNNING)


def test_only_running_pods_are_ready() -> None:
    def ready(*states: ContainerState, over: bool = False) -> tuple[str, str | None]:
        found = next(c for c in status(*states, over=over)["conditions"] if c["type"] == "Ready")
        return found["status"], found["reason"]

    assert ready(RUNNING) == ("True", None)
    assert ready(WAITING) == ("False", "ContainersNotReady")
    assert ready(done(0), over=True) == ("False", "PodCompleted")
    assert ready(done(1), over=True) == ("False", "PodFailed")


def test_states_that_no_longer_hold_are_nulled_for_the_merge_patch() -> None:
    (record,) = records(done(7))
    found = container_status(record)
    assert found["state"]["waiting"] is None
    assert found["state"]["running"] is None
    assert found["state"]["terminated"]["exitCode"] == 7
    assert found["state"]["terminated"]["reason"] == "Error"
    assert found["lastState"] == {"waiting": None, "running": None, "terminated": None}


def test_a_nodes_own_doing_is_a_disruption() -> None:
    ending = PodTermination(reason="Terminated", message="node shutdown", disrupted=True)
    found = status(done(143), over=True, ending=ending)
    assert (found["phase"], found["reason"]) == ("Failed", "Terminated")
    assert next(c for c in found["conditions"] if c["type"] == "DisruptionTarget")["status"] == "True"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    before = "2025-01-01T00:00:00Z"
    pod = {
        "metadata": {"uid": "u"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": before}]},
    }
    found = pod_status(pod, [], records(RUNNING), over=False, ending=None, started=NOW, now=NOW)
    times = {c["type"]: c["lastTransitionTime"] for c in found["status"]["conditions"]}
    assert times["Ready"] == before
    assert times["ContainersReady"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(("out_of_memory", "reason"), [(True, "OOMKilled"), (False, "Error")])
def test_memory_as_the_cause_of_a_kill_stands_in_the_reason_alone(out_of_memory: bool, reason: str) -> None:
    told = ended(137, "", started=NOW, finished=NOW, out_of_memory=out_of_memory)
    assert (told.exit_code, told.reason) == (137, reason)


def test_termination_messages_are_cut_to_what_a_kubelet_keeps() -> None:
    assert len(ended(1, "x" * 10_000, started=NOW, finished=NOW).message) == TERMINATION_MESSAGE_BYTES
