"""LoRA on a MaxText model, with the adapter's parameters in float32 whatever the dtype of the base.

Qwix gives them the dtype of the base's weights, or of a quantized base's scales: in bfloat16 most of an update's digits
are lost. With float32 their product, added to a layer's output, makes that float32 too, and a model that computes in
bfloat16 fails at its next layer. Here the sum is computed in float32 and rounded once to the layer's dtype.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, override

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from maxtext.utils import lora_utils, sharding
from qwix._src.core.qarray import HowToQuantize, QArray
from qwix._src.providers.ptq import WithAux

from finetune_trainer.families.plan import LORA_MODULES, module_path

#: Prefix of a module path pattern: matches only paths that end in attention's output.
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
    # In attention's output [heads, head_dim, width] a block is within a head. Qwix's default would span all heads.
    held = {_OUT: {0: 1, 1: block} if block else None, "": block}
    rules = [
        *(
            qwix.LoraRule(
                module_path=where + lora.lora_module_path, weight_qtype=qtype, tile_size=tile, **adapter
            )
            for where, tile in held.items()
        ),
        # MaxText's rules would quantize only the adapted layers, and leave the rest of the base at full size.
        *(
            qwix.QuantizationRule(module_path=where + every, weight_qtype=qtype, tile_size=tile)
            for where, tile in held.items()
        ),
    ]
    return _Float32Lora(rules)


def _adapted(model: nnx.Module, mesh: Mesh, config: Any) -> nnx.Module:
    """The model with adapters, each array sharded as its metadata say. ``model`` is consumed.

    Done operation by operation, as in MaxText, a quantized base is placed on every device as a whole, the compiler
    shards norm scales as it likes, and several processes fail, because none of them holds the whole of an adapter.
    """
    adapt, state, made = _adapting(model, mesh, config)
    return nnx.merge(made[0], adapt(state))


def lowered(model: nnx.Module, mesh: Mesh, config: Any) -> Any:
    """``jax.stages.Lowered`` of the program that adds adapters to a loaded model and quantizes it.

    ``model`` is traced, each array with its sharding.
    """
    lora_utils._build_lora_provider = _provider  # noqa: SLF001
    adapt, state, _ = _adapting(model, mesh, config)
    return adapt.lower(state)


def _adapting(model: nnx.Module, mesh: Mesh, config: Any) -> tuple[Any, Any, list[Any]]:
    """The jitted program, the state that it takes, and a list that tracing fills with the result's graph."""
    graph, state = nnx.split(model)
    made: list[Any] = []

    def adapt(state: Any) -> Any:
        adapted = nnx.merge(graph, state, copy=True)
        with unplaced_adapters(mesh):
            adapted = lora_utils.apply_lora_to_model(adapted, mesh, config)
        nnx.pop(adapted, nnx.Intermediate)
        if config.lora.lora_weight_qtype:
            _restore_quantized(adapted, config.lora.lora_weight_qtype)
        found, arrays = nnx.split(adapted)
        made.append(found)
        return arrays

    places = shardings(jax.eval_shape(adapt, state), mesh)
    return jax.jit(adapt, out_shardings=places, donate_argnums=0), state, made


@contextlib.contextmanager
def unplaced_adapters(mesh: Mesh) -> Iterator[None]:
    """Skips MaxText's placement of adapters, which fails for traced ones; their metadata have the sharding."""
    apply, inputs = lora_utils.apply_lora_to_model, lora_utils._prepare_dummy_inputs  # noqa: SLF001
    rows = inputs(mesh)
    lora_utils._prepare_dummy_inputs = lambda _: rows  # noqa: SLF001
    lora_utils.apply_lora_to_model = lambda model, _, config: apply(model, None, config)
    try:
        yield
    finally:
        lora_utils.apply_lora_to_model, lora_utils._prepare_dummy_inputs = apply, inputs  # noqa: SLF001


def shardings(state: Any, mesh: Mesh) -> Any:
    """The sharding of each array of a traced model's state.

    Arrays that do not divide evenly, such as the scales of a few blocks, are replicated on every device.
    """
    places = sharding.nnx_construct_named_sharding(state, mesh)
    return jax.tree.map(_even, state, places)


class IndivisibleShapeError(ValueError):
    """A model whose sizes do not suit the mesh."""


def require_divisible(state: Any, mesh: Mesh) -> None:
    """Raises ``IndivisibleShapeError`` for parameters that MaxText refuses to load onto the mesh.

    MaxText shards those of a model without adapters as their metadata say, evenly or not at all.
    """
    places = sharding.nnx_construct_named_sharding(state, mesh)
    for (path, array), place in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(places), strict=True):
        if not (even := _even(array, place)).is_equivalent_to(place, len(array.shape)):
            axes = {name: size for name, size in mesh.shape.items() if size > 1}
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise IndivisibleShapeError(
                f"{name} of the model, {array.shape}, does not divide among {axes} "
                f"as {place.spec}, only as {even.spec}"
            )


def _even(array: Any, place: NamedSharding) -> NamedSharding:
    def axes(entry: Any, size: int) -> Any:
        names = entry if isinstance(entry, tuple) else (entry,)
        parts = math.prod(mesh.shape[name] for name in names if name is not None)
        return None if size % parts else entry

    mesh = place.mesh
    spec = (*place.spec, *[None] * (len(array.shape) - len(place.spec)))
    return place.update(spec=PartitionSpec(*map(axes, spec, array.shape)))


def _restore_quantized(model: nnx.Module, qtype: str) -> None:
    """Restores quantized weights of unscanned layers to what Qwix made them: arrays of ``qtype``.

    Gemma 3's layers beyond the last whole block run inside a checkpointed function, from which MaxText takes a bare
    state back. That loses how the weight is quantized, and Qwix no longer recognizes it as a weight: it computes with
    codes of four bits as if they were numbers, and without the adapter.
    """
    for _, module in list(nnx.iter_modules(model)):
        for name, weight in list(vars(module).items()):
            if isinstance(weight, nnx.Param) and isinstance(state := weight.get_raw_value(), nnx.State):
                # copies: the originals were made inside that function, and cannot be changed outside of it
                own = {part: variable.copy() for part, variable in state["array"].items()}
                array = QArray(**own, qtype=qtype)
                setattr(module, name, WithAux(array, HowToQuantize(qtype=qtype)))


def with_lora(model: Any, mesh: Mesh, config: Any) -> Any:
    """The model with fresh adapters on the modules that ``config.lora`` names, or those at its ``lora_restore_path``.

    Call inside ``mesh_context``.
    """
    lora_utils._build_lora_provider = _provider  # noqa: SLF001 - MaxText has no hook for it
    adapted = _adapted(model, mesh, config)
    nnx.pop(adapted, nnx.Intermediate)
    for _, variable in nnx.iter_graph(adapted):
        if isinstance(variable, nnx.LoRAParam):
            variable.set_value(variable.get_value().astype(jnp.float32))
    if config.lora.lora_restore_path:
        lora_utils.restore_lora_from_path(adapted, config)
    return adapted
