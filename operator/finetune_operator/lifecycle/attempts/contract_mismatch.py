"""Failures of class Platform: operator and trainer image support different versions of the contract.

A retry does not help, because every attempt of a job uses the image in the stored plan.
"""

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage

REASON = "ContractUnsupported"
FIX = (
    "Create the job again under a profile whose images.trainer, and images.cpu if it is set, are of the operator's "
    "release. If the image is newer than the operator, upgrade the operator and raise spec.retry.generation."
)


def refused_by_operator(error: ContractUnsupported) -> Failure:
    """Returns the failure of a stage that is not started, because its image does not support the request."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=REASON,
        message=f"{error} Nothing was started."[:1024],
        fix="Undo the edits of the job since its admission and raise spec.retry.generation, or create the "
        "job again under a profile whose images.trainer is of the operator's release.",
    )


def refused_by_trainer(stage: Stage, pod: str, words: str) -> Failure:
    """Returns the failure of a stage whose trainer has refused the request. ``words``: its termination message."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=REASON,
        message=f"{stage}: the trainer image does not understand the request of this operator; pod {pod} refused it "
        "before anything ran.",
        fix=FIX,
        evidence=words,
    )
