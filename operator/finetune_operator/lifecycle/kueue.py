"""Where an attempt stands with Kueue, read off its JobSet's Workload (kueue.x-k8s.io/v1beta2).

By default Kueue gives coarse reasons (Pending, Inadmissible, Waiting) and says the rest in the message; with its gate
UnadmittedWorkloadsObservability the reasons are fine. Both are understood, and its own words are passed on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, auto
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.times import parse
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL

type Object = Mapping[str, Any]

#: Kueue makes a Workload within a second; an operator or webhook in between may take a few.
UNSEEN_SECONDS = 20.0
#: Kueue's reason where waitForPodsReady ends an admission.
_NOT_READY = "PodsReadyTimeout"
_COARSE: Mapping[str, str] = {"Pending": Reason.WAITING_FOR_QUOTA, "Waiting": Reason.WAITING_FOR_PODS_READY}
#: Reasons that no waiting mends: quota, flavors or queues have to be changed.
_NEVER = frozenset(
    {"NoMatchingFlavor", "ExceedsMaxQuota", "Misconfigured", "Suspended", "Inadmissible", "OnHold"}
)
#: What Kueue would call them, by the words of its coarse reason Pending (pkg/scheduler/flavorassigner of Kueue 0.19).
_NEVER_SAYS = {
    "> maximum capacity": "ExceedsMaxQuota",
    "unavailable in ClusterQueue": "NoMatchingFlavor",
    "doesn't match node affinity": "NoMatchingFlavor",
    "untolerated taint": "NoMatchingFlavor",
}
#: Of several flavors one that is only used up is worth waiting for.
_USED_UP = "more needed"


class QuotaState(StrEnum):
    UNSEEN = auto()
    """Kueue has not answered yet."""
    WAITING = auto()
    NEVER = auto()
    """As things are, Kueue will not admit it however long it waits."""
    CHECKED = auto()
    """Quota is reserved; admission checks (such as provisioning nodes) are not done."""
    ADMITTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """Of one attempt whose JobSet waits or waited in a queue."""

    standing: QuotaState
    queue: str
    reason: str
    message: str
    """Kueue's own, where it has said something."""
    since: datetime | None = None

    @property
    def without_quota(self) -> bool:
        return self.standing in (QuotaState.UNSEEN, QuotaState.WAITING, QuotaState.NEVER)


def queue_status(
    jobset: Object | None, workload: Object | None, *, served: bool, now: datetime
) -> QueueStatus | None:
    """The attempt's standing; None where no queue holds it.

    Args:
        jobset: the attempt's.
        workload: the JobSet's, or None where there is none (yet).
        served: whether the API server knows Workloads at all.
        now: the time of the look.
    """
    if jobset is None:
        return None
    queue = jobset["metadata"].get("labels", {}).get(QUEUE_LABEL)
    held = children.suspended(jobset)
    if workload is not None:
        return _told(workload, workload["spec"].get("queueName", queue or ""), held=held)
    if queue is None or not held:
        # Without a Workload, one that was let go runs until Kueue holds it again.
        return None
    return _untold(jobset, queue, served=served, now=now)


def evictions(workload: Object | None) -> list[str]:
    """Kueue's reason for each time that it took the quota away again, oldest kind first."""
    if workload is None:
        return []
    stats = workload.get("status", {}).get("schedulingStats", {}).get("evictions", ())
    return [each["reason"] for each in stats for _ in range(each["count"])]


def being_evicted(workload: Object | None) -> Object | None:
    """The condition that says so, while the quota is taken away and until it is given again."""
    return children.condition(workload, "Evicted") if workload is not None else None


def gave_up(workload: Object | None) -> bool:
    """Whether it takes the quota away because not all pods were ready in the time that Kueue gives them."""
    evicted = being_evicted(workload)
    return evicted is not None and evicted.get("reason") == _NOT_READY


def admitted_before(workload: Object | None) -> timedelta:
    """How long its JobSet might have had pods, in all admissions that were taken back."""
    status = workload.get("status", {}) if workload is not None else {}
    return timedelta(seconds=status.get("accumulatedPastExecutionTimeSeconds", 0))


def newest(workloads: Iterable[Object]) -> Object:
    """Of one JobSet: Kueue makes another where the JobSet no longer fits the first."""
    return max(workloads, key=lambda each: each["metadata"].get("creationTimestamp", ""))


