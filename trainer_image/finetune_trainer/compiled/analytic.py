"""A lower bound of the train step's memory, from the model's size alone: in a second instead of minutes."""

from finetune_contract import ExitCode, MemoryCheckSpec, MemoryOutcome, MeshSpec, StageRequest
from finetune_contract.text_model import VALUE_BYTES
from finetune_trainer.compiled.compile_protocol import Candidate, MemoryExceeded
from finetune_trainer.compiled.search import ModelBounds, gib, heads_divide
from finetune_trainer.compiled.slice_selection import (
    OTHER_MESH,
    SliceSearchState,
    TooSmallSlice,
    no_slice_fits_error,
    select_first_fitting,
    slice_candidates,
)
from finetune_trainer.engine.chips import CHIPS
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of


def check_analytically(
    request: StageRequest, plan: ModelPlan, check: MemoryCheckSpec, model: ModelBounds
) -> MemoryOutcome:
    """Checks by the lower bound of the training's memory.

    Raises ``StageError`` 78 if it exceeds that of each slice, and 64 if the model's heads do not divide among the
    devices that share a row of the only slice.
    """

    def evaluate(start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        if not heads_divide(start.mesh, model):
            raise StageError(
                ExitCode.BAD_REQUEST, "MeshNotDivisible",
                "the model's heads do not divide among the devices that share a row",
                where="spec.resources.parallelism.tensor",
                actual=f"{start.mesh.tensor} devices on {start.place}, {model.heads} heads, {model.kv_heads} kv heads",
                fix=OTHER_MESH,
            )  # fmt: skip
        chip = CHIPS.get(start.slice.family)
        if chip is None:
            return MemoryOutcome(
                source="Analytic",
                slice=start.place,
                unknown=f"The memory of a chip of {start.slice.name} is unknown.",
            )
        needed = chip.devices * _state_bytes(plan, request, start.mesh)
        limit = int(chip.devices * chip.usable_gib * 2**30)
        if needed > limit:
            answer = MemoryExceeded(needed_bytes=needed, limit_bytes=limit, arguments_bytes=needed)
            considered.small.append(TooSmallSlice(start=start, tried=start, answer=answer))
            considered.reject(
                start, f"needs {gib(needed)} of {gib(limit)} for parameters and optimizer alone"
            )
            return None
        return MemoryOutcome(source="Analytic", slice=start.place, peak_bytes=needed, limit_bytes=limit)

    outcome, considered = select_first_fitting(slice_candidates(request, check), model, evaluate)
    if outcome is None:
        raise no_slice_fits_error(considered, fix="Use LoRA or a larger slice.")
    return outcome


def _state_bytes(plan: ModelPlan, request: StageRequest, mesh: MeshSpec) -> int:
    """Bytes per device of parameters, those of a reference model, and the optimizer's state, without activations.

    Data parallelism replicates parameters; fsdp and tensor parallelism shard them.
    """
    h = request.hyperparameters
    weights = plan.parameters * VALUE_BYTES[h.weight_precision]
    if request.method.lora is None:
        moments = 2 if h.optimizer == "AdamW" else 0
        weights *= 1 + moments + (1 if method_of(request.method).reference else 0)
    return weights // (mesh.fsdp * mesh.tensor)
