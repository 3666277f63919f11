"""Memory of a train step on each JAX device, estimated from the model's sizes. Pure.

The step holds its state throughout. Beside it, the larger of two moments decides: the loss, when the logits exist, and
the backward pass through the layers, when the gradients exist. Both are counted by sizes; the few factors below that
sizes do not give were fitted to steps compiled by the TPU compiler (``tests/memory_cases.json``), and are chosen
so that the estimate is rather too high.
"""

from dataclasses import astuple, dataclass

from finetune_contract import LoraSpec, MeshSpec
from finetune_operator.planning.estimate.activations import block_values, kept_values
from finetune_operator.planning.estimate.model_shape import ModelShape

_FLOAT32 = 4
#: Bytes of a weight of a base that is quantized, with its scales.
_QUANTIZED = {"NF4": 0.53, "INT8": 1.0}
#: Values of a layer that exist at once in its backward pass: those that are computed again, and their gradients.
_LAYER_VALUES = {"minimal_with_context": 1.0, "save_qkv_proj": 2.0, "full": 2.0, "offload": 2.0}
#: Copies of a layer's weights that exist at once: gathered; and restored from a quantized base, float32 first.
_GATHERED, _RESTORED = 1.0, 2.0
#: What activations and logits are multiplied by, so that the estimate is above the compiler rather than below.
_MARGIN = 1.03
#: Logits that exist at once, in units of a piece's float32 logits: those of a pair's answers are also held rounded, and
#: a softcap holds them before and after.
_LOGITS, _PAIR_LOGITS, _SOFTCAP_LOGITS = 1.0, 0.5, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """What determines a step's memory on a device, beside the settings that preflight may choose."""

    model: ModelShape
    mesh: MeshSpec
    rows: float
    """A device's share of the model's rows in one forward pass; a pair of answers is two of them."""
    width: int
    """Tokens of a row."""
    scored: int
    """Tokens of a row whose logits are used."""
    lora: LoraSpec | None
    pairs: bool
    reference: bool
    """Whether a copy of the weights is held as DPO's reference."""
    moments: int
    """Number of the optimizer's moments."""
    accumulated: bool
    weight_bytes: int
    value_bytes: int

    @property
    def shards(self) -> int:
        """Number of devices that weights are divided among; data parallelism replicates them."""
        return self.mesh.fsdp * self.mesh.tensor

    @property
    def quantized(self) -> bool:
        return self.lora is not None and self.lora.quantization is not None

    @property
    def trained(self) -> float:
        """Bytes of the trained parameters on a device; gradients and moments have the same size.

        Every device holds the whole adapter.
        """
        if self.lora is None:
            return self.model.parameters * self.weight_bytes / self.shards
        return _FLOAT32 * self.lora.rank * self.model.lora_width(self.lora)

    @property
    def weights(self) -> float:
        """Bytes of the weights on a device in the step, without an adapter."""
        if self.lora is None or self.lora.quantization is None:
            return self.model.parameters * self.weight_bytes / self.shards
        outer = self.model.parameters - self.model.layer_parameters
        held = self.model.layer_parameters * _QUANTIZED[self.lora.quantization]
        return (outer * self.weight_bytes + held) / self.shards


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes on one device at the step's peak."""

    parameters: int
    """Weights, and an adapter's."""
    reference: int
    """The copy of the weights that DPO compares with; 0 with LoRA, whose base model is the reference."""
    optimizer: int
    gradients: int
    activations: int
    """What is kept of the forward pass, what a layer computes again, and weights copied or gathered for that."""
    logits: int
    """Logits, what is computed of them, and the gathered output layer. 0 if the peak is in the layers."""

    @property
    def peak(self) -> int:
        return sum(astuple(self))


def step_memory(step: TrainStep, remat: str, pieces: int) -> StepMemory:
    """Returns the memory with that remat policy, one of ``POLICIES``, and the logits in that many pieces."""
    tokens, model = step.rows * step.width, step.model
    kept = tokens * kept_values(model, remat) * step.value_bytes
    # Before its loops over the layers the compiler rounds or transposes the weights of all of them; quantized ones are
    # restored in the loops.
    copied = 0.0 if step.quantized else model.layer_parameters * step.value_bytes / step.shards
    copies = _GATHERED + (_RESTORED if step.quantized else 0.0)
    gathered = copies * model.block_parameters * step.value_bytes / step.mesh.tensor
    again = tokens * block_values(model) * step.value_bytes * _LAYER_VALUES[remat]
    accumulated = step.trained if step.accumulated else 0.0
    layers = kept + gathered + again + (0.0 if remat == "minimal_with_context" else copied)
    gradients = accumulated + _gradients(step)
    logits, before = _logits(step, pieces), kept + (copied if step.lora is None else 0.0)
    if accumulated + before + logits > gradients + layers:
        gradients, activations = accumulated, before
    else:
        activations, logits = layers, 0.0
    return StepMemory(
        parameters=int(step.weights + (step.trained if step.lora else 0)),
        reference=int(step.weights) if step.reference else 0,
        optimizer=int(step.moments * step.trained),
        gradients=int(gradients),
        activations=int(activations * _MARGIN),
        logits=int(logits * _MARGIN),
    )


def _gradients(step: TrainStep) -> float:
    """Those of all layers and of the output layer; the gradient of the embeddings is the last."""
    if step.lora is not None or step.model.tied_embeddings:
        return step.trained
    return step.trained - step.model.embedding * step.weight_bytes / step.shards


def _logits(step: TrainStep, pieces: int) -> float:
    model = step.model
    whole = step.rows * step.scored * model.vocab_size * _FLOAT32 / pieces
    head = model.embedding * step.value_bytes / step.mesh.tensor
    if step.lora and not step.pairs and pieces == 1 and not model.softcapped:
        # no gradient of the output layer: it is gathered while the logits are rounded
        return max(whole, whole / 2 + head)
    more = (_PAIR_LOGITS if step.pairs else 0.0) + (_SOFTCAP_LOGITS if model.softcapped else 0.0)
    return whole * (_LOGITS + more) + head
