"""LoRA on a MaxText model, with the adapter's parameters in float32 whatever the base is held in.

Qwix gives them the dtype of the base's weights, or of a quantized base's scales: in bfloat16 most of an update's digits
are lost. With float32 their product, added to a layer's output, makes that float32 too, and a model that computes in
bfloat16 fails at its next layer. Here the sum is made in float32 and rounded once to the layer's dtype.
"""

from typing import Any, override

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jax.sharding import Mesh
from maxtext.utils import lora_utils

from finetune_trainer.families.plan import LORA_MODULES, module_path

#: In front of a module's path: only where that ends in attention's output.
_OUT = r"(?=.*/out$)"


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
    lora = config.lora
    qtype, block = lora.lora_weight_qtype, lora.lora_tile_size
    adapter = {"rank": lora.lora_rank, "alpha": lora.lora_alpha}
    if qtype is None:
        return _Float32Lora([qwix.LoraRule(module_path=lora.lora_module_path, **adapter)])
    every = module_path(LORA_MODULES)
    # Of attention's output [heads, head_dim, width] a block is within a head. Qwix's own would go through all heads.
    held = {_OUT: {0: 1, 1: block} if block else None, "": block}
    rules = [
        *(
            qwix.LoraRule(
                module_path=where + lora.lora_module_path, weight_qtype=qtype, tile_size=tile, **adapter
            )
            for where, tile in held.items()
        ),
        # MaxText's own would quantize the adapted layers only, and leave the rest of the base as large as it is.
        *(
            qwix.QuantizationRule(module_path=where + every, weight_qtype=qtype, tile_size=tile)
            for where, tile in held.items()
        ),
    ]
    return _Float32Lora(rules)


def with_lora(model: Any, mesh: Mesh, config: Any) -> Any:
    """The model with fresh adapters on the modules that ``config.lora`` names, or those at its ``lora_restore_path``.

    Call inside ``jax.set_mesh`` and MaxText's logical axis rules.
    """
    lora_utils._build_lora_provider = _provider  # noqa: SLF001 - MaxText offers no place for it
    adapted = lora_utils.apply_lora_to_model(model, mesh, config)
    nnx.pop(adapted, nnx.Intermediate)
    for _, variable in nnx.iter_graph(adapted):
        if isinstance(variable, nnx.LoRAParam):
            variable.set_value(variable.get_value().astype(jnp.float32))
    if config.lora.lora_restore_path:
        lora_utils.restore_lora_from_path(adapted, config)
    return adapted
