"""Records that the operator writes before it stops an attempt. Most of them keep its end from counting as a failure.

JobSets that Kueue gives to another cluster (MultiKueue) are not supported: pods, nodes and Workloads of the other
cluster cannot be observed, and deadlines, hang detection and usage follow from them. No right shows beforehand that a
queue belongs to MultiKueue; Kueue's webhook writes it into the created JobSet.
"""

from datetime import datetime

from finetune_contract import ExitCode, Failure
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.object_condition import ObjectCondition
from finetune_operator.lifecycle.job import Control

SUSPENDED = "Suspended"
CANCELLED = "Cancelled"
REPLACED = "Replaced"
EVICTED = "Evicted"
BUDGET_EXHAUSTED = "BudgetExhausted"
#: Stopped because its progress could not be read, see :mod:`finetune_operator.lifecycle.stops`.
RUN_FOLDER_UNREADABLE = "RunFolderUnreadable"
#: No class is charged for these.
ON_PURPOSE = (SUSPENDED, CANCELLED, REPLACED, BUDGET_EXHAUSTED, RUN_FOLDER_UNREADABLE)
MULTIKUEUE_UNSUPPORTED = "MultiKueueUnsupported"
#: ``spec.managedBy`` of a JobSet whose pods run in a worker cluster of MultiKueue.
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"


def eviction(attempt: Attempt, evicted: ObjectCondition) -> Failure:
    """Returns the record of a run that Kueue has ended; another run of the attempt may follow.

    ``evicted``: the Workload's condition Evicted.
    """
    why = f"{attempt.key.stage}: Kueue withdrew its quota: {evicted.message or ''}"
    return _stopped(EVICTED, why[:1024], at=evicted.last_transition_time)


def earlier_run(attempt: Attempt) -> Failure:
    """Returns the record of a run that has ended before the current one."""
    why = f"{attempt.key.stage}: an earlier run was stopped, and its JobSet was resumed."
    return _stopped(EVICTED, why)


def requested_stop(control: Control) -> Failure | None:
    """Returns the record of the attempts of a job that its user has stopped; None: it may run."""
    if control.cancel:
        return _stopped(CANCELLED, "Stopped because the job was cancelled.")
    if control.suspend:
        return _stopped(SUSPENDED, "Stopped because the job was suspended.")
    return None


def budget_stop(why: str) -> Failure:
    """Returns the record of an attempt that is stopped because a budget is exhausted."""
    return _stopped(BUDGET_EXHAUSTED, why)


def replacement(why: str) -> Failure:
    """Returns the record of an attempt that another one replaces."""
    return _stopped(REPLACED, f"Stopped to make room for another attempt: {why}.")


def sent_elsewhere(attempt: Attempt) -> Failure | None:
    """Returns the record of an attempt whose JobSet MultiKueue manages; None for any other."""
    jobset = attempt.jobset
    if jobset is None or jobset.managed_by != _MULTIKUEUE:
        return None
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=MULTIKUEUE_UNSUPPORTED,
        message=f'LocalQueue "{jobset.queue}" belongs to MultiKueue, which runs JobSets in other clusters, where the '
        "operator cannot observe them. The JobSet was deleted.",
        fix="Ask the platform team for a LocalQueue without MultiKueue: raise spec.retry.generation when this one is "
        "changed, or create a new job when the profile names another one.",
    )


def _stopped(reason: str, message: str, *, at: datetime | None = None) -> Failure:
    return Failure(code=ExitCode.STOPPED, reason=reason, message=message, at=at)
