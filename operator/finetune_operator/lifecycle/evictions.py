"""What ``status.attempts.history`` tells of the times that Kueue took an attempt's quota away. They are charged to
nobody and end no attempt: its JobSet waits in its place of the queue and runs the same attempt again."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import FailureClass, Outcome, TrainOutcome
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.kueue import evictions

type Object = Mapping[str, Any]

_PREFIX = "Kueue"


def evicted_entries(attempt: Attempt, told_before: Sequence[Object]) -> list[Object]:
    """One entry for each eviction. Node and steps are seen while the JobSet is stopped, and kept as they were told:
    the run that follows has a node and a record of its own."""
    stage, number = str(attempt.key.stage), attempt.ordinal
    told = [
        each
        for each in told_before
        if each["stage"] == stage
        and number - attempt.key.restart <= each["attempt"] <= number
        and each["reason"].startswith(_PREFIX)
    ]
    before = [each for each in told if each["attempt"] == number]
    if attempt.restarted:
        # The Workload speaks of the JobSet as a whole: what has not been told of a run, its newest run tells.
        return before
    reasons = evictions(attempt.workload)[len(told) - len(before) :]
    entries: list[Object] = []
    for index, reason in enumerate(reasons):
        entry: dict[str, Any] = {
            "stage": stage,
            "attempt": number,
            "reason": f"{_PREFIX}{reason}",
            "class": str(FailureClass.QUOTA),
        }
        if index == len(reasons) - 1:
            entry |= _seen(attempt)
        entries.append(entry | dict(before[index] if index < len(before) else {}))
    return entries


def _seen(attempt: Attempt) -> dict[str, Any]:
    if attempt.jobset is None or not attempt.jobset["spec"].get("suspend"):
        return {}
    seen: dict[str, Any] = {}
    if node := children.node_of(attempt.pods, 0, 1):
        seen["node"] = node
    result = attempt.files.result if attempt.files else None
    if result and result.outcome is Outcome.STOPPED and isinstance(result.details, TrainOutcome):
        seen["startStep"], seen["endStep"] = result.details.start_step, result.details.step
    return seen
