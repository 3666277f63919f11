"""Which queue a stage waits in: the profile's, or the job's own where the profile lets jobs choose."""

from typing import Any

import pytest

from finetune_operator.api.profile import Queue
from finetune_operator.planning.queueing import Queues, forbidden_labels, resolve_queues

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


@pytest.mark.parametrize(
    ("queue", "labels", "queues"),
    [
        ({}, {}, (None, None, None)),
        ({"localQueue": "tpu"}, {}, ("tpu", None, None)),
        ({"localQueue": "tpu", "cpuLocalQueue": "cpu", "priorityClass": "low"}, {}, ("tpu", "cpu", "low")),
        ({"localQueue": "tpu"}, {QUEUE: "mine", PRIORITY: "high"}, ("tpu", None, None)),
        ({"localQueue": "tpu", "allowJobLabels": True}, {QUEUE: "mine"}, ("mine", None, None)),
        (
            {"localQueue": "tpu", "cpuLocalQueue": "cpu", "priorityClass": "low", "allowJobLabels": True},
            {PRIORITY: "high"},
            ("tpu", "cpu", "high"),
        ),
        ({"allowJobLabels": True}, {QUEUE: "mine", PRIORITY: "high"}, ("mine", None, "high")),
    ],
)
def test_queues(
    queue: dict[str, Any], labels: dict[str, str], queues: tuple[str | None, str | None, str | None]
) -> None:
    tpu, cpu, priority = queues
    found = resolve_queues(labels, Queue.model_validate(queue))
    assert found == Queues(tpu=tpu, cpu=cpu, priority_class=priority)


def test_a_label_that_would_be_ignored_is_named() -> None:
    labels = {QUEUE: "mine", PRIORITY: "high", "team": "a"}
    reported = list(forbidden_labels(labels, Queue()))
    assert [QUEUE in reported[0], PRIORITY in reported[1], len(reported)] == [True, True, 2]
    assert list(forbidden_labels(labels, Queue(allow_job_labels=True))) == []
    assert list(forbidden_labels({}, Queue())) == []


@pytest.mark.parametrize("value", ["Team_A", "a_b", "a.-b", "a..b", "A"])
def test_a_label_that_is_no_name_of_a_queue_is_named(value: str) -> None:
    """Kueue refuses a JobSet with it, which would only be seen when the first stage has ended."""
    queue = Queue(allow_job_labels=True, local_queue="tpu")
    for label in (QUEUE, PRIORITY):
        (message,) = forbidden_labels({label: value}, queue)
        assert f"metadata.labels[{label}] = {value}" in message
        assert list(forbidden_labels({label: "team-a.batch"}, queue)) == []


def test_a_priority_without_a_queue_is_named() -> None:
    labels = {PRIORITY: "high"}
    (message,) = forbidden_labels(labels, Queue(allow_job_labels=True))
    assert PRIORITY in message
    assert QUEUE in message
    for queue in (
        Queue(allow_job_labels=True, local_queue="tpu"),
        Queue(allow_job_labels=True, cpu_local_queue="cpu"),
    ):
        assert list(forbidden_labels(labels, queue)) == []
