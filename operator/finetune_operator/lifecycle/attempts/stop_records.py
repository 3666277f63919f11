"""Records that the operator writes before it stops an attempt, so that its end is not counted as a failure."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import ExitCode, Failure
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.object_condition import ObjectCondition

SUSPENDED = "Suspended"
CANCELLED = "Cancelled"
REPLACED = "Replaced"
EVICTED = "Evicted"
BUDGET_EXHAUSTED = "BudgetExhausted"
#: Stopped because its progress could not be read, see :mod:`finetune_operator.lifecycle.stops`.
RUN_FOLDER_UNREADABLE = "RunFolderUnreadable"
#: No class is charged for these.
ON_PURPOSE = (SUSPENDED, CANCELLED, REPLACED, BUDGET_EXHAUSTED, RUN_FOLDER_UNREADABLE)


def eviction(attempt: Attempt, evicted: ObjectCondition) -> Failure:
    """Returns the record of a run that Kueue has ended; another run of the attempt may follow.

    ``evicted``: the Workload's condition Evicted.
    """
    return Failure(
        code=ExitCode.STOPPED,
        reason=EVICTED,
        message=f"{attempt.key.stage}: Kueue withdrew its quota: {evicted.message or ''}"[:1024],
        at=evicted.last_transition_time,
    )


def earlier_run(attempt: Attempt) -> Failure:
    """Returns the record of a run that has ended before the current one."""
    return Failure(
        code=ExitCode.STOPPED,
        reason=EVICTED,
        message=f"{attempt.key.stage}: an earlier run was stopped, and its JobSet was resumed.",
    )


def requested_stop(spec: Mapping[str, Any]) -> Failure | None:
    """Returns the record of the attempts of a job that its user has stopped, by the job's spec; None: it may run."""
    if spec.get("cancel"):
        return Failure(
            code=ExitCode.STOPPED, reason=CANCELLED, message="Stopped because the job was cancelled."
        )
    if spec.get("suspend"):
        return Failure(
            code=ExitCode.STOPPED, reason=SUSPENDED, message="Stopped because the job was suspended."
        )
    return None


def budget_stop(why: str) -> Failure:
    """Returns the record of an attempt that is stopped because a budget is exhausted; written before the stop."""
    return Failure(code=ExitCode.STOPPED, reason=BUDGET_EXHAUSTED, message=why)


def replacement(why: str) -> Failure:
    """Returns the record of an attempt that another one replaces; written before the stop."""
    return Failure(
        code=ExitCode.STOPPED,
        reason=REPLACED,
        message=f"Stopped to make room for another attempt: {why}.",
    )
