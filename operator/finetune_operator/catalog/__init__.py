"""Facts as data: TPU slice shapes and what the operator supports of them."""

from finetune_operator.catalog.tpu import (
    CatalogError,
    TpuShape,
    all_shapes,
    shape_by_name,
    shape_by_topology,
    shares_labels,
)

__all__ = ["CatalogError", "TpuShape", "all_shapes", "shape_by_name", "shape_by_topology", "shares_labels"]
