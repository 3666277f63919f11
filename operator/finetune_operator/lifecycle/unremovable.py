"""What keeps the pods or the JobSet of an attempt that were deleted: a silent node, or finalizers of other clients."""

from collections.abc import Sequence

from finetune_operator.api import WaitingReason
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.job_state import WaitCause
from finetune_operator.lifecycle.observation import Observation

#: Seconds after its grace period in which a pod is removed; usually one.
_REMOVAL_SECONDS = 30.0
#: Finalizers of the garbage collector and the Job controller.
_OF_KUBERNETES = ("foregroundDeletion", "orphan", "batch.kubernetes.io/job-tracking")


def unremovable(observation: Observation, attempt: Attempt) -> WaitCause | None:
    """Returns what of the attempt's JobSet should be gone and is not, with what to do; None if nothing is.

    A pod of an earlier restart counts, since JobSet creates no others before it is gone. One that has ended delays
    nothing beside a pod that runs in its place.
    """
    jobset, namespace = attempt.jobset, observation.job.namespace
    replaced = attempt.running and not (jobset and jobset.deleting)
    own = [pod for pod in observation.pods if pod.key and pod.key.jobset == attempt.key.jobset]
    kept: list[Pod | JobSet] = [pod for pod in own if pod.live or not replaced]
    kept += [jobset] if jobset and not own and _foreign(jobset.finalizers) else []
    for found in sorted(kept, key=lambda each: (isinstance(each, Pod) and not each.live, each.name)):
        due = found.deletion_timestamp
        if due and (observation.now - due).total_seconds() > _REMOVAL_SECONDS:
            silent = isinstance(found, Pod) and (found.live or not found.finalizers)
            text = _on_node(found) if isinstance(found, Pod) and silent else _held(found, namespace)
            return WaitCause(reason=WaitingReason.POD, message=text, since=due)
    return None


def _on_node(pod: Pod) -> str:
    node, foreign = pod.node_name or "its node", _foreign(pod.finalizers)
    then = f" Finalizer {foreign} of the pod must be removed, too." if foreign else ""
    due = stamp(pod.deletion_timestamp) if pod.deletion_timestamp else "now"
    return (
        f"pod {pod.name} should have ended by {due}, and node {node} does not report that it has. If its machine is "
        f"gone or does not come back, delete the node: kubectl delete node {node}. Its pods then go, and the job "
        f"continues. Do not delete the pod alone: it may still write.{then}"
    )


def _held(found: Pod | JobSet, namespace: str) -> str:
    kind = "pod" if isinstance(found, Pod) else "jobset"
    node = f" on node {found.node_name}" if isinstance(found, Pod) else ""
    keeps = _foreign(found.finalizers) or "of its Jobs, or of Kubernetes,"
    return (
        f"{kind} {found.name}{node} has ended and is not removed: finalizer {keeps} keeps it, which its owner has to "
        f"remove. If it does not: kubectl -n {namespace} patch {kind} {found.name} --type merge -p "
        '\'{"metadata":{"finalizers":null}}\'.'
    )


def _foreign(finalizers: Sequence[str]) -> str:
    return " and ".join(each for each in finalizers if each not in _OF_KUBERNETES)