def _untold(jobset: Object, queue: str, *, served: bool, now: datetime) -> QueueStatus:
    name, created = jobset["metadata"]["name"], jobset["metadata"].get("creationTimestamp")
    since = parse(created) if created else None
    if not served:
        return QueueStatus(
            standing=QuotaState.NEVER,
            queue=queue,
            reason=Reason.KUEUE_NOT_INSTALLED,
            message="the API server does not know Kueue's Workloads (kueue.x-k8s.io/v1beta2): install Kueue 0.15 or "
            "newer, or take the queue out of the profile",
            since=since,
        )
    if since is None or (now - since).total_seconds() <= UNSEEN_SECONDS:
        return QueueStatus(
            standing=QuotaState.UNSEEN,
            queue=queue,
            reason=Reason.NOT_STARTED,
            message=f"Kueue has not looked at JobSet {name} yet.",
            since=since,
        )
    priority = jobset["metadata"]["labels"].get(PRIORITY_LABEL)
    exists = f' and the WorkloadPriorityClass "{priority}" exist' if priority else " exist"
    return QueueStatus(
        standing=QuotaState.WAITING,
        queue=queue,
        reason=Reason.NO_WORKLOAD,
        message=f"Kueue has made no Workload for JobSet {name}. Does it run, with the integration "
        f"jobset.x-k8s.io/jobset, and does the LocalQueue{exists}? Its log tells which",
        since=since,
    )


def _told(workload: Object, queue: str, *, held: bool) -> QueueStatus:
    """``held``: the JobSet is suspended. One that runs may have ended, and its Workload with it, after it was seen."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    quota, evicted = conditions.get("QuotaReserved"), being_evicted(workload)
    since = _since(quota) or parse(workload["metadata"]["creationTimestamp"])
    over = children.condition(workload, "Finished")
    if over and held:
        return _held(queue, over, QuotaState.NEVER)
    if workload["spec"].get("active") is False:
        message = evicted["message"] if evicted else "The workload is deactivated"
        return QueueStatus(
            standing=QuotaState.NEVER,
            queue=queue,
            reason="Deactivated",
            message=message,
            since=_since(evicted),
        )
    if quota is None:
        return QueueStatus(
            standing=QuotaState.WAITING,
            queue=queue,
            reason="PendingEvaluation",
            message="Kueue has not come to it yet",
            since=since,
        )
    if quota["status"] != "True":
        why = _in_vain(quota)
        return _held(
            queue, quota | {"reason": why or quota["reason"]}, QuotaState.NEVER if why else QuotaState.WAITING
        )
    if evicted:
        return _held(queue, evicted, QuotaState.WAITING)
    admitted = conditions.get("Admitted", {})
    return QueueStatus(
        standing=QuotaState.ADMITTED if admitted.get("status") == "True" else QuotaState.CHECKED,
        queue=queue,
        reason=Reason.QUOTA_RESERVED,
        message=quota["message"] if admitted.get("status") == "True" else _checks(status, admitted),
        since=since,
    )


def _held(queue: str, condition: Object, standing: QuotaState) -> QueueStatus:
    reason = condition.get("reason", "")
    return QueueStatus(
        standing=standing,
        queue=queue,
        reason=_COARSE.get(reason, reason),
        message=condition.get("message", ""),
        since=_since(condition),
    )


def _in_vain(quota: Object) -> str | None:
    """Why no wait helps; None where it may."""
    reason, message = quota.get("reason", ""), quota.get("message", "")
    if reason != "Pending":
        return reason if reason in _NEVER else None
    if _USED_UP in message:
        return None
    return next((why for part, why in _NEVER_SAYS.items() if part in message), None)


def _checks(status: Object, admitted: Object) -> str:
    """What the admission checks that are not ready say; else what Kueue says of the admission."""
    outstanding = [
        f"{check['name']}: {check.get('message') or check.get('state')}"
        for check in status.get("admissionChecks", ())
        if check.get("state") != "Ready"
    ]
    return "; ".join(outstanding) or admitted.get("message", "") or "admission checks are not done"


def _since(condition: Object | None) -> datetime | None:
    stamp = (condition or {}).get("lastTransitionTime")
    return parse(stamp) if stamp else None
