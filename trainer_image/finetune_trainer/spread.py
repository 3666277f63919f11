"""Batches spread over the devices of a mesh."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: The axes of the mesh over which a batch's rows are spread.
ROW_AXES = ("data", "fsdp")


def to_devices(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The arrays spread over the mesh by rows. Every process holds the whole batch and gives its part, so the result
    does not depend on how devices are dealt out to processes."""
    sharding = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    return {
        name: jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
        for name, array in batch.items()
    }
