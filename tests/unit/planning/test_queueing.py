"""Which queue a stage waits in: the profile's, or the job's own where the profile lets jobs choose."""

from typing import Any

import pytest

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
    found = resolve_queues({"labels": labels}, {"queue": queue})
    assert found == Queues(tpu=tpu, cpu=cpu, priority_class=priority)


def test_a_label_that_would_be_ignored_is_named() -> None:
    labels = {QUEUE: "mine", PRIORITY: "high", "team": "a"}
    told = list(forbidden_labels({"labels": labels}, {}))
    assert [QUEUE in told[0], PRIORITY in told[1], len(told)] == [True, True, 2]
    assert list(forbidden_labels({"labels": labels}, {"queue": {"allowJobLabels": True}})) == []
    assert list(forbidden_labels({}, {})) == []


def test_a_priority_without_any_queue_is_named() -> None:
    labels, allowed = {PRIORITY: "high"}, {"allowJobLabels": True}
    (said,) = forbidden_labels({"labels": labels}, {"queue": allowed})
    assert PRIORITY in said
    assert QUEUE in said
    for queue in ({"localQueue": "tpu"}, {"cpuLocalQueue": "cpu"}):
        assert list(forbidden_labels({"labels": labels}, {"queue": allowed | queue})) == []
