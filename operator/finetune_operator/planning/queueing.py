"""Kueue's queues: selects a stage's queue from the profile and, if the profile allows it, from the job's own labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from finetune_operator.api.meta import is_domain
from finetune_operator.api.profile import Queue

type Labels = Mapping[str, str]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """LocalQueues in the job's namespace. None: the stage goes to the scheduler directly."""

    tpu: str | None
    cpu: str | None
    priority_class: str | None
    """A WorkloadPriorityClass. None: the queue's default."""


def resolve_queues(labels: Labels, queue: Queue) -> Queues:
    """Returns the queues of a job with those labels. Its queue-name label applies to TPU stages: CPU quota differs."""
    own = labels if queue.allow_job_labels else {}
    return Queues(
        tpu=own.get(QUEUE_LABEL) or queue.local_queue,
        cpu=queue.cpu_local_queue,
        priority_class=own.get(PRIORITY_LABEL) or queue.priority_class,
    )


def forbidden_labels(labels: Labels, queue: Queue) -> Iterator[str]:
    """Yields a message for each label of the job that would have no effect, or with which no JobSet is accepted.

    Either the profile does not allow jobs to choose, the value cannot be a name, or there is no queue in which the
    priority would apply.
    """
    if queue.allow_job_labels:
        for label, kind in ((QUEUE_LABEL, "LocalQueue"), (PRIORITY_LABEL, "WorkloadPriorityClass")):
            value = labels.get(label)
            # Kueue's webhook refuses JobSets with other names.
            if value and not is_domain(value):
                yield (
                    f"metadata.labels[{label}] = {value}, which is no name of a {kind}: expected lower-case letters, "
                    "digits, - and ."
                )
        queues = resolve_queues(labels, queue)
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
