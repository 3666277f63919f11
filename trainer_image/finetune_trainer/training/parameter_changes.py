"""Whether training changed the trained parameters, layer by layer.

Sums over the bits of all trained parameters are computed once before the first step and once after the last. Each is
one pass over the parameters in place: nothing is copied, and only the sums leave the devices. The sums before are those
of the model that training began with, also where this attempt continues from a checkpoint.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from finetune_contract import ExitCode
from finetune_trainer.checkpoints import mapping
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan

type Sums = Mapping[str, np.ndarray]
"""Sums by the parameter's path in MaxText, joined with dashes: uint32, one number per tensor that it stacks."""

_HIGH = "_lora_b"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_SHOWN = 8


class ParameterChanges:
    """The changes of one training. Construct it before a checkpoint is restored, inside the mesh."""

    def __init__(self, model: Any, plan: ModelPlan, config: Any, mesh: Mesh) -> None:
        """``config`` is MaxText's; ``model`` has its adapters."""
        self._mesh, self._lora = mesh, bool(config.lora.enable_lora)
        self._trained = nnx.LoRAParam if self._lora else nnx.Param
        self._axis = config.param_scan_axis
        self._parameters = {
            parameter.key.removeprefix("params-") + (_HIGH if self._lora else ""): parameter
            for parameter in mapping.parameters(plan, config)
        }
        self._before = self._sums(self._arrays(nnx.state(model, self._trained)))

    def moved(self, model: Any, optimizer: Any) -> dict[str, bool]:
        """For each trained tensor, by its Hugging Face name, whether training has changed it.

        A LoRA pair counts as changed when its second half is: that begins at zero, and until it changes, the first half
        has no gradient. In full fine-tuning, weight decay changes a matrix that never had a gradient; so where the
        optimizer keeps second moments, one of the tensor's must not be zero.
        """
        after = self._sums(self._arrays(nnx.state(model, self._trained)))
        moments = {} if self._lora else self._sums(self._second_moments(optimizer))
        found: dict[str, bool] = {}
        for key, sums in after.items():
            changed = np.atleast_1d(sums != self._before[key])
            if key in moments:
                changed &= np.atleast_1d(moments[key] != 0)
            found |= dict(zip(self._parameters[key].names, changed.ravel().tolist(), strict=True))
        return found

    def require_finite(self, model: Any, *, step: int) -> None:
        """Raises ``StageError`` 70 if a trained parameter of ``model`` is NaN or infinite. ``step`` is for the message.

        A step's loss is computed before the step changes the weights. So no loss shows what the last step has changed,
        nor what any step has changed in weights that no row uses.
        """
        arrays = _named(nnx.state(model, self._trained))
        whole = NamedSharding(self._mesh, PartitionSpec())
        finite = jax.jit(
            lambda arrays: {key: jnp.isfinite(array).all() for key, array in arrays.items()},
            out_shardings=whole,
        )(arrays)
        broken = sorted(key for key, value in finite.items() if not np.asarray(value))
        if broken:
            raise StageError(
                ExitCode.DIVERGED, "Diverged", "training ended with weights that are NaN or infinite",
                where=f"step {step}", actual=f"{len(broken)} of {len(finite)} arrays, {', '.join(broken[:2])}"[:300],
                expected="finite numbers",
                fix="Lower hyperparameters.learningRate or raise warmupRatio.",
            )  # fmt: skip

    def _arrays(self, state: Any) -> dict[str, jax.Array]:
        """The compared arrays, by path: of a LoRA pair only the second half."""
        return {key: array for key, array in _named(state).items() if key in self._parameters}

    def _second_moments(self, optimizer: Any) -> dict[str, jax.Array]:
        """AdamW's second moments, by the parameter's path; empty for SGD."""
        found = {}
        for path, leaf in nnx.to_flat_state(nnx.state(optimizer)):
            words = tuple(map(str, path))
            if "nu" in words:
                key = "-".join(words[words.index("nu") + 1 :])
                found[key] = leaf.get_value()
        return {key: array for key, array in found.items() if key in self._parameters}

    def _sums(self, arrays: Mapping[str, jax.Array]) -> Sums:
        whole = NamedSharding(self._mesh, PartitionSpec())
        kept = {
            key: self._parameters[key].stack_axes(array.ndim, self._axis) for key, array in arrays.items()
        }
        run = jax.jit(
            lambda arrays: {key: _bit_sum(array, kept[key]) for key, array in arrays.items()},
            out_shardings=whole,
        )
        return {key: np.asarray(value) for key, value in run(dict(arrays)).items()}


def _named(state: Any) -> dict[str, jax.Array]:
    return {"-".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(state)}


def require_parameter_changes(moved: Mapping[str, bool], *, step: int, rates: np.ndarray) -> list[str]:
    """The tensors that training left unchanged, if that is acceptable.

    It is for single tensors: a norm of bfloat16 weights at a small rate, or an expert that received no token. Raises
    ``StageError`` 70 if all tensors of a layer are unchanged, or all tensors. ``rates``: learning rates by step.
    """
    still = [name for name, changed in moved.items() if not changed]
    layers: dict[int, bool] = {}
    for name, changed in moved.items():
        if match := _LAYER.match(name):
            number = int(match[1])
            layers[number] = layers.get(number, False) or changed
    dead = sorted(number for number, changed in layers.items() if not changed)
    whole = len(still) == len(moved)
    if not (dead or whole):
        return still
    shown = ", ".join(map(str, dead[:_SHOWN])) + (", …" if len(dead) > _SHOWN else "")
    raise StageError(
        ExitCode.DIVERGED,
        "NothingTrained",
        "training changed nothing" if whole else "training did not change every layer",
        where=f"step {step}",
        actual=f"{len(still)} of {len(moved)} trained tensors are unchanged, bit for bit"
        + ("" if whole else f"; nothing changed in layers {shown} of {len(layers)}"),
        expected="a change in every layer",
        fix="Raise hyperparameters.learningRate, and with weightPrecision BF16 set FP32. If that does not help, report "
        "it with the model's config.json and the method: this model cannot be trained this way."
        if rates.any()
        else "The learning rate was 0 at every step: lower hyperparameters.warmupSteps, or train for more steps.",
    )


def _bit_sum(array: jax.Array, kept: tuple[int, ...]) -> jax.Array:
    """A uint32 sum over the bits of all elements, along all axes but ``kept``.

    It depends on each element's position; for zeros it is 0. Arrays that differ in one element never have the same sum,
    others in one of 2^32 cases.
    """
    axes = [axis for axis in range(array.ndim) if axis not in kept]
    width = {2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(array, width).astype(jnp.uint32)
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits ^= bits >> 15
    place = jnp.zeros((), jnp.uint32)
    for axis in axes:
        place = place * jnp.uint32(array.shape[axis]) + jax.lax.broadcasted_iota(
            jnp.uint32, array.shape, axis
        )
    result: jax.Array = (bits * (2 * place + 1)).sum(axis=tuple(axes), dtype=jnp.uint32)
    return result
