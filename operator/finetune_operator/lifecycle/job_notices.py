"""Notices of what people want to know of a job at once, as CloudEvents, derived from the status that it has now.

A notice belongs to a condition that holds, and its id names the job's uid, the kind and the time at which the condition
began to hold. So the same notice is derived from every later version of the job, until the condition changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from finetune_operator.api import API_VERSION, ConditionType
from finetune_operator.api.conditions import is_true, stored_condition
from finetune_operator.api.timestamps import parse
from finetune_operator.objects import Object

#: Prefix of the type of a CloudEvent: the API group in reverse.
TYPE_PREFIX = "dev.tpu-finetune.job."
#: Longest text of a notice, in characters.
_LONGEST = 1024
#: Kind of the notice, the last part of the CloudEvent's type, by condition and status: docs/notifications.md.
_KINDS: Mapping[tuple[str, str], str] = {
    (ConditionType.VALID, "False"): "refused",
    (ConditionType.VALID, "True"): "admitted",
    (ConditionType.SUSPENDED, "True"): "suspended",
    (ConditionType.STALLED, "True"): "stalled",
    (ConditionType.WITHIN_BUDGET, "False"): "over-budget",
    (ConditionType.GATE_PASSED, "False"): "gate-not-met",
    (ConditionType.FINISHED, "True"): "ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice."""

    id: str
    """The same whenever the notice is derived; never that of another one."""
    time: datetime
    """Time of the transition."""
    event: Mapping[str, Any]
    """CloudEvent 1.0 in its JSON format."""


def notices(job: Object, *, since: datetime) -> Iterator[Notice]:
    """Yields the notices of the conditions of the job that hold now, without those of transitions before ``since``."""
    # Both make Stalled true, and have a notice of their own.
    explained = is_true(job, "Finished") or stored_condition(job, "Valid").get("status") == "False"
    for condition in (job.get("status") or {}).get("conditions") or ():
        kind = _KINDS.get((condition["type"], condition["status"]))
        if kind is None or (explained and condition["type"] == ConditionType.STALLED):
            continue
        time = parse(condition["lastTransitionTime"])
        if time >= since:
            yield _notice(job, kind, condition, time)


def _notice(job: Object, kind: str, condition: Object, time: datetime) -> Notice:
    metadata, status, since = job["metadata"], job["status"], condition["lastTransitionTime"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    resolved = status.get("resolved") or {}
    data = {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "generation": metadata.get("generation"),
        "profile": (resolved.get("profile") or {}).get("name"),
        "runFolder": resolved.get("runFolder"),
        "phase": status.get("phase"),
        "stage": status.get("stage"),
        "reason": condition["reason"],
        "message": condition["message"][:_LONGEST],
        "summary": (status.get("summary") or "")[:_LONGEST] or None,
        "cost": status.get("cost"),
    }
    identity = f"{uid}/{kind}/{since}"
    return Notice(
        id=identity,
        time=time,
        event={
            "specversion": "1.0",
            "id": identity,
            "source": f"/apis/{API_VERSION}/namespaces/{namespace}/finetunejobs/{name}",
            "type": f"{TYPE_PREFIX}{kind}",
            "subject": f"{namespace}/{name}",
            "time": since,
            "datacontenttype": "application/json",
            "data": {key: value for key, value in data.items() if value is not None},
        },
    )
