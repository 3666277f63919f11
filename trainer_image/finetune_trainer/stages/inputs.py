"""What earlier stages left for this one. Raises an error that names what is missing."""

from finetune_contract import ExitCode
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.errors import StageError
from finetune_trainer.stages.context import StageContext


def converted_model(context: StageContext) -> str:
    """Address of the converted model's ``items``, verified against storage.

    The first process verifies it before any other continues. Raises ``StageError`` 69 if it is damaged.
    """
    if context.request.converted is None:
        raise _not_given("converted", "the address of the converted model", "Convert")
    if context.processes.first:
        conversion_cache.require_whole(context.request, context.store)
    context.processes.barrier("converted model")
    return context.request.converted


def trained_parameters(context: StageContext) -> str:
    """Address of the parameters in the last training checkpoint (for LoRA, the adapter's)."""
    step = context.request.train_step
    if step is None:
        raise _not_given("train_step", "the step of the checkpoint", "Train")
    address = f"{context.folder.checkpoint(step)}/model_params"
    if not any(True for _ in context.store.entries(address)):
        raise StageError(
            ExitCode.INPUT_MISSING,
            "CheckpointMissing",
            "the checkpoint does not exist",
            where=address,
            expected=f"the checkpoint of step {step}",
            fix="Run training again.",
        )
    return address


def _not_given(field: str, what: str, stage: str) -> StageError:
    return StageError(
        ExitCode.CONTRACT_UNSUPPORTED,
        "RequestIncomplete",
        f"the request does not contain {what}",
        where=f"request.{field}",
        actual="nothing",
        expected=f"what the {stage} stage found",
        fix="Add it to the request.",
    )
