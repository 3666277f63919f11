"""A MaxText checkpoint that the user provides instead of a model folder.

It is checked by its metadata before any cost arises, and turned back into weights where export needs them.
"""

import math
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints import folder, mapping, tensors
from finetune_trainer.checkpoints.layout import CheckpointLayout
from finetune_trainer.checkpoints.reading import CheckpointReader, CheckpointUnreadableError
from finetune_trainer.checkpoints.weights import SINGLE, Tensor, Weights, open_weights
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan

_WHERE = "spec.model.orbax.uri"


def check(items: str, plan: ModelPlan, layout: CheckpointLayout, *, scratch: Path) -> None:
    """Compares names and sizes of all parameters with ``plan``; reads no array.

    Raises ``StageError`` 66 if there is no checkpoint, and 64 for one of another model, of layers that are not stacked,
    or that the controller cannot read.
    """
    checkpoint = _opened(items)
    found = {key: array.shape for key, array in checkpoint.arrays.items()}
    if checkpoint.ocdbt and not layout.ocdbt:
        raise _incompatible(
            items, "Pathways' workers cannot read a checkpoint in one database (OCDBT)", "manifest.ocdbt",
            "a folder of zarr 2 files for each array",
            "Save it with checkpoint_storage_use_ocdbt=False, or use resources.controller: McJAX.",
        )  # fmt: skip
    if plan.architecture.endswith("ForConditionalGeneration"):
        raise _incompatible(
            items, "the checkpoint contains no vision part, so its export would be incomplete", plan.architecture,
            "a text model", "Start from model.huggingFace or model.uri, or use the text model's config.json.",
        )  # fmt: skip
    config = maxtext.configure(
        plan, weight_dtype="float32", run_name="provided", base_output_directory=str(scratch)
    )
    shapes, parameters = plan.tensors(), mapping.parameters(plan, config)
    if extra := sorted(set(found) - {parameter.key for parameter in parameters}):
        raise _incompatible(
            items, f"the checkpoint has {len(extra)} parameters more than the model", ", ".join(extra[:3]),
            f"the parameters of {plan.model_name}, layers stacked",
            "Name a checkpoint of this model, saved with scan_layers=True.",
        )  # fmt: skip
    for parameter in parameters:
        expected = sum(math.prod(shapes[name]) for name in parameter.names)
        if parameter.key not in found:
            raise _incompatible(
                items, f"the checkpoint has no {parameter.key}", ", ".join(sorted(found)[:3]) or "no parameters",
                f"the parameters of {plan.model_name}, layers stacked",
                "Name a checkpoint of this model, saved with scan_layers=True.",
            )  # fmt: skip
        if math.prod(found[parameter.key]) != expected:
            raise _incompatible(
                items, f"{parameter.key} differs in size from config.json", str(found[parameter.key]),
                f"{expected} values", "Use a checkpoint and a config.json (model.tokenizer) of the same model.",
            )  # fmt: skip


def base_weights(items: str, plan: ModelPlan, out: Path, *, scratch: Path, values: bool) -> Weights:
    """The checkpoint's weights under their plain Hugging Face names, in float32.

    ``values``: whether they are written to ``out``; else only names and shapes are returned, for callers that write
    weights of their own. Call ``engine.prepare(plan)`` first.
    """
    named = Weights(
        folder=out,
        text={
            name: Tensor(file=out / SINGLE, name=name, shape=shape, dtype="F32")
            for name, shape in plan.tensors().items()
        },
        foreign={},
    )
    if not values:
        return named
    config = maxtext.configure(
        plan, weight_dtype="float32", run_name="provided", base_output_directory=str(scratch)
    )
    out.mkdir(parents=True)
    folder.write_weights(out, tensors.full(_opened(items), plan, config, scratch), named, plan, "FP32")
    return open_weights(out, plan, where=items)


def _opened(items: str) -> CheckpointReader:
    try:
        return CheckpointReader(items)
    except CheckpointUnreadableError as error:
        raise StageError(
            ExitCode.INPUT_MISSING, "CheckpointUnreadable", "there is no complete Orbax checkpoint", where=_WHERE,
            actual=f"{items}: {str(error)[:200]}", expected="the items folder of a MaxText checkpoint",
            fix="Name the folder …/<step>/items that MaxText has written, with all its files.",
        ) from error  # fmt: skip


def _incompatible(items: str, what: str, actual: str, expected: str, fix: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "CheckpointIncompatible", what, where=f"{_WHERE}: {items}",
        actual=actual, expected=expected,
        fix=fix,
    )  # fmt: skip
