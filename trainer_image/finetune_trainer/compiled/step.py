"""The train step of a configuration, compiled for a TPU slice that is not there: shapes only, no weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from maxtext.utils import lora_utils, maxtext_utils, model_creation_utils, sharding
from tunix.sft import peft_trainer

from finetune_trainer.lora import with_lora
from finetune_trainer.objectives import Imitation
from finetune_trainer.spread import ROW_AXES
from finetune_trainer.training.session import build_trainer


def mesh_of(config: Any, devices: Any) -> Mesh:
    """The mesh as MaxText makes it of a slice's devices."""
    return Mesh(
        maxtext_utils.create_device_mesh(config, devices),
        config.mesh_axes,
        axis_types=(jax.sharding.AxisType.Auto,) * len(config.mesh_axes),
    )


def compile_step(config: Any, mesh: Mesh, accumulation: int = 1) -> Any:
    """``jax.stages.Compiled`` of the step that training would run. Raises JaxRuntimeError as the compiler does, so also
    for a step that needs more memory than a chip has."""
    trainer = abstract_trainer(config, mesh, accumulation)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        batch = abstract_batch(config, mesh, accumulation)
        return trainer.jit_step().lower(trainer.model, trainer.optimizer, batch).compile()


def arguments_bytes(config: Any, mesh: Mesh, accumulation: int = 1) -> int:
    """What the step is given on each device: parameters, optimizer's state and batch."""
    trainer = abstract_trainer(config, mesh, accumulation)
    given = (nnx.state((trainer.model, trainer.optimizer)), abstract_batch(config, mesh, accumulation))
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(given)
    )


def abstract_trainer(config: Any, mesh: Mesh, accumulation: int) -> Any:
    """The trainer of ``open_session`` for SFT, its model and optimizer with shapes and places instead of values."""
    built: list[Any] = []

    def build() -> tuple[Any, Any]:
        create = model_creation_utils.get_nnx_create_model_fn(config, mesh)
        training = peft_trainer.TrainingConfig(eval_every_n_steps=1, max_steps=None)
        model = create()
        if config.lora.enable_lora:
            model = with_lora(model, mesh, config)
        trainer, _ = build_trainer(config, model, training, Imitation(config=config), accumulation)
        built.append(trainer)
        return trainer.model, trainer.optimizer

    with logical_axis_rules(config.logical_axis_rules), _unplaced_adapters(mesh):
        model, optimizer = nnx.eval_shape(build)
        trainer = built[0]
        trainer.model, trainer.optimizer = _placed((model, optimizer), mesh)
    return trainer


@contextlib.contextmanager
def _unplaced_adapters(mesh: Mesh) -> Iterator[None]:
    """MaxText moves adapters to their devices, which traced ones cannot; where they belong stands in their metadata."""
    apply, inputs = lora_utils.apply_lora_to_model, lora_utils._prepare_dummy_inputs  # noqa: SLF001
    rows = inputs(mesh)
    lora_utils._prepare_dummy_inputs = lambda _: rows  # noqa: SLF001
    lora_utils.apply_lora_to_model = lambda model, _, config: apply(model, None, config)
    try:
        yield
    finally:
        lora_utils.apply_lora_to_model, lora_utils._prepare_dummy_inputs = apply, inputs  # noqa: SLF001


def _placed(modules: Any, mesh: Mesh) -> Any:
    graph, state = nnx.split(modules)
    places = sharding.nnx_construct_named_sharding(state, mesh)
    return nnx.merge(graph, jax.tree.map(_at, state, places))


def _at(shape: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place)


def abstract_batch(config: Any, mesh: Mesh, accumulation: int) -> dict[str, jax.ShapeDtypeStruct]:
    rows = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    names = maxtext_utils.get_shaped_batch(config)
    return {
        name: jax.ShapeDtypeStruct((each.shape[0] * accumulation, *each.shape[1:]), jnp.int32, sharding=rows)
        for name, each in names.items()
    }
