"""The train step of a configuration, compiled for a TPU slice that is not there: shapes only, no weights."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from maxtext.utils import maxtext_utils, model_creation_utils
from tunix.sft import peft_trainer

from finetune_contract import PreferenceMethod, StageRequest
from finetune_trainer.data.preference import pair_arrays
from finetune_trainer.engine import lora, widths
from finetune_trainer.engine.lora import require_divisible, shardings, unplaced_adapters, with_lora
from finetune_trainer.engine.sharding import ROW_AXES, canonical_sharding, mesh_context
from finetune_trainer.evaluation.loss import LossMeter
from finetune_trainer.methods import method_of
from finetune_trainer.methods.base import REFERENCE
from finetune_trainer.methods.objectives import Objective, ReferenceModel
from finetune_trainer.training.session import build_trainer
from finetune_trainer.training.trainer import FineTuneTrainer


def mesh_of(config: Any, devices: Any) -> Mesh:
    """The mesh that MaxText makes of a slice's devices."""
    return Mesh(
        maxtext_utils.create_device_mesh(config, devices),
        config.mesh_axes,
        axis_types=(jax.sharding.AxisType.Auto,) * len(config.mesh_axes),
    )


class AbstractTraining:
    """A training whose arrays have shapes and shardings but no values: it can be compiled, not run."""

    def __init__(self, config: Any, mesh: Mesh, request: StageRequest) -> None:
        """Reads what ``open_session`` reads of the request, and the columns of its pairs. ``config`` is MaxText's."""
        method, accumulation = request.method, request.hyperparameters.gradient_accumulation_steps
        self._config, self._mesh = config, mesh
        self._request = request
        self._objective = method_of(method).objective(config)
        # a model under an adapter is its own reference
        self._copied = self._objective.relative and method.lora is None
        self._trainer = _abstract_trainer(config, mesh, self._objective, accumulation)
        self._batch = batch_shapes(config, mesh, request, parts=accumulation)

    def lower_step(self) -> Any:
        """``jax.stages.Lowered`` of the step that training would run."""
        batch = self._batch
        if self._objective.relative:
            batch = batch | reference_logp_shapes(batch)
        with self._inside():
            return self._trainer.jit_step().lower(self._trainer.model, self._trainer.optimizer, batch)

    def lower_reference(self) -> Any | None:
        """``jax.stages.Lowered`` of the pass before every step that computes what the step's loss is relative to.

        None if it is not relative.
        """
        return self._lowered_reference(self._batch)

    def lower_loading(self) -> Any | None:
        """``jax.stages.Lowered`` of the program that quantizes the base, which is loaded whole.

        None if nothing is quantized.
        """
        config, mesh = self._config, self._mesh
        if not (config.lora.enable_lora and config.lora.lora_weight_qtype):
            return None
        model = traced(model_creation_utils.get_nnx_create_model_fn(config, mesh), config, mesh)
        with logical_axis_rules(config.logical_axis_rules):
            return lora.lowered(model, mesh, config)

    def lower_validation_reference(self) -> Any | None:
        """``jax.stages.Lowered`` of the reference pass for the loss on the validation rows.

        None if the loss is not relative, or the step's reference is the same program.
        """
        batch = self._validation_batch()
        return None if batch == self._batch else self._lowered_reference(batch)

    def lower_loss(self) -> Any:
        """``jax.stages.Lowered`` of the loss on the validation rows, while training."""
        batch = self._validation_batch()
        if self._objective.relative:
            batch |= reference_logp_shapes(batch)
        with self._inside():
            meter = LossMeter(self._trainer.model, self._config, self._mesh, self._objective)
            return meter.lowered(self._trainer.model, batch)

    def _validation_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        return batch_shapes(self._config, self._mesh, self._request, parts=1)

    def _lowered_reference(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any | None:
        if not self._objective.relative:
            return None
        rows = self._request.hyperparameters.microbatch_size
        with self._inside():
            return ReferenceModel.itself(self._trainer.model, self._mesh, rows=rows).lowered(batch)

    @property
    def arguments_bytes(self) -> int:
        """Bytes of the step's arguments on each device: parameters, the optimizer's state and the batch."""
        return _bytes((nnx.state((self._trainer.model, self._trainer.optimizer)), self._batch))

    @property
    def kept_bytes(self) -> int:
        """Bytes on each device beside the step's arguments: the parameters that training began with."""
        return _bytes(nnx.state(self._trainer.model)) if self._copied else 0

    def _inside(self) -> contextlib.AbstractContextManager[None]:
        return mesh_context(self._config, self._mesh)


def reference_logp_shapes(
    batch: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays that ``ReferenceModel.of`` adds to a batch."""
    each = next(iter(batch.values()))
    known = jax.ShapeDtypeStruct(each.shape[:1], jnp.float32, sharding=each.sharding)
    return dict.fromkeys(REFERENCE, known)


def _bytes(arrays: Any) -> int:
    """Bytes of the arrays' shards on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * _bits(leaf.dtype) // 8
        for leaf in jax.tree.leaves(arrays)
    )


def _bits(dtype: Any) -> int:
    """Bits of one value. NumPy's size of a four-bit type is a byte; a TPU holds two of them in one."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return 8 * int(dtype.itemsize)
    return int(jnp.iinfo(dtype).bits)  # type: ignore[no-untyped-call]


def _abstract_trainer(config: Any, mesh: Mesh, objective: Objective, accumulation: int) -> FineTuneTrainer:
    """Returns the trainer that ``open_session`` builds, with shapes and shardings in place of arrays.

    ``accumulation`` is the number of forward passes per step.
    """
    built: list[FineTuneTrainer] = []

    def build() -> tuple[Any, Any]:
        create = model_creation_utils.get_nnx_create_model_fn(config, mesh)
        training = peft_trainer.TrainingConfig(eval_every_n_steps=1, max_steps=None)
        model = create()
        require_divisible(nnx.state(model), mesh)
        if config.lora.enable_lora:
            model = with_lora(model, mesh, config)
        trainer, _ = build_trainer(config, model, training, objective, accumulation)
        built.append(trainer)
        return trainer.model, trainer.optimizer

    # The trainer itself is no result that eval_shape can return, and its own arrays are tracers by now.
    model, optimizer = traced(build, config, mesh)
    built[0].model, built[0].optimizer = model, optimizer
    return built[0]


def traced(build: Callable[[], Any], config: Any, mesh: Mesh) -> Any:
    """The modules that ``build`` makes, with each array's shape and its sharding on the mesh."""
    # without the mesh, on which nothing can be computed
    with logical_axis_rules(config.logical_axis_rules), unplaced_adapters(mesh):
        graph, state = nnx.split(nnx.eval_shape(build))
        return nnx.merge(graph, jax.tree.map(_at, state, shardings(state, mesh)))


def _at(shape: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        shape.shape, shape.dtype, sharding=canonical_sharding(place, len(shape.shape))
    )


def batch_shapes(
    config: Any, mesh: Mesh, request: StageRequest, *, parts: int, pairs: bool = True
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch as ``data.layout`` and ``data.preference`` lay rows out, ``parts`` forward passes together.

    ``pairs``: False for texts, whatever the method compares. If devices share rows, there are fewer rows than MaxText
    would load, which is one per device.
    """
    rows = request.hyperparameters.microbatch_size * parts
    if pairs and isinstance(request.method, PreferenceMethod):
        columns = pair_arrays(*widths.of_pairs(request))
    else:
        columns = {name: each.shape[1] for name, each in maxtext_utils.get_shaped_batch(config).items()}
    sharding = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    return {
        name: jax.ShapeDtypeStruct((rows, width), jnp.int32, sharding=sharding)
        for name, width in columns.items()
    }
