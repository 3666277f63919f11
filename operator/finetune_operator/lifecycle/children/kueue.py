"""The state of an attempt in Kueue, derived from the Workload of its JobSet.

By default, Kueue gives coarse reasons (Pending, Inadmissible, Waiting) and details in the message; with the feature
gate UnadmittedWorkloadsObservability, it gives detailed reasons. Both are supported; Kueue's messages are passed on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum, auto

from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.object_condition import ObjectCondition
from finetune_operator.lifecycle.children.workload import Workload

#: Kueue creates a Workload within a second; another operator or webhook may delay it by a few.
UNSEEN_SECONDS = 20.0
_COARSE: Mapping[str, str] = {"Pending": Reason.WAITING_FOR_QUOTA, "Waiting": Reason.WAITING_FOR_PODS_READY}
#: Reasons for which waiting does not help: quota, flavors or queues have to be changed.
NEVER_ADMITTED = frozenset(
    {"NoMatchingFlavor", "ExceedsMaxQuota", "Misconfigured", "Suspended", "Inadmissible", "OnHold"}
)
#: Another client has set the Workload inactive.
DEACTIVATED = "Deactivated"
#: The detailed reason for a queue that a stopPolicy holds.
QUEUE_STOPPED = "Suspended"
#: Detailed reasons by parts of the message of the coarse reason Pending (pkg/scheduler/flavorassigner of Kueue 0.19).
_NEVER_BY_MESSAGE = {
    "> maximum capacity": "ExceedsMaxQuota",
    "unavailable in ClusterQueue": "NoMatchingFlavor",
    "doesn't match node affinity": "NoMatchingFlavor",
    "untolerated taint": "NoMatchingFlavor",
}
#: End of the message of the coarse reason Inadmissible if a stopPolicy holds the queue.
_STOPPED = " is stopped"
#: If there are several flavors, waiting helps if the quota of one is only used up.
_USED_UP = "more needed"


class QuotaState(StrEnum):
    """How far Kueue is with the admission of a JobSet."""

    UNSEEN = auto()
    """Kueue has not responded yet."""
    WAITING = auto()
    NEVER = auto()
    """Kueue will not admit the JobSet unless its configuration changes."""
    CHECKED = auto()
    """Quota is reserved; admission checks (such as provisioning nodes) are not complete."""
    ADMITTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The state of one attempt whose JobSet is in a queue."""

    quota_state: QuotaState
    queue: str
    reason: str
    message: str
    """Kueue's own if it has written one."""
    since: datetime | None = None

    @property
    def without_quota(self) -> bool:
        return self.quota_state in (QuotaState.UNSEEN, QuotaState.WAITING, QuotaState.NEVER)


def queue_status(
    jobset: JobSet | None, workload: Workload | None, *, served: bool, now: datetime
) -> QueueStatus | None:
    """Returns the state of the attempt with that JobSet; None if no queue holds it. ``served``: whether the API server
    knows Workloads."""
    if jobset is None:
        return None
    if workload is not None:
        queue = (jobset.queue or "") if workload.queue_name is None else workload.queue_name
        return _by_workload(workload, queue, suspended=jobset.suspended)
    if jobset.queue is None or not jobset.suspended:
        # A JobSet that was resumed and has no Workload runs until Kueue suspends it again.
        return None
    return _without_workload(jobset, jobset.queue, served=served, now=now)


def _without_workload(jobset: JobSet, queue: str, *, served: bool, now: datetime) -> QueueStatus:
    since, priority = jobset.creation_timestamp, jobset.priority_class
    if not served:
        quota_state, reason = QuotaState.NEVER, Reason.KUEUE_NOT_INSTALLED
        message = (
            "the API server does not know Kueue's Workloads (kueue.x-k8s.io/v1beta2): install Kueue 0.15 or newer, or "
            "take the queue out of the profile"
        )
    elif since is None or (now - since).total_seconds() <= UNSEEN_SECONDS:
        quota_state, reason = QuotaState.UNSEEN, Reason.NOT_STARTED
        message = f"Kueue has not processed JobSet {jobset.name} yet."
    else:
        quota_state, reason = QuotaState.WAITING, Reason.NO_WORKLOAD
        exist = f' and the WorkloadPriorityClass "{priority}" exist' if priority else " exists"
        message = (
            f"Kueue has created no Workload for JobSet {jobset.name}. Check that Kueue runs with the integration "
            f"jobset.x-k8s.io/jobset, and that the LocalQueue{exist}; Kueue's log shows the cause"
        )
    return QueueStatus(quota_state=quota_state, queue=queue, reason=reason, message=message, since=since)


def _by_workload(workload: Workload, queue: str, *, suspended: bool) -> QueueStatus:
    """Returns the state by the Workload, of a JobSet in that LocalQueue.

    ``suspended``: whether the JobSet is suspended. If not, a Workload that finished since does not block it.
    """
    quota, evicted, finished = workload.condition("QuotaReserved"), workload.evicted, workload.finished
    since = quota.last_transition_time if quota else None
    since = since or workload.creation_timestamp
    if finished and suspended:
        return _by_condition(queue, finished, QuotaState.NEVER)
    if not workload.active:
        quota_state, reason = QuotaState.NEVER, DEACTIVATED
        message = (evicted.message or "") if evicted else "The workload is deactivated"
        since = evicted.last_transition_time if evicted else None
    elif quota is None:
        quota_state, reason = QuotaState.WAITING, "PendingEvaluation"
        message = "Kueue has not evaluated the Workload: others are first, or an equal one does not fit"
    elif quota.status != "True":
        never = _never(quota)
        quota_state = QuotaState.NEVER if never else QuotaState.WAITING
        return _by_condition(queue, replace(quota, reason=never or quota.reason), quota_state)
    elif evicted:
        return _by_condition(queue, evicted, QuotaState.WAITING)
    else:
        quota_state, reason, message = QuotaState.ADMITTED, Reason.QUOTA_RESERVED, quota.message or ""
        admitted = workload.condition("Admitted")
        if admitted is None or admitted.status != "True":
            quota_state, message = QuotaState.CHECKED, _incomplete_checks(workload, admitted)
    return QueueStatus(quota_state=quota_state, queue=queue, reason=reason, message=message, since=since)


def _by_condition(queue: str, condition: ObjectCondition, quota_state: QuotaState) -> QueueStatus:
    reason = condition.reason or ""
    return QueueStatus(
        quota_state=quota_state,
        queue=queue,
        reason=_COARSE.get(reason, reason),
        message=condition.message or "",
        since=condition.last_transition_time,
    )


def _never(quota: ObjectCondition) -> str | None:
    """Returns why waiting for quota does not help; None if it may."""
    reason, message = quota.reason or "", quota.message or ""
    if reason == "Inadmissible" and message.endswith(_STOPPED):
        return QUEUE_STOPPED
    if reason != "Pending":
        return reason if reason in NEVER_ADMITTED else None
    if _USED_UP in message:
        return None
    return next((why for part, why in _NEVER_BY_MESSAGE.items() if part in message), None)


def _incomplete_checks(workload: Workload, admitted: ObjectCondition | None) -> str:
    """Returns the messages of the admission checks that are not ready, or Kueue's message about the admission."""
    outstanding = [
        f"{check.name}: {check.message or check.state}"
        for check in workload.admission_checks
        if check.state != "Ready"
    ]
    said = admitted.message if admitted else None
    return "; ".join(outstanding) or said or "admission checks are not complete"
