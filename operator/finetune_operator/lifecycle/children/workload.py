"""Kueue's Workload of a JobSet (kueue.x-k8s.io/v1beta2) as decisions read it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from finetune_operator.lifecycle.children.fields import items, message, number, section, text, time
from finetune_operator.lifecycle.children.object_condition import (
    ObjectCondition,
    find_condition,
    parse_conditions,
)
from finetune_operator.objects import Object

#: Label of each Workload with the uid of its owner.
OWNER_UID_LABEL = "kueue.x-k8s.io/job-uid"
#: Kueue's reason if waitForPodsReady ends an admission.
_NOT_READY = "PodsReadyTimeout"
#: The status shows the newest ten attempts; a larger count would only cost memory.
_MOST_EVICTIONS = 1000
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionCheck:
    """An entry of ``status.admissionChecks``."""

    name: str
    state: str
    message: str

    @classmethod
    def parse(cls, found: Object) -> "AdmissionCheck":
        return cls(
            name=text(found, "name") or "",
            state=text(found, "state") or "",
            message=message(found) or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Workload of a JobSet."""

    name: str
    owner_uids: tuple[str, ...]
    """Of the JobSet."""
    creation_timestamp: datetime | None
    queue_name: str | None
    active: bool
    conditions: tuple[ObjectCondition, ...]
    admission_checks: tuple[AdmissionCheck, ...]
    eviction_counts: tuple[tuple[str, int], ...]
    """Kueue's reasons for evictions, each with its count."""
    past_execution_seconds: int
    """How long the JobSet may have had pods, in all admissions that ended."""

    @classmethod
    def parse(cls, found: Object) -> "Workload":
        """Never raises on an object that an API server may hold."""
        metadata, spec, status = (section(found, key) for key in ("metadata", "spec", "status"))
        owners = items(metadata, "ownerReferences", controller=True)
        return cls(
            name=text(metadata, "name") or "",
            owner_uids=tuple(uid for each in owners if (uid := text(each, "uid"))),
            creation_timestamp=time(metadata, "creationTimestamp"),
            queue_name=text(spec, "queueName"),
            active=spec.get("active") is not False,
            conditions=parse_conditions(status),
            admission_checks=tuple(map(AdmissionCheck.parse, items(status, "admissionChecks"))),
            eviction_counts=tuple(
                (text(each, "reason") or "", number(each, "count"))
                for each in items(section(status, "schedulingStats"), "evictions")
            ),
            past_execution_seconds=number(status, "accumulatedPastExecutionTimeSeconds"),
        )

    def condition(self, type_: str) -> ObjectCondition | None:
        """The condition of that type, whatever its status; None if there is none."""
        return next((each for each in reversed(self.conditions) if each.type == type_), None)

    @property
    def finished(self) -> ObjectCondition | None:
        return find_condition(self.conditions, "Finished")

    @property
    def evicted(self) -> ObjectCondition | None:
        """The condition that quota was taken back and has not been reserved again; None if there is none."""
        return find_condition(self.conditions, "Evicted")

    @property
    def pods_not_ready_in_time(self) -> bool:
        """Whether Kueue evicts the JobSet because its pods were not ready within Kueue's timeout."""
        return self.evicted is not None and self.evicted.reason == _NOT_READY

    @property
    def evictions(self) -> list[str]:
        """Kueue's reason for each eviction, the oldest kind first; of one kind at most as many as a status may show."""
        return [reason for reason, count in self.eviction_counts for _ in range(min(count, _MOST_EVICTIONS))]

    @property
    def past_execution(self) -> timedelta:
        return timedelta(seconds=self.past_execution_seconds)


def newest(workloads: Iterable[Workload]) -> Workload:
    """Returns the newest of a JobSet's Workloads: Kueue creates another if the JobSet no longer fits the first."""
    return max(workloads, key=lambda each: each.creation_timestamp or _FIRST)
