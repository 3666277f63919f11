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

from finetune_contract import MethodSpec
from finetune_trainer.data.preference import pair_arrays
from finetune_trainer.lora import with_lora
from finetune_trainer.objectives import REFERENCE, Objective, Reference, objective_of
from finetune_trainer.spread import ROW_AXES
from finetune_trainer.training.session import build_trainer
from finetune_trainer.training.trainer import SftTrainer


def mesh_of(config: Any, devices: Any) -> Mesh:
    """The mesh as MaxText makes it of a slice's devices."""
    return Mesh(
        maxtext_utils.create_device_mesh(config, devices),
        config.mesh_axes,
        axis_types=(jax.sharding.AxisType.Auto,) * len(config.mesh_axes),
    )


class Abstract:
    """A training whose arrays have shapes and places and no values: it can be compiled, not run."""

    def __init__(self, config: Any, mesh: Mesh, method: MethodSpec, accumulation: int) -> None:
        """``accumulation``: microbatches of a step. Arguments as for ``open_session``."""
        self._config, self._mesh, self._accumulation = config, mesh, accumulation
        self._objective = objective_of(method, config)
        # a model under an adapter is its own reference
        self._copied = self._objective.relative and method.lora is None
        self._trainer = _trainer(config, mesh, self._objective, accumulation)
        self._batch = _batch(config, mesh, method, accumulation)

    def compile_step(self) -> Any:
        """``jax.stages.Compiled`` of the step that training would run. Raises JaxRuntimeError as the compiler does, so
        also for a step that needs more memory than a chip has."""
        batch = self._batch
        if self._objective.relative:
            each = next(iter(batch.values()))
            known = jax.ShapeDtypeStruct(each.shape[:1], jnp.float32, sharding=each.sharding)
            batch = batch | dict.fromkeys(REFERENCE, known)
        with self._inside():
            return (
                self._trainer.jit_step().lower(self._trainer.model, self._trainer.optimizer, batch).compile()
            )

    def compile_reference(self) -> Any | None:
        """The pass that tells what the step is relative to, before every step; None where it is to nothing."""
        if not self._objective.relative:
            return None
        with self._inside():
            reference = Reference.itself(self._trainer.model, self._mesh, parts=self._accumulation)
            return reference.lowered(self._batch).compile()

    @property
    def arguments_bytes(self) -> int:
        """What the step is given on each device: parameters, optimizer's state and batch."""
        return _bytes((nnx.state((self._trainer.model, self._trainer.optimizer)), self._batch))

    @property
    def kept_bytes(self) -> int:
        """What lies on each device beside the step: the parameters that training began with."""
        return _bytes(nnx.state(self._trainer.model)) if self._copied else 0

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        with jax.set_mesh(self._mesh), logical_axis_rules(self._config.logical_axis_rules):
            yield


def _bytes(arrays: Any) -> int:
    """Of the part of each that one device holds."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arrays)
    )


def _trainer(config: Any, mesh: Mesh, objective: Objective, accumulation: int) -> SftTrainer:
    """That of ``open_session``."""
    built: list[SftTrainer] = []

    def build() -> tuple[Any, Any]:
        create = model_creation_utils.get_nnx_create_model_fn(config, mesh)
        training = peft_trainer.TrainingConfig(eval_every_n_steps=1, max_steps=None)
        model = create()
        if config.lora.enable_lora:
            model = with_lora(model, mesh, config)
        trainer, _ = build_trainer(config, model, training, objective, accumulation)
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


def _batch(config: Any, mesh: Mesh, method: MethodSpec, accumulation: int) -> dict[str, jax.ShapeDtypeStruct]:
    """As ``data.layout`` and ``data.preference`` lay them out, all microbatches together."""
    rows = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    shapes = {name: each.shape for name, each in maxtext_utils.get_shaped_batch(config).items()}
    if method.max_prompt_length is not None:
        ((number, length), *_) = shapes.values()
        prompt = method.max_prompt_length
        shapes = {name: (number, width) for name, width in pair_arrays(prompt, length - prompt).items()}
    return {
        name: jax.ShapeDtypeStruct((number * accumulation, width), jnp.int32, sharding=rows)
        for name, (number, width) in shapes.items()
    }
