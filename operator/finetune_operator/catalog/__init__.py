"""Facts as data: TPU slices by name, what nodes leave to pods, Pathways' images, XLA flags."""

from finetune_contract.tpu import TpuShape as TpuShape
from finetune_contract.tpu import all_shapes as all_shapes
from finetune_operator.catalog.gke_nodes import host_requests as host_requests
from finetune_operator.catalog.pathways import jax_of_image as jax_of_image
from finetune_operator.catalog.pathways import pathways_images as pathways_images
from finetune_operator.catalog.tpu import CatalogError as CatalogError
from finetune_operator.catalog.tpu import shape_by_name as shape_by_name
from finetune_operator.catalog.tpu import shape_by_topology as shape_by_topology
from finetune_operator.catalog.tpu import shares_labels as shares_labels
from finetune_operator.catalog.xla_flags import default_libtpu_args as default_libtpu_args
