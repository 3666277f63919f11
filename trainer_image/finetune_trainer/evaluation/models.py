"""A model to evaluate, loaded onto the mesh."""

from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh
from maxtext.utils import lora_utils, model_creation_utils


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """Parameters on the devices; ``config`` is MaxText's."""

    model: Any
    config: Any
    mesh: Mesh


def load(config: Any) -> LoadedModel:  # noqa: ANN401
    """The parameters at ``config.load_parameters_path``, without any adapter."""
    model, mesh = model_creation_utils.from_pretrained(config)
    nnx.pop(model, nnx.Intermediate)
    return LoadedModel(model=model, config=config, mesh=mesh)


def with_adapter(base: LoadedModel, config: Any) -> LoadedModel:  # noqa: ANN401
    """The same parameters with the adapter at ``config.lora.lora_restore_path`` applied. ``base`` is used up."""
    with jax.set_mesh(base.mesh), logical_axis_rules(config.logical_axis_rules):
        model = lora_utils.apply_lora_to_model(base.model, base.mesh, config)
        nnx.pop(model, nnx.Intermediate)
        lora_utils.restore_lora_from_path(model, config)
    return LoadedModel(model=model, config=config, mesh=base.mesh)
