"""Facts as data: TPU slices by name, what nodes leave to pods, Pathways' images, XLA flags."""

from finetune_contract.tpu import TpuShape, all_shapes
from finetune_operator.catalog.gke_nodes import host_requests
from finetune_operator.catalog.pathways import jax_of_image, pathways_images
from finetune_operator.catalog.tpu import (
    CatalogError,
    shape_by_name,
    shape_by_topology,
    shares_labels,
)
from finetune_operator.catalog.xla_flags import default_libtpu_args

__all__ = [
    "CatalogError",
    "TpuShape",
    "all_shapes",
    "default_libtpu_args",
    "host_requests",
    "jax_of_image",
    "pathways_images",
    "shape_by_name",
    "shape_by_topology",
    "shares_labels",
]
