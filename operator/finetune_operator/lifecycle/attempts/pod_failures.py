"""What pods and JobSet show of an attempt whose trainer left no record: the failure by exit codes and messages.

If the kernel has killed a process for its memory, a container with a memory limit has exceeded it. Without one its node
ran out of memory, for which other pods and the system may be responsible, too.

If operator and trainer image support different versions of the contract, a retry does not help, because every attempt
of a job uses the image in the stored plan.
"""

from datetime import datetime

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.disruption import PREEMPTED, Disruption, pressure
from finetune_operator.lifecycle.children.container import ContainerTermination
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import last_worker_message, trainer_terminations
from finetune_operator.planning.stages import STAGES

_SIGNALLED = 128
#: Characters of a termination message in a failure.
_MOST_EVIDENCE = 4096
_SIGTERM = _SIGNALLED + 15
_SIGKILL = _SIGNALLED + 9

#: Pathways' workers failed repeatedly, which ended the attempt; the head only received SIGTERM.
WORKERS_FAILED = "WorkersFailed"
#: A kubelet did not run a pod that was bound to its node.
POD_REJECTED = "PodRejected"
#: Reasons of the kubelet for pods that it ends or rejects because its node shuts down.
_SHUTDOWN = ("NodeShutdown", "Terminated", "Shutdown")
#: A container has exceeded its memory limit.
HOST_OUT_OF_MEMORY = "HostOutOfMemory"
#: The container that was killed has no memory limit.
NODE_OUT_OF_MEMORY = "NodeOutOfMemory"
KILLS = (HOST_OUT_OF_MEMORY, NODE_OUT_OF_MEMORY)
#: The kubelet's reason; the kernel counts kills by the limit and by the node alike.
_KILLED = "OOMKilled"
_MEASURED = (
    "The stage requests the memory that was measured for models of this size, and no field of the job changes it: "
    "report the model to the platform team, and use a smaller one meanwhile."
)
_RESERVE = (
    "Set hostResources.memory of the flavor in the profile, which reserves memory for the pod, keep other pods off the "
    "node, or use a slice with more memory per host. If the stage itself needs more than the node has, use fewer rows, "
    "a smaller batch or sequence length."
)
CONTRACT_UNSUPPORTED = "ContractUnsupported"
USE_MATCHING_IMAGE = (
    "Create the job again under a profile whose images.trainer, and images.cpu if it is set, are of the operator's "
    "release. If the image is newer than the operator, upgrade the operator and raise spec.retry.generation."
)


def failure_of_pods(attempt: Attempt) -> Failure:
    """Returns the failure of an attempt that has ended without a record of the trainer."""
    stage, name = attempt.key.stage, attempt.jobset_name
    if attempt.jobset is None:
        why = f"JobSet {name} was deleted before its trainer had left a record."
        return Failure(code=_SIGKILL, reason="JobSetDeleted", message=f"{stage}: {why}")
    if failure := died(attempt) or _rejected(attempt):
        return failure
    message = attempt.jobset.failure_message
    reported = f" JobSet reports: {message}." if message else ""
    return Failure(
        code=_SIGKILL,
        reason="PodLost",
        message=f"{stage}: JobSet {name} ended without a record of the trainer, and its pods are deleted or succeeded."
        f"{reported}"[:1024],
    )


def died(attempt: Attempt) -> Failure | None:
    """Returns the failure that the exit codes of the trainer's processes show; None if none has failed."""
    ended = [(pod, end) for pod, end in trainer_terminations(attempt.pods) if end.exit_code != 0]
    if not ended:
        return None
    return process_failure(attempt.key.stage, *min(ended, key=lambda pair: (_silence(pair[1]), pair[0].name)))


def _rejected(attempt: Attempt) -> Failure | None:
    """Returns the failure of a pod that its kubelet did not run, as after a restart of the node; None for any other."""
    for pod in attempt.pods:
        if pod.failure_reason and not pod.terminations:
            shutdown = pod.failure_reason in _SHUTDOWN
            said = " ".join((pod.failure_message or "").split())
            return Failure(
                code=ExitCode.STOPPED if shutdown else ExitCode.UNAVAILABLE,
                reason=PREEMPTED if shutdown else POD_REJECTED,
                message=f"{attempt.key.stage}: the kubelet did not run pod {pod.name} ({pod.failure_reason}): {said}"[
                    :1024
                ],
                actual=pod.failure_reason[:512],
            )
    return None


