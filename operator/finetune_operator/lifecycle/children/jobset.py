"""A JobSet as decisions read it."""

import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from finetune_contract.base import MOST_CHIPS
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.fields import items, number, section, text, texts, time
from finetune_operator.lifecycle.children.object_condition import (
    ObjectCondition,
    find_condition,
    parse_conditions,
)
from finetune_operator.lifecycle.children.pod import SliceKind, slice_kind
from finetune_operator.objects import Object
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.rendering import quantities
from finetune_operator.rendering.labels import (
    CLAIM_ANNOTATION,
    FLAVOR_ANNOTATION,
    PLAN_ANNOTATION,
    SPEC_ANNOTATION,
)
from finetune_operator.rendering.pathways import WORKER

_TPU = "google.com/tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSet:
    """A JobSet in the API server, or one that the operator is about to create."""

    name: str
    uid: str
    """Empty before the JobSet is created."""
    key: AttemptKey | None
    """The newest attempt, by labels and ``status.restarts``; None: the labels name no attempt."""
    creation_timestamp: datetime | None
    deletion_timestamp: datetime | None
    finalizers: tuple[str, ...]
    queue: str | None
    """Kueue's LocalQueue; None: the JobSet is in no queue."""
    priority_class: str | None
    """Kueue's WorkloadPriorityClass."""
    managed_by: str | None
    """The controller that acts on the JobSet instead of JobSet's own, for example MultiKueue's."""
    plan_digest: str | None
    """Digest of the stored plan; None: others have removed it, or created the JobSet."""
    spec_digest: str | None
    """Digest of what the job and the profile request of the stage."""
    claim: str | None
    """Digest of the slices and the mesh."""
    flavor: str | None
    """The profile's flavor for which the JobSet was rendered."""
    suspended: bool
    """Suspended by Kueue or manually; the JobSet may have no pods."""
    restarts: int
    conditions: tuple[ObjectCondition, ...]
    pods_expected: int
    groups: tuple[tuple[str, int, int], ...]
    """Name, number of Jobs and pods of each Job of its replicated jobs."""
    chips: int | None
    """TPU chips of all its pods; None: a limit is no quantity."""
    hosts_per_slice: int
    """Pods, each on a node of its own, that make one slice."""
    slice_kinds: frozenset[SliceKind]
    """Of its pods; contains an empty one if there are pods on CPU."""
    workers_failed: bool
    """Pathways: the Job of the workers has failed, because it exceeded its backoffLimit."""

    @classmethod
    def parse(cls, found: Object) -> "JobSet":
        """Never raises on an object that an API server may hold."""
        metadata, spec, status = (section(found, key) for key in ("metadata", "spec", "status"))
        labels, annotations = section(metadata, "labels"), section(metadata, "annotations")
        replicated = [_ReplicatedJob.parse(each) for each in items(spec, "replicatedJobs")]
        chips = [each.chips for each in replicated]
        return cls(
            name=text(metadata, "name") or "",
            uid=text(metadata, "uid") or "",
            key=AttemptKey.of(found),
            creation_timestamp=time(metadata, "creationTimestamp"),
            deletion_timestamp=time(metadata, "deletionTimestamp"),
            finalizers=texts(metadata, "finalizers"),
            queue=text(labels, QUEUE_LABEL),
            priority_class=text(labels, PRIORITY_LABEL),
            managed_by=text(spec, "managedBy"),
            plan_digest=text(annotations, PLAN_ANNOTATION),
            spec_digest=text(annotations, SPEC_ANNOTATION),
            claim=text(annotations, CLAIM_ANNOTATION),
            flavor=text(annotations, FLAVOR_ANNOTATION),
            suspended=bool(spec.get("suspend")),
            restarts=number(status, "restarts"),
            conditions=parse_conditions(status),
            pods_expected=min(sum(each.pods for each in replicated), MOST_CHIPS),
            groups=tuple((each.name, each.replicas, each.parallelism) for each in replicated),
            chips=None if None in chips else min(sum(filter(None, chips)), MOST_CHIPS),
            hosts_per_slice=max((each.parallelism for each in replicated), default=1),
            slice_kinds=frozenset(each.slice_kind for each in replicated),
            workers_failed=any(
                each.get("name") == WORKER and number(each, "failed") > 0
                for each in items(status, "replicatedJobsStatus")
            ),
        )

    @property
    def _terminal(self) -> ObjectCondition | None:
        ends = (find_condition(self.conditions, kind) for kind in ("Completed", "Failed"))
        return next(filter(None, ends), None)

    @property
    def deleting(self) -> bool:
        """It has a deletion timestamp. Its pods may still be saving."""
        return self.deletion_timestamp is not None

    @property
    def ended(self) -> bool:
        """Completed or failed. A JobSet that is only being deleted has not ended."""
        return self._terminal is not None

    @property
    def completed(self) -> bool:
        """Ended with success."""
        return find_condition(self.conditions, "Completed") is not None

    @property
    def end_time(self) -> datetime | None:
        """When the JobSet completed or failed; None if it has not ended, or the time is unknown."""
        return self._terminal.last_transition_time if self._terminal else None

    @property
    def failure_message(self) -> str:
        """The JobSet controller's message about the failure; empty if there is none."""
        failed = find_condition(self.conditions, "Failed")
        return (failed.message or "") if failed else ""

    @property
    def resumed_at(self) -> datetime | None:
        """When the last suspension ended; None if the JobSet is suspended, or never was."""
        resumed = find_condition(self.conditions, "Suspended", "False")
        return resumed.last_transition_time if resumed else None

    @property
    def held(self) -> bool:
        """Whether the JobSet controller has suspended the Jobs and not yet resumed them, whatever the spec says now."""
        return find_condition(self.conditions, "Suspended") is not None

    def unsuspended_at(self, *, queued: bool) -> datetime | None:
        """Since when the JobSet may create pods; None if unknown.

        In a queue, the JobSet controller resumes the JobSet a moment after Kueue has admitted it.
        """
        return self.resumed_at if queued else self.resumed_at or self.creation_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplicatedJob:
    """An entry of ``spec.replicatedJobs``."""

    name: str
    replicas: int
    parallelism: int
    chips: int | None
    """TPU chips of all its pods; None: a limit is no quantity."""
    slice_kind: SliceKind

    @classmethod
    def parse(cls, found: Object) -> "_ReplicatedJob":
        job = section(section(found, "template"), "spec")
        pod = section(section(job, "template"), "spec")
        # A tenant may have written any number.
        replicas = min(max(0, number(found, "replicas", 1)), MOST_CHIPS)
        parallelism = min(max(0, number(job, "parallelism", 1)), MOST_CHIPS)
        limits = (
            section(section(each, "resources"), "limits").get(_TPU) for each in items(pod, "containers")
        )
        chips = [quantity(limit) for limit in limits if limit is not None]
        known = [each for each in chips if each is not None]
        return cls(
            name=text(found, "name") or "",
            replicas=replicas,
            parallelism=parallelism,
            chips=replicas * parallelism * sum(known) if len(known) == len(chips) else None,
            slice_kind=slice_kind(pod),
        )

    @property
    def pods(self) -> int:
        return self.replicas * self.parallelism


def quantity(value: object) -> int | None:
    """Parses a Kubernetes quantity as an integer, rounded up; None if it is none."""
    exact = quantities.exact(value)
    return None if exact is None else math.ceil(min(exact, Decimal(MOST_CHIPS)))
