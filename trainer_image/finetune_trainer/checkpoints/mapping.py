"""Maps between a Hugging Face checkpoint and MaxText's parameters: MaxText's own tables, with the real model's sizes.

A MaxText parameter stacks the same tensor of many layers. Hooks change layout and scale of one layer's tensor; they act
only on the outputs of a projection, so the same hook converts a whole weight and the B half of a LoRA pair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from maxtext.checkpoint_conversion.utils.param_mapping import HOOK_FNS, PARAM_MAPPING
from maxtext.checkpoint_conversion.utils.tensor_handling import apply_hook_fns

from finetune_trainer.families import Family, ModelPlan

Hook = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
_EMBEDDING = "params-token_embedder-embedding"


_BY_WIDTH = "reshape_and_transpose_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One MaxText parameter."""

    key: str
    """MaxText's path, joined with dashes: ``params-decoder-layers-mlp-wo-kernel``."""
    names: tuple[str, ...]
    """Plain Hugging Face names in the order of the stacked layers; with experts, all layers of the first one, and so
    on."""
    stacked: bool
    """Whether it stacks several layers."""
    experts: bool
    """Whether it stacks experts: on the first axis, before the layers."""
    to_maxtext: tuple[Hook, ...]
    to_hugging_face: tuple[Hook, ...]

    def index(self, place: int, shape: tuple[int, ...], axis: int) -> tuple[int | slice, ...]:
        """Index of the tensor at ``place`` of ``names`` in MaxText's array of ``shape``.

        ``axis`` is MaxText's ``param_scan_axis``.
        """
        if self.experts and self.stacked:
            return divmod(place, shape[1])
        if self.experts:
            return (place,)
        if not self.stacked:
            return ()
        axis = stack_axis(len(shape), axis)
        return (*(slice(None) for _ in range(axis)), place)

    def encode(self, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The part of MaxText's array (float32, of ``shape``) that is this Hugging Face tensor."""
        return _apply(self.to_maxtext, tensor, shape)

    def decode(self, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The Hugging Face tensor (float32, of ``shape``) of that part; inverts ``encode``."""
        return _apply(self.to_hugging_face, part, shape)

    def stack_axes(self, dimensions: int, axis: int) -> tuple[int, ...]:
        """The axes along which MaxText's array, or a half of its LoRA pair, stacks ``names``, in their order.

        ``dimensions``: the array's number of dimensions; ``axis``: ``param_scan_axis``.
        """
        if self.experts:
            return (0, 1) if self.stacked else (0,)
        return (stack_axis(dimensions, axis),) if self.stacked else ()

    def decode_pair(
        self, low: np.ndarray, high: np.ndarray, shape: tuple[int, ...], head_dim: int, axis: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """PEFT's (lora_A ``[rank, in]``, lora_B ``[out, rank]``) of all layers, for a weight of ``shape`` [out, in].

        ``low`` and ``high`` are MaxText's ``[in, layers, rank]`` and ``[rank, layers, out]``. The hooks change only a
        projection's outputs (rotary order, query scale), so they act on the B half alone.
        """
        lows = np.moveaxis(low, axis, 0) if self.stacked else low[None]
        highs = np.moveaxis(high, axis, 0) if self.stacked else high[None]
        rank = lows.shape[-1]
        by_head = any(part in self.key for part in ("-query-", "-key-", "-value-"))
        view = (rank, -1, head_dim) if by_head else (rank, -1)
        return [
            (
                np.ascontiguousarray(a.astype(np.float32).T),
                np.ascontiguousarray(_apply(self.to_hugging_face, b.reshape(view), (shape[0], rank))),
            )
            for a, b in zip(lows, highs, strict=True)
        ]


def stack_axis(dimensions: int, axis: int) -> int:
    """The axis along which MaxText stacks layers: ``param_scan_axis``, or 0 for arrays with too few dimensions."""
    return axis if dimensions > axis else 0


def parameters(plan: ModelPlan, config: Any) -> list[Parameter]:
    """All parameters of the text model, in MaxText's order of names."""
    view = _view(plan)
    names = PARAM_MAPPING[plan.model_name](view, config, config.scan_layers)
    inward = HOOK_FNS[plan.model_name](view, config, config.scan_layers, saving_to_hf=False)
    outward = HOOK_FNS[plan.model_name](view, config, config.scan_layers, saving_to_hf=True)
    if plan.embedding_scale != 1.0:
        # Gemma 3's own hook rounds the scale to bfloat16, which the shared output head would then not undo.
        factor = np.float32(plan.embedding_scale)
        inward[_EMBEDDING] = lambda x, _: x * factor
        outward[_EMBEDDING] = lambda x, _: x / factor
    if plan.family is Family.MIXTRAL:
        # Mixtral's own hook reshapes by the model's width, which is neither the heads' nor an adapter's.
        outward |= {
            key: [_joined_heads if hook.__name__ == _BY_WIDTH else hook for hook in _hooks(outward[key])]
            for key in names
            if key in outward and "-self_attention-" in key
        }
    wanted = plan.tensors()
    found = []
    for key, value in names.items():
        several = value if isinstance(value, list) else [value]
        # if scanned, each expert has the list of its layers; else each layer has the list of its experts
        nested = any(isinstance(each, list) for each in several)
        experts = nested or (isinstance(value, list) and not config.scan_layers)
        listed = [name for layers in several for name in layers] if nested else several
        plain = [_plain(name) for name in listed]
        if plain and plain[0] in wanted:
            found.append(
                Parameter(
                    key=key,
                    names=tuple(plain),
                    stacked=isinstance(value, list) and config.scan_layers,
                    experts=experts,
                    to_maxtext=_hooks(inward.get(key)),
                    to_hugging_face=_hooks(outward.get(key)),
                )
            )
    return found


def _view(plan: ModelPlan) -> Mapping[str, Any]:
    """The part of a Hugging Face configuration that the tables read."""
    sizes: dict[str, Any] = {
        "num_hidden_layers": plan.layers,
        "hidden_size": plan.hidden_size,
        # the hooks of Llama and Gemma 2 take the scale of queries from here
        "head_dim": plan.folded_query_scalar or plan.head_dim,
    }
    if plan.experts is not None:
        sizes["num_experts"] = sizes["n_routed_experts"] = plan.experts.number
        sizes["first_k_dense_replace"] = plan.experts.dense_layers
    if plan.family is Family.GEMMA3:
        return {"text_config": sizes, "vision_config": {"num_hidden_layers": 0}}
    return sizes


def _joined_heads(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Reshapes ``[in, heads, head_dim]`` or ``[heads, head_dim, out]`` to ``shape``, Hugging Face's [out, in]."""
    return array.reshape(shape[::-1]).T


def _plain(name: str) -> str:
    return name.replace("model.language_model.", "model.", 1)


def _hooks(value: Any) -> tuple[Hook, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _apply(hooks: tuple[Hook, ...], array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    result = np.asarray(apply_hook_fns(array.astype(np.float32), shape, list(hooks)))
    assert result.shape == shape, (result.shape, shape)
    return result
