"""Operator and trainer image that do not understand each other: failures of class Platform.

Another attempt would be of the same image, which the plan names for good.
"""

from finetune_contract import ContractUnsupported, ExitCode, Failure, Stage

REASON = "ContractUnsupported"
FIX = (
    "Create the job again under a profile whose images.trainer, and images.cpu where it is set, are of the operator's "
    "release. Where the image is newer than the operator, upgrade the operator and raise spec.retry.generation."
)
#: How trainers from before version 1.0 of the contract say that they do not understand a request; later ones say so by
#: their exit code.
_EARLY_WORDS = "BadRequest: FINETUNE_REQUEST is not a request"


def refused_by_operator(error: ContractUnsupported) -> Failure:
    """A stage is not started, because its image would not understand the request."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=REASON,
        message=f"{error} Nothing was started."[:1024],
        fix="Take back what the job has asked for since it was admitted and raise spec.retry.generation, or create the "
        "job again under a profile whose images.trainer is of the operator's release.",
    )


def request_refused(code: int, words: str) -> bool:
    """Whether a trainer that ended with ``code`` and left ``words`` has refused its request."""
    early = code == ExitCode.BAD_REQUEST and words.startswith(_EARLY_WORDS)
    return early or code == ExitCode.CONTRACT_UNSUPPORTED


def refused_by_trainer(stage: Stage, pod: str, words: str) -> Failure:
    """``words``: the termination message of the container."""
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason=REASON,
        message=f"{stage}: the trainer image does not understand the request of this operator; pod {pod} refused it "
        "before anything ran.",
        fix=FIX,
        evidence=words,
    )
