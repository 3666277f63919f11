"""Shards batches and states over the devices of a mesh."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: The axes of the mesh over which a batch's rows are sharded.
ROW_AXES = ("data", "fsdp")


@contextlib.contextmanager
def mesh_context(config: Any, mesh: Mesh) -> Iterator[None]:
    """Context with the mesh and the rules of MaxText's ``config``, in which every program is traced."""
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        yield


def shard_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The arrays sharded over the mesh by rows.

    Every process holds the whole batch and contributes its part, so the result does not depend on which process has
    which devices.
    """
    sharding = NamedSharding(mesh, PartitionSpec(ROW_AXES))
    return {
        name: jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
        for name, array in batch.items()
    }


def canonical_sharding(sharding: NamedSharding, dimensions: int) -> NamedSharding:
    """The same placement without the mesh's axes of size 1, with an entry per dimension.

    Placements that are equal but spelled differently make programs that the compilation cache distinguishes: MaxText,
    Optax and Orbax each spell them differently, so that a state from a checkpoint would cause another compilation.
    """
    sizes = sharding.mesh.shape

    def axes(entry: Any) -> Any:
        names = entry if isinstance(entry, tuple) else (entry,)
        divided = tuple(name for name in names if name is not None and sizes[name] > 1)
        return divided[0] if len(divided) == 1 else divided or None

    entries = [axes(entry) for entry in sharding.spec]
    spec = PartitionSpec(*entries, *[None] * (dimensions - len(entries)))
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def with_canonical_sharding(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The same values on the same devices, with the placement as in ``canonical_sharding``.

    An array on one device of this process is replicated on every device of the mesh. Arrays that are already on the
    mesh are not copied.
    """
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        return array  # a random key, which no checkpoint holds
    lies = array.sharding
    if isinstance(lies, NamedSharding):
        placed: jax.Array = jax.device_put(array, canonical_sharding(lies, array.ndim))
    else:
        everywhere = NamedSharding(mesh, PartitionSpec(*[None] * array.ndim))
        placed = jax.device_put(np.asarray(array), everywhere)
    return placed
