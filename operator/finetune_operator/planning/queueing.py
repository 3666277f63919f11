"""Kueue's queues: which one a stage waits in, by the profile and, where that allows it, by the job's own labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

type Object = Mapping[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """LocalQueues of the job's namespace. A stage without one goes to the scheduler directly."""

    tpu: str | None
    cpu: str | None
    priority_class: str | None
    """A WorkloadPriorityClass; None: the queue's default."""


def resolve_queues(metadata: Object, profile: Object) -> Queues:
    """The queues of a job with that metadata. A job's queue-name is that of its TPU stages: CPU quota is another."""
    queue = profile.get("queue", {})
    own = metadata.get("labels", {}) if queue.get("allowJobLabels") else {}
    return Queues(
        tpu=own.get(QUEUE_LABEL) or queue.get("localQueue"),
        cpu=queue.get("cpuLocalQueue"),
        priority_class=own.get(PRIORITY_LABEL) or queue.get("priorityClass"),
    )


def forbidden_labels(metadata: Object, profile: Object) -> Iterator[str]:
    """One sentence part for each label that the job carries and that would be ignored: the profile does not let it
    choose, or no queue is there to give it priority in."""
    labels = metadata.get("labels", {})
    if profile.get("queue", {}).get("allowJobLabels"):
        queues = resolve_queues(metadata, profile)
        if PRIORITY_LABEL in labels and queues.tpu is None and queues.cpu is None:
            yield (
                f"metadata.labels[{PRIORITY_LABEL}] = {labels[PRIORITY_LABEL]}, but no queue admits the job: add the "
                f"label {QUEUE_LABEL} or remove this one"
            )
        return
    for label in (QUEUE_LABEL, PRIORITY_LABEL):
        if label in labels:
            yield (
                f"metadata.labels[{label}] = {labels[label]}, but jobs do not choose their queue here "
                "(queue.allowJobLabels is false): remove the label"
            )
