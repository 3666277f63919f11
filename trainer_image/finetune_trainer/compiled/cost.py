"""The cost of one train step on a device, from the sizes of model, batch and mesh. Pure.

XLA's own cost analysis cannot serve: it counts the body of a loop once, and MaxText's layers are a loop. How far these
figures are from a count of the compiled programs is in ``docs/compiled-proof.md``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from finetune_contract import PreferenceMethod, StageRequest
from finetune_contract.text_model import VALUE_BYTES
from finetune_trainer.compiled.compile_protocol import Candidate
from finetune_trainer.engine import widths
from finetune_trainer.engine.chips import CHIPS
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of
from finetune_trainer.training.flops import attention_flops, step_flops

#: Passes over a layer's attention that the kernels of its gradients compute beyond the two of the gradients: each of
#: the two computes the scores again.
_SCORES_AGAIN = 1.5
#: Bytes of a weight of a quantized base, without its scales.
_QUANTIZED: Mapping[str, float] = {"NF4": 0.5, "INT8": 1.0}
#: Results of one layer that devices that share rows exchange, each of the hidden size.
_EXCHANGES = 12
#: Parts in which weights arrive where more devices than that share them.
_MOST_PARTS = 16
#: Bytes that are read and written for a value of a sum in float32, and for a logit.
_SUM_BYTES, _LOGITS_BYTES = 7, 24
#: How often a product's operands and results are read and written, by it and by the operations around it. This factor,
#: those above and the parts below were fitted to the programs that ``docs/compiled-proof.md`` lists.
_AROUND = 3
#: Products that preflight's remat policies keep; all but the first of the policies compute attention again. Any other
#: policy, and ``custom`` with more than layers' inputs, keeps more than is known here.
_RECOMPUTING: Mapping[str | int | None, frozenset[str]] = {
    "save_qkv_proj": frozenset({"q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "kv_b_proj"}),
    "full": frozenset(),
    "custom": frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Cost of one step on one device."""

    flops: float
    hbm_bytes: float
    """Bytes that the operations read and write, as if nothing stayed on the chip between them, and those of the
    parameters and the optimizer's state."""
    network_bytes: float
    """Bytes of weights, gradients and activations that a device receives from others."""
    state_bytes: float
    """The least that a device reads and writes: its weights, and what is trained with its moments."""

    def seconds(self, family: str) -> tuple[float, float] | None:
        """Roofline bounds of the step's duration; None for a family without published rates.

        The lower bound is the arithmetic at the published rate, or the state read and written once: no step is faster.
        The upper bound is arithmetic, memory and network in sequence.
        """
        if (chip := CHIPS.get(family)) is None:
            return None
        compute, memory = self.flops * chip.devices / chip.bf16_flops, chip.devices / chip.hbm_bytes
        low = max(compute, self.state_bytes * memory)
        network = self.network_bytes * chip.devices / chip.network_bytes
        return low, max(low, compute + self.hbm_bytes * memory + network)


