"""LoRA on a MaxText model, with the adapter's parameters in float32 whatever the model computes in.

Qwix makes float32 parameters and adds their product to the layer's output, which then is float32 too: a model that
computes in bfloat16 fails at its next layer. Here the sum is made in float32 and rounded once to the layer's dtype.
"""

from typing import Any, override

import jax
import qwix
from flax import nnx
from jax.sharding import Mesh
from maxtext.utils import lora_utils


class _Float32Lora(qwix.LoraProvider):  # type: ignore[misc]  # qwix ships no types
    @override
    def dot_general(self, lhs: jax.Array, rhs: Any, *arguments: Any, **named: Any) -> jax.Array:
        return self._rounded(super().dot_general(lhs, rhs, *arguments, **named), lhs, named)

    @override
    def einsum(self, einsum_str: str, *operands: Any, **named: Any) -> jax.Array:
        return self._rounded(super().einsum(einsum_str, *operands, **named), operands[0], named)

    @staticmethod
    def _rounded(result: jax.Array, lhs: jax.Array, named: dict[str, Any]) -> jax.Array:
        return result.astype(named.get("preferred_element_type") or lhs.dtype)


def _provider(config: Any) -> qwix.LoraProvider:
    return _Float32Lora(
        module_path=config.lora.lora_module_path, rank=config.lora.lora_rank, alpha=config.lora.lora_alpha
    )


def with_lora(model: Any, mesh: Mesh, config: Any) -> Any:
    """The model with fresh adapters on the modules that ``config.lora`` names, or those at its ``lora_restore_path``.

    Call inside ``jax.set_mesh`` and MaxText's logical axis rules.
    """
    lora_utils._build_lora_provider = _provider  # noqa: SLF001 - MaxText offers no place for it
    adapted = lora_utils.apply_lora_to_model(model, mesh, config)
    nnx.pop(adapted, nnx.Intermediate)
    if config.lora.lora_restore_path:
        lora_utils.restore_lora_from_path(adapted, config)
    return adapted
