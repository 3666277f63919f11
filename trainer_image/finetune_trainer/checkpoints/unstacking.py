"""Reads the layers of a stacked array one by one, from checkpoints whose chunks hold many layers."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np

from finetune_trainer.checkpoints.memmap import memmap_array
from finetune_trainer.checkpoints.reading import CheckpointReader

#: Arrays of up to this many bytes are read at once.
_SMALL = 256 * 2**20


@contextmanager
def unstack(
    checkpoint: CheckpointReader, key: str, stacked: Sequence[int], scratch: Path
) -> Iterator[Iterator[np.ndarray]]:
    """The parts of one array along the axes ``stacked``, in row-major order of those axes.

    Training writes a device's shard as one chunk: a share of every layer. Such an array is read once, chunk by chunk,
    into a file below ``scratch`` that holds layer after layer; this temporarily takes the array's size on disk, and a
    chunk's in memory. Raises ``CheckpointUnreadableError``, and ``OSError`` if the disk has too little space.
    """
    array = checkpoint.arrays[key]
    places: list[Iterable[int | slice]] = [
        range(array.shape[axis]) if axis in stacked else [slice(None)] for axis in range(len(array.shape))
    ]
    if all(array.chunks[axis] == 1 for axis in stacked):
        yield (checkpoint.read(key, index) for index in product(*places))
        return
    if math.prod(array.shape) * array.dtype.itemsize <= _SMALL:
        whole = checkpoint.read(key)
        yield (whole[index] for index in product(*places))
        return
    order = (*stacked, *(axis for axis in range(len(array.shape)) if axis not in stacked))
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=scratch) as file:
        spread = memmap_array(file, array.dtype, tuple(array.shape[axis] for axis in order))
    for index, block in checkpoint.blocks(key):
        spread[tuple(index[axis] for axis in order)] = block.transpose(order)
    yield (spread[corner] for corner in np.ndindex(*(array.shape[axis] for axis in stacked)))