def step_cost(plan: ModelPlan, request: StageRequest, candidate: Candidate) -> StepCost:
    """The cost of the train step that ``candidate`` describes."""
    step = _Step(plan, request, candidate)
    return StepCost(
        flops=step.flops(),
        hbm_bytes=step.hbm_bytes(),
        network_bytes=step.network_bytes(),
        state_bytes=step.state_bytes(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """Products of one token with matrices of all layers, of experts with the chosen ones."""

    weights: float
    values: float
    """Inputs and outputs."""
    sums: float
    """Results of products along the hidden size, forward or for the gradients of inputs; without experts."""


class _Step:
    def __init__(self, plan: ModelPlan, request: StageRequest, candidate: Candidate) -> None:
        h, mesh, lora = request.hyperparameters, candidate.mesh, request.method.lora
        settings: Mapping[str, str | int] = {**candidate.tuning, **request.engine_overrides}
        self._plan, self._request, self._mesh, self._lora = plan, request, mesh, lora
        self._policy: str | int | None = settings.get("remat_policy", "full")
        kept = {name for name, where in settings.items() if where in ("device", "offload")}
        if kept - {"decoder_layer_input"}:
            self._policy = None
        self._tiled = int(settings.get("num_vocab_tiling", 1)) > 1
        self._value_bytes, weight_bytes = VALUE_BYTES[h.compute_precision], VALUE_BYTES[h.weight_precision]
        self._length = self._scored = widths.of_rows(request)
        self._rows = candidate.global_batch
        if isinstance(request.method, PreferenceMethod):
            self._scored = widths.of_pairs(request)[1]
            self._rows *= 2
        # A device's share; devices that share a row divide the work on each token.
        self._tokens = self._rows * self._length / mesh.devices
        self._logits = self._rows * self._scored / mesh.devices
        stored: float = plan.parameters * weight_bytes
        if lora is not None and lora.quantization is not None:
            stored -= plan.layer_parameters * (weight_bytes - _QUANTIZED[lora.quantization])
        self._weight_bytes = stored / (mesh.fsdp * mesh.tensor)
        # Every device holds the whole adapter.
        self._trained_bytes = 4.0 * lora.rank * plan.lora_width(lora) if lora else self._weight_bytes
        self._passes = (3 if lora is None else 2) + (1 if method_of(request.method).reference else 0)
        """Products with each matrix: forward, for the gradients of inputs, of trained weights; and a reference's. The
        weights or their gradients pass the network once for each, and once more in the backward pass."""

    def flops(self) -> float:
        plan, devices = self._plan, self._mesh.devices
        step = step_flops(plan, self._request.method, rows=self._rows, length=self._length) / devices
        unscored = 2.0 * self._passes * (self._tokens - self._logits) * plan.embedding
        attention = attention_flops(plan, self._length) * self._rows / devices
        scores = attention * (_SCORES_AGAIN + (1.0 if self._policy in _RECOMPUTING else 0.0))
        tiles = 2.0 * self._logits * plan.embedding if self._tiled else 0.0
        return step - unscored + 2.0 * self._tokens * self._recomputed().weights + scores + tiles

    def hbm_bytes(self) -> float:
        products, again = self._products(lambda _: True), self._recomputed()
        values = self._tokens * (self._passes * products.values + again.values) * self._value_bytes * _AROUND
        reads = self._passes + again.weights / products.weights
        weights = self._gathered_bytes * (self._passes + 1 + reads)
        logits = self._logits * self._plan.vocab_size * _LOGITS_BYTES
        # Weights arrive in parts, activations arrive and leave in parts; what a part contributes is added to a sum.
        parts = min(self._mesh.fsdp, _MOST_PARTS) - 1 + 1.5 * (self._mesh.tensor - 1)
        sums = parts * self._tokens * products.sums * _SUM_BYTES
        return values + weights + logits + sums + self.state_bytes()

    def network_bytes(self) -> float:
        mesh = self._mesh
        weights = (self._passes + 1) * self._gathered_bytes if mesh.fsdp > 1 else 0.0
        hidden = self._tokens * mesh.tensor * self._plan.hidden_size * self._value_bytes
        shared = _EXCHANGES * self._plan.layers * hidden if mesh.tensor > 1 else 0.0
        summed = self._trained_bytes if mesh.data > 1 else 0.0
        return weights + shared + summed

    def state_bytes(self) -> float:
        moments = 2 if self._request.hyperparameters.optimizer == "AdamW" else 0
        trained = 2.0 * (1 + moments) * self._trained_bytes
        return trained + (self._weight_bytes if self._lora else 0.0)

    @property
    def _gathered_bytes(self) -> float:
        """Bytes of the weights that a device gathers in a pass over all layers, for every part of the batch."""
        weights = self._plan.layer_parameters + self._plan.embedding
        parts = self._request.hyperparameters.gradient_accumulation_steps
        return parts * weights * self._value_bytes / self._mesh.tensor

    def _recomputed(self) -> _Products:
        """What remat computes again. Of a policy that is not preflight's nothing is known here, and nothing counted."""
        if self._policy not in _RECOMPUTING:
            return _Products(weights=0.0, values=0.0, sums=0.0)
        # The result of a layer's last product is no factor of any gradient, unless it is normalized or weighted.
        kept = set() if self._plan.features.post_norms or self._plan.experts else {"down_proj"}
        kept |= _RECOMPUTING[self._policy]
        return self._products(lambda name: name not in kept)

    def _products(self, counts: Callable[[str], bool]) -> _Products:
        weights = values = sums = 0.0
        for number in range(self._plan.layers):
            for name, shape in self._plan.layer(number).items():
                if len(shape) > 1 and counts(name.rpartition(".")[2]):
                    times = self._plan.experts_chosen if len(shape) == 3 else 1
                    weights += times * math.prod(shape[-2:])
                    values += times * (shape[-2] + shape[-1])
                    sums += shape[0] + shape[1] - self._plan.hidden_size if len(shape) == 2 else 0
        return _Products(weights=weights, values=values, sums=sums)