def process_failure(stage: Stage, pod: Pod, end: ContainerTermination) -> Failure:
    """Returns the failure of a pod whose trainer ended without a record, from its exit code and termination message."""
    code, name = end.exit_code, pod.name
    evidence = end.message[-_MOST_EVIDENCE:]
    if end.reason == _KILLED:
        return _killed_by_kernel(stage, pod, end, evidence)
    if code == ExitCode.CONTRACT_UNSUPPORTED:
        return _refused_by_trainer(stage, name, evidence)
    if code in (ExitCode.STOPPED, _SIGTERM):
        return Failure(
            code=ExitCode.STOPPED,
            reason=PREEMPTED,
            message=f"{stage}: pod {name} received SIGTERM before it had anything to save.",
            evidence=evidence,
        )
    known = code in ExitCode._value2member_map_
    killed = f" (killed by signal {code - _SIGNALLED})" if _SIGNALLED < code < 160 else ""
    said = f" It reported: {' '.join(evidence.split())}" if known and evidence else ""
    return Failure(
        code=code,
        reason=ExitCode(code).name.title().replace("_", "") if known else "ProcessDied",
        message=f"{stage}: the process of pod {name} ended with code {code}{killed} and left no record.{said}"[
            :1024
        ],
        evidence=evidence,
    )


def _silence(end: ContainerTermination) -> int:
    """Returns a rank by which the most informative termination comes first.

    A host that was stopped or killed because another one failed shows no cause of its own; a host that missed another
    one reports only that.
    """
    if end.reason == _KILLED:
        return 0
    code = end.exit_code
    if code in ExitCode._value2member_map_:
        return {ExitCode.UNAVAILABLE: 1, ExitCode.STOPPED: 3}.get(ExitCode(code), 0)
    return 2 if code < _SIGNALLED else 4


def cause_of_stop(attempt: Attempt, taken: Disruption | None, ended: datetime | None) -> Failure | None:
    """Returns the failure that pods show for an attempt that was stopped, unless it is a preemption; else None."""
    short = pressure(attempt, ended)
    unlimited = [(pod, end) for pod, end in kills(attempt) if pod.is_unlimited(end)]
    if short is None and unlimited:
        # A node without memory may soon not be ready either; it would be the same after each restart.
        return process_failure(attempt.key.stage, *unlimited[0])
    if short is None and taken is None and attempt.jobset and attempt.jobset.workers_failed:
        stage, name = attempt.key.stage, attempt.jobset_name
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=WORKERS_FAILED,
            message=f"{stage}: the workers of JobSet {name} were restarted more often than their Job allows, and the "
            "JobSet failed.",
            evidence=last_worker_message(attempt.pods)[-_MOST_EVIDENCE:],
        )
    return short


def kills(attempt: Attempt) -> list[tuple[Pod, ContainerTermination]]:
    """Returns the trainer's pods that were killed for their memory."""
    return [pair for pair in trainer_terminations(attempt.pods) if pair[1].reason == _KILLED]


def _killed_by_kernel(stage: Stage, pod: Pod, end: ContainerTermination, evidence: str) -> Failure:
    """Returns the failure of a container that was killed for its memory."""
    if pod.is_unlimited(end):
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=NODE_OUT_OF_MEMORY,
            message=f"{stage}: the node of pod {pod.name} ran out of memory, and the kernel killed the pod, whose "
            "container has no memory limit.",
            fix=_RESERVE,
            evidence=evidence,
        )
    return Failure(
        code=ExitCode.OUT_OF_MEMORY,
        reason=HOST_OUT_OF_MEMORY,
        message=f"{stage}: pod {pod.name} was killed because it used more memory than its limit.",
        fix=_MEASURED
        if STAGES[stage].sized_by_model
        else "Use a smaller batch or sequence length, or larger nodes.",
        evidence=evidence,
    )


def refused_by_operator(error: ContractUnsupported) -> Failure:
    """Returns the failure of a stage that is not started, because its image does not support the request."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=CONTRACT_UNSUPPORTED,
        message=f"{error} Nothing was started."[:1024],
        fix="Undo the edits of the job since its admission and raise spec.retry.generation, or create the "
        "job again under a profile whose images.trainer is of the operator's release.",
    )


def _refused_by_trainer(stage: Stage, pod: str, words: str) -> Failure:
    """Returns the failure of a stage whose trainer has refused the request. ``words``: its termination message."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=CONTRACT_UNSUPPORTED,
        message=f"{stage}: the trainer image does not understand the request of this operator; pod {pod} refused it "
        "before anything ran.",
        fix=USE_MATCHING_IMAGE,
        evidence=words,
    )
