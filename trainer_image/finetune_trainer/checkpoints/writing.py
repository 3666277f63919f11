"""Writes a MaxText checkpoint slice by slice, with the memory of a few slices.

The files are those that Orbax writes from whole arrays. Orbax decides when the checkpoint is complete and writes its
metadata; only the values bypass it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, override

import numpy as np
import tensorstore as ts
from orbax import checkpoint as ocp
from orbax.checkpoint import type_handlers

# Private helpers that the pinned release's own handlers use for writing.
from orbax.checkpoint._src.futures import future
from orbax.checkpoint._src.serialization import tensorstore_utils

from finetune_trainer.checkpoints.layout import CheckpointLayout
from finetune_trainer.storage import engine_path

Index = tuple[int | slice, ...]

#: Bytes of slices that may wait for storage. Each time the queue is empty, OCDBT may write its manifest, and Cloud
#: Storage takes about one write per second to the same object.
_WAITING = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedArray:
    """An array whose values come in slices, which together cover it and each consist of whole chunks."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]
    slices: Callable[[], Iterator[tuple[Index, np.ndarray]]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def save(
    folder: str, arrays: Mapping[str, Any], layout: CheckpointLayout, metadata: Mapping[str, Any]
) -> None:
    """Writes ``folder/items``, complete or not at all, from a tree of ``StreamedArray`` and numbers.

    ``metadata`` is what MaxText stores beside it. Raises whatever a ``slices`` raises.
    """
    registry = type_handlers.create_type_handler_registry(
        (StreamedArray, _Slices(layout)), (int, type_handlers.ScalarHandler())
    )
    items = ocp.PyTreeCheckpointHandler(
        use_ocdbt=layout.ocdbt, use_zarr3=layout.zarr3, type_handler_registry=registry
    )
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(items=items)) as checkpointer:
        checkpointer.save(
            engine_path(folder),
            args=ocp.args.Composite(items=ocp.args.PyTreeSave(arrays)),
            custom_metadata=dict(metadata),
        )


class _Slices(type_handlers.NumpyHandler):  # type: ignore[misc]  # Orbax ships no types
    """Orbax's handler for arrays on the host, with another way to write their values."""

    def __init__(self, layout: CheckpointLayout) -> None:
        super().__init__()
        self._layout = layout

    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return [future.CommitFutureAwaitingContractedSignals(self._write(values, infos), name="slices")]

    async def _write(self, values: Any, infos: Any) -> None:
        waiting = _Waiting()
        for value, info in zip(values, infos, strict=True):
            await info.await_path_creation()
            spec = self._spec(value, info)
            store = await ts.open(ts.Spec(spec), create=True, open=True, context=info.ts_context)
            folder: Any = store.kvstore
            encoder = await _Encoder.of(value, spec) if info.is_ocdbt_checkpoint else None
            for index, part in value.slices():
                await waiting.make_room(part.nbytes)
                if encoder is None:
                    written = store[index].write(part, can_reference_source_data_indefinitely=True)
                    waiting.add(written, part.nbytes)
                    continue
                async for key, encoded in encoder.chunks(index, part):
                    waiting.add(folder.write(key, encoded), len(encoded))
        await waiting.all()

    def _spec(self, value: StreamedArray, info: Any) -> dict[str, Any]:
        spec: dict[str, Any] = tensorstore_utils.build_array_write_spec(
            info=info, global_shape=value.shape, local_shape=value.shape, dtype=value.dtype,
            use_ocdbt=info.is_ocdbt_checkpoint, process_index=0 if info.is_ocdbt_checkpoint else None,
        ).json  # fmt: skip
        spec["metadata"] |= self._layout.metadata(value.chunks, value.dtype.itemsize)
        return spec


class _Waiting:
    """Writes in progress."""

    def __init__(self) -> None:
        self._writes: list[Any] = []
        self._held = 0

    async def make_room(self, nbytes: int) -> None:
        if self._held and self._held + nbytes > _WAITING:
            await self.all()

    def add(self, write: Any, nbytes: int) -> None:
        self._writes.append(_done(write))
        self._held += nbytes

    async def all(self) -> None:
        await asyncio.gather(*self._writes)
        self._writes, self._held = [], 0


class _Encoder:
    """Encodes an array's slices so that OCDBT gets their chunks in order.

    What one host reads under FSDP is then one range of a file: Orbax reads what is less than a megabyte apart in one
    request. TensorStore itself writes chunks as its threads finish them, and each host would read the ranges of all.
    """

    def __init__(self, memory: Any, major: int) -> None:
        self._memory, self._major = memory, major

    @classmethod
    async def of(cls, value: StreamedArray, spec: Mapping[str, Any]) -> Self:
        """``spec``: the zarr 3 spec of the array in storage."""
        kept = {name: spec[name] for name in ("driver", "metadata", "dtype") if name in spec}
        memory = await ts.open(
            ts.Spec({**kept, "kvstore": {"driver": "memory"}}),
            create=True,
            open=True,
            context=ts.Context(),
        )
        pieces = [size // chunk for size, chunk in zip(value.shape, value.chunks, strict=True)]
        sharded = [axis for axis in range(len(pieces)) if value.chunks[axis] != 1] or [0]
        return cls(memory, max(sharded, key=pieces.__getitem__))

    async def chunks(self, index: Index, part: np.ndarray) -> AsyncIterator[tuple[str, bytes]]:
        """Key and content of each chunk, ordered by the axis that is cut into the most pieces."""
        await self._memory[index].write(part, can_reference_source_data_indefinitely=True)
        store = self._memory.kvstore
        keys = [key.decode() for key in await store.list() if key.startswith(b"c/")]
        for key in sorted(keys, key=self._place):
            yield key, (await store.read(key)).value
        await store.delete_range(ts.KvStore.KeyRange(b"c/", b"c0"))

    def _place(self, key: str) -> tuple[int, ...]:
        places = [int(part) for part in key.split("/")[1:]]
        return (places[self._major], *places)


async def _done(written: Any) -> None:
    await written
