"""Writes safetensors files tensor by tensor, in any order, with one tensor in memory at a time.

The safetensors package needs all tensors of a file in memory. The format is a JSON header with each tensor's dtype,
shape and offsets, followed by the bytes; so the header can be written first, and then each tensor at its offset.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune_trainer.checkpoints import sparse_files
from finetune_trainer.checkpoints.weights import COPIED, INDEX, SINGLE
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter

_METADATA = {"format": "pt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A tensor to be written."""

    name: str
    dtype: str
    """Name of the dtype in safetensors."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * COPIED[self.dtype]


def write(
    out: Path,
    slots: Sequence[Slot],
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    max_shard_bytes: int,
    progress: StageProgressReporter = SILENT,
) -> None:
    """Writes ``out/model.safetensors``, or shards and their index if the tensors exceed ``max_shard_bytes``.

    The files keep the order of ``slots``; ``tensors`` yields each tensor once, in any order.
    """
    shards = _shards(slots, max_shard_bytes)
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    )
    places: dict[str, tuple[Path, int, int]] = {}
    for file, shard in zip(names, shards, strict=True):
        for slot, start in _begin(out / file, shard):
            places[slot.name] = (out / file, start, slot.size)
    total = sum(slot.size for slot in slots)
    progress.begin("writing the weights", len(slots), "tensors", total_bytes=total)
    for name, tensor in tensors:
        path, start, size = places.pop(name)
        data = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        if data.nbytes != size:
            raise ValueError(f"{name} has {data.nbytes} bytes, not {size}")
        with path.open("r+b") as stream:
            stream.seek(start)
            stream.write(data.data)
        progress.advance(1, size)
    if places:
        raise ValueError(f"no values for {sorted(places)[:3]}")
    if len(shards) > 1:
        weight_map = {slot.name: file for file, shard in zip(names, shards, strict=True) for slot in shard}
        index = {
            "metadata": {"total_size": total},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (out / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(slots: Iterable[Slot], most: int) -> list[list[Slot]]:
    """Distributes the tensors in order over shards of at most ``most`` bytes, or of one larger tensor."""
    found: list[list[Slot]] = [[]]
    size = 0
    for slot in slots:
        if found[-1] and size + slot.size > most:
            found.append([])
            size = 0
        found[-1].append(slot)
        size += slot.size
    return found


def _begin(path: Path, shard: Sequence[Slot]) -> list[tuple[Slot, int]]:
    """Writes the header and reserves the file's length. Returns the offset of each tensor in bytes."""
    header: dict[str, Mapping[str, object]] = {"__metadata__": _METADATA}
    starts, end = [], 0
    for slot in shard:
        header[slot.name] = {
            "dtype": slot.dtype,
            "shape": list(slot.shape),
            "data_offsets": [end, end + slot.size],
        }
        starts.append(end)
        end += slot.size
    data = sparse_files.begin(path, header, end)
    return [(slot, data + start) for slot, start in zip(shard, starts, strict=True)]
