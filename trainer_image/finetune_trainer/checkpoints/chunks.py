"""How the arrays of a converted model are divided into chunks, the unit in which TensorStore reads and writes."""

import math
from collections.abc import Iterable, Sequence

#: Most pieces of the axis that FSDP shards: each host of up to that many reads only its own chunks.
_FSDP_PIECES = 64

LogicalAxes = Sequence[str | None]
"""MaxText's name for each axis of an array."""
Rules = Iterable[tuple[str, str | Sequence[str]]]
"""MaxText's ``logical_axis_rules``: a logical axis, and the mesh axes that it may be sharded over."""


def chunk_shape(
    shape: Sequence[int],
    axes: LogicalAxes,
    rules: Rules,
    *,
    single: Sequence[int],
    itemsize: int,
    least_bytes: int,
    tensor_pieces: int,
) -> tuple[int, ...]:
    """The shape of a chunk of an array of ``shape``.

    Along the axes ``single`` (those that stack layers and experts) a chunk holds one element, so that one layer's
    tensor is written without reading what surrounds it. The axes that FSDP and tensor parallelism shard (the latter
    into at most ``tensor_pieces``, for the chips of one host) are cut into powers of two, as long as the pieces are
    equal and a chunk keeps ``least_bytes``: a larger chunk would be read by hosts that need only a part of it.
    """
    chunk = [1 if axis in single else size for axis, size in enumerate(shape)]
    over = {axis: _mesh_axes(name, rules) for axis, name in enumerate(axes) if axis not in single}
    for mesh_axis, most in (("fsdp", _FSDP_PIECES), ("tensor", tensor_pieces)):
        for axis, mesh_axes in over.items():
            if mesh_axis not in mesh_axes:
                continue
            pieces = 1
            while pieces < most and chunk[axis] % 2 == 0 and math.prod(chunk) // 2 * itemsize >= least_bytes:
                chunk[axis] //= 2
                pieces *= 2
            break  # a mesh axis shards one axis of an array
    return tuple(chunk)


def _mesh_axes(name: str | None, rules: Rules) -> frozenset[str]:
    found: set[str] = set()
    for logical, mesh_axes in rules:
        if logical == name:
            found.update([mesh_axes] if isinstance(mesh_axes, str) else mesh_axes)
    return frozenset(found)
