"""What keeps the pods or the JobSet of an attempt that Kubernetes has deleted: a node that does not respond, or another
client's finalizers."""

from collections.abc import Sequence
from datetime import datetime

from finetune_operator.api import WaitingReason
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.job_state import WaitCause
from finetune_operator.lifecycle.observation import Observation

#: Seconds after the grace period in which kubelet, Job controller and garbage collector remove a pod; usually one does.
_REMOVAL_SECONDS = 30.0
#: Those of the garbage collector and the Job controller.
_OF_KUBERNETES = ("foregroundDeletion", "orphan", "batch.kubernetes.io/job-tracking")


def unremovable(observation: Observation, attempt: Attempt) -> WaitCause | None:
    """Returns what of the attempt's JobSet should be gone and is not, with what to do; None if nothing is.

    A pod of an earlier restart counts, since JobSet creates no others before it is gone.
    """
    namespace = observation.job["metadata"]["namespace"]
    jobset = attempt.jobset
    replaced = attempt.running and not (jobset and jobset.deleting)
    own = [pod for pod in observation.pods if pod.key and pod.key.jobset == attempt.key.jobset]
    late = [
        (due, pod)
        for pod in own
        # One that has ended delays nothing beside a pod that runs in its place.
        if (pod.live or not replaced) and (due := _due(pod.deletion_timestamp, observation.now))
    ]
    if late:
        due, pod = min(late, key=lambda pair: (not pair[1].live, pair[0], pair[1].name))
        more = f", like {len(late) - 1} more of its pods" if len(late) > 1 else ""
        text = _held(pod, namespace, more) if not pod.live and pod.finalizers else _on_node(pod, due, more)
        return WaitCause(reason=WaitingReason.POD, message=text, since=due)
    if jobset and not own and (due := _due(jobset.deletion_timestamp, observation.now)):
        return WaitCause(reason=WaitingReason.POD, message=_jobset(jobset, namespace), since=due)
    return None


def _due(deleted: datetime | None, now: datetime) -> datetime | None:
    """Returns the time by which the object should be gone if it has passed."""
    return deleted if deleted and (now - deleted).total_seconds() > _REMOVAL_SECONDS else None


def _on_node(pod: Pod, due: datetime, more: str) -> str:
    node, foreign = pod.node_name or "its node", _foreign(pod.finalizers)
    then = f" {_names(foreign)} of the pod must be removed, too." if foreign else ""
    return (
        f"pod {pod.name} on node {node} should have ended by {stamp(due)}{more}, and the node does not report that it "
        f"has. If its machine is gone or does not come back, delete the node: kubectl delete node {node}. Its pods "
        f"then go, and the job continues. Do not delete the pod alone: it may still write.{then}"
    )


def _held(pod: Pod, namespace: str, more: str) -> str:
    node = f" on node {pod.node_name}" if pod.node_name else ""
    return (
        f"pod {pod.name}{node} has ended{more} and is not removed. {_names(_foreign(pod.finalizers) or pod.finalizers)} "
        f"keeps it, and its owner has to remove that. If it does not: kubectl -n {namespace} patch pod {pod.name} "
        '--type merge -p \'{"metadata":{"finalizers":null}}\'.'
    )


def _jobset(jobset: JobSet, namespace: str) -> str:
    what = f"JobSet {jobset.name} is deleted, has no pods left and is not removed."
    if foreign := _foreign(jobset.finalizers):
        return (
            f"{what} {_names(foreign)} keeps it, and its owner has to remove that. If it does not: "
            f"kubectl -n {namespace} edit jobset {jobset.name}."
        )
    return (
        f"{what} Finalizers of its Jobs may keep it, which this shows: kubectl -n {namespace} get jobs -o yaml "
        f"-l jobset.sigs.k8s.io/jobset-name={jobset.name}"
    )


def _foreign(finalizers: Sequence[str]) -> list[str]:
    return [each for each in finalizers if each not in _OF_KUBERNETES]


def _names(finalizers: Sequence[str]) -> str:
    return f"Finalizer {' and '.join(finalizers)}"
