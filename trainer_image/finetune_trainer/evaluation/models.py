"""Loads a model to evaluate onto the mesh."""

from dataclasses import dataclass
from typing import Any

from flax import nnx
from jax.sharding import Mesh

from finetune_trainer.conversion.loading import pretrained
from finetune_trainer.engine.lora import with_lora
from finetune_trainer.engine.sharding import mesh_context


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """A model with its parameters on the devices. ``config`` is MaxText's configuration."""

    model: Any
    config: Any
    mesh: Mesh


def load(config: Any) -> LoadedModel:
    """Loads the parameters at ``config.load_parameters_path``, without an adapter."""
    model, mesh = pretrained(config)
    nnx.pop(model, nnx.Intermediate)
    return LoadedModel(model=model, config=config, mesh=mesh)


def with_adapter(base: LoadedModel, config: Any) -> LoadedModel:
    """Applies the adapter at ``config.lora.lora_restore_path`` to ``base``, which must not be used afterwards."""
    with mesh_context(config, base.mesh):
        model = with_lora(base.model, base.mesh, config)
    return LoadedModel(model=model, config=config, mesh=base.mesh)
