"""Facts as data: TPU slice shapes, what the operator supports of them, and the keys of the engine."""

from finetune_operator.catalog.engine import engine_keys
from finetune_operator.catalog.tpu import (
    CatalogError,
    TpuShape,
    all_shapes,
    shape_by_name,
    shape_by_topology,
    shares_labels,
)

__all__ = [
    "CatalogError",
    "TpuShape",
    "all_shapes",
    "engine_keys",
    "shape_by_name",
    "shape_by_topology",
    "shares_labels",
]
