"""What a train step keeps of its forward pass for the backward pass, by MaxText's remat policy. Pure.

Counted in values per token; a value has the size of the compute precision.
"""

from dataclasses import dataclass

from finetune_operator.planning.estimate.model_shape import ModelShape

#: Preflight's policies in the order of its search, which keep less and less. The last one uses the host's memory.
POLICIES = ("minimal_with_context", "save_qkv_proj", "full", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerValues:
    """Values per token that one layer computes."""

    hidden: int
    projections: int
    """Queries, keys and values."""
    context: int
    """The result of attention, before its output projection."""
    inner: int
    """Both inner products of the MLP, or of the chosen experts."""
    routed: int
    """The copies of a token that its experts read; 0 without experts."""

    @property
    def all(self) -> int:
        return 4 * self.hidden + self.projections + self.context + self.inner + 2 * self.routed


def layer_values(model: ModelShape, number: int) -> LayerValues:
    """Returns the values of that layer."""
    shapes = model.layer(number)
    queries, context = model.heads * model.head_dim, model.heads * model.value_dim
    keys = 2 * model.kv_heads * model.head_dim if model.latent is None else queries + context
    experts = any(len(shape) == 3 for shape in shapes.values())
    return LayerValues(
        hidden=model.hidden_size,
        projections=queries + keys,
        context=context,
        inner=sum(
            shape[-2] * (model.experts_chosen if len(shape) == 3 else 1)
            for name, shape in shapes.items()
            if name.endswith(("gate_proj", "up_proj"))
        ),
        routed=model.experts_chosen * model.hidden_size if experts else 0,
    )


def kept_values(model: ModelShape, remat: str) -> int:
    """Returns the values per token that all layers keep with the policy, one of ``POLICIES``."""
    if remat == "offload":
        return 0
    inputs = model.hidden_size * -(-model.layers // model.block_layers)
    layers = [layer_values(model, number) for number in range(model.layers)]
    if remat == "full":
        return inputs
    if remat == "save_qkv_proj":
        return inputs + sum(each.projections for each in layers)
    return inputs + sum(
        each.projections + each.context + each.inner + 2 * each.hidden + each.routed for each in layers
    )


def block_values(model: ModelShape) -> int:
    """Returns the values per token of the layers that are computed again together."""
    return model.block_layers * layer_values(model, model.layers - 1).all
