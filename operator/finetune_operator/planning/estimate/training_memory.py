"""Memory of a plan's training on each JAX device, with the settings that preflight probably chooses. Pure.

An estimate: preflight compiles the step, and decides.
"""

from dataclasses import dataclass
from functools import cached_property

from finetune_contract import MeshSpec, PreferenceMethod, SliceShape
from finetune_contract.text_model import VALUE_BYTES
from finetune_contract.tpu import families
from finetune_operator.planning.estimate.activations import POLICIES
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.estimate.step_memory import StepMemory, TrainStep, step_memory
from finetune_operator.planning.plan import Plan

#: Error of the estimate on the compiled steps that it was not fitted to, in percent: the median of its size, the lowest
#: and the highest. docs/benchmarks.md lists them.
MEDIAN_ERROR, LOWEST_ERROR, HIGHEST_ERROR = 10, -5, 50

#: MaxText's own setting, which training has if preflight does not compile.
_DEFAULT_POLICY = "full"
#: Preflight's: number of pieces in which logits are computed, and the size from which they are.
_PIECES, _LARGE_LOGITS = 8, 2**28
#: Widths that the TPU's attention kernel accepts: multiples of its lanes, and of its block if they exceed it.
_LANES, _BLOCK = 128, 512


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes on one device."""

    step: TrainStep
    usable: int | None
    """Memory that a program may use. None if it is not published."""
    remat: str | None
    """Remat policy: the job's, or the first of preflight's that fits, or else its last. None: one of the job's that the
    estimate does not know."""
    pieces: int
    """Number of pieces in which logits are computed."""

    @property
    def state(self) -> int:
        """What no setting of the compiler avoids: weights, their reference and the optimizer's state.

        A quantized base counts as unquantized, which it is while it is loaded.
        """
        step = self.step
        weights = step.model.parameters * step.weight_bytes / step.shards
        adapter = step.trained if step.lora else 0.0
        return int(weights * (2 if step.reference else 1) + adapter + step.moments * step.trained)

    @property
    def too_small(self) -> bool:
        """Whether the memory is known to be too small for the state alone."""
        return self.usable is not None and self.state > self.usable

    @cached_property
    def parts(self) -> StepMemory | None:
        """The estimate. None if the remat policy is unknown."""
        return None if self.remat is None else step_memory(self.step, self.remat, self.pieces)

    @property
    def headroom(self) -> int | None:
        """What the step leaves free by the estimate; negative if it does not fit. None if that is unknown."""
        return None if self.usable is None or self.parts is None else self.usable - self.parts.peak


def training_memory(plan: Plan, model: ModelShape, mesh: MeshSpec, family: str) -> TrainingMemory:
    """Returns the memory of the plan's training on a mesh of chips of that family."""
    step, chip = _train_step(plan, model, mesh), families()[family].chip
    usable = None if chip is None else int(chip.usable_gib * 2**30)
    pieces, policies = _pieces(plan, step), _policies(plan)
    found = [TrainingMemory(step=step, usable=usable, remat=remat, pieces=pieces) for remat in policies]
    if usable is None:
        return next((each for each in found if each.remat == _DEFAULT_POLICY), found[0])
    return next((each for each in found if each.headroom is not None and each.headroom >= 0), found[-1])


def candidates_memory(plan: Plan, model: ModelShape) -> dict[tuple[str, str], TrainingMemory]:
    """Returns the memory on the planned slice and on those that preflight may choose, by family and topology."""
    shape = plan.placement.shape
    found = {(shape.family, shape.topology): training_memory(plan, model, plan.mesh, shape.family)}
    for each in plan.memory.candidates if plan.memory else ():
        place: SliceShape = each.slice
        found[place.family, place.topology] = training_memory(plan, model, each.mesh, place.family)
    return found


def _train_step(plan: Plan, model: ModelShape, mesh: MeshSpec) -> TrainStep:
    numbers, method = plan.hyperparameters, plan.method
    length = plan.data.max_seq_length
    pairs = isinstance(method, PreferenceMethod)
    width = _width(length)
    return TrainStep(
        model=model,
        mesh=mesh,
        rows=(2 if pairs else 1) * numbers.microbatch_size / mesh.devices,
        width=width,
        scored=length - method.max_prompt_length if isinstance(method, PreferenceMethod) else width,
        lora=method.lora,
        pairs=pairs,
        reference=method.lora is None and method.type == "DPO",
        moments=2 if numbers.optimizer == "AdamW" else 0,
        accumulated=numbers.gradient_accumulation_steps > 1,
        weight_bytes=VALUE_BYTES[numbers.weight_precision],
        value_bytes=VALUE_BYTES[numbers.compute_precision],
    )


def _width(length: int) -> int:
    """The width of rows for sequences of that many tokens."""
    unit = 1 if length < _LANES else _LANES if length <= _BLOCK else _BLOCK
    return -(-length // unit) * unit


def _compiles(plan: Plan) -> bool:
    return plan.memory is not None and plan.memory.source == "Compile"


def _policies(plan: Plan) -> tuple[str | None, ...]:
    said = plan.engine_overrides
    name = said.get("remat_policy")
    if name is None:
        return POLICIES if _compiles(plan) else (_DEFAULT_POLICY,)
    placed = {key: value for key, value in said.items() if value in ("device", "offload")}
    if name == "custom" and placed == {"decoder_layer_input": "offload"}:
        name = "offload"
    return (name if name in POLICIES else None,)


def _pieces(plan: Plan, step: TrainStep) -> int:
    said = plan.engine_overrides.get("num_vocab_tiling", "")
    if said:
        return max(1, int(said)) if said.isascii() and said.isdecimal() and len(said) < 10 else 1
    tokens = step.rows * step.width
    logits = tokens * step.mesh.tensor * step.model.vocab_size * 4
    tiled = _compiles(plan) and not step.pairs and logits >= _LARGE_LOGITS and tokens % _PIECES == 0
    return _PIECES if tiled else 1
