"""Attempts of which the kernel killed a process for its memory.

A container with a memory limit has exceeded it. Without one its node ran out of memory, for which other pods and the
system may be responsible, too.
"""

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.container import ContainerTermination
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import trainer_terminations
from finetune_operator.planning.stages import STAGES

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


def is_out_of_memory(end: ContainerTermination) -> bool:
    return end.reason == _KILLED


def killed_by_kernel(stage: Stage, pod: Pod, end: ContainerTermination, evidence: str) -> Failure:
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


def kills(attempt: Attempt) -> list[tuple[Pod, ContainerTermination]]:
    """Returns the trainer's pods that were killed for their memory."""
    return [pair for pair in trainer_terminations(attempt.pods) if is_out_of_memory(pair[1])]
