"""Reads MaxText and Tunix checkpoints of any layout by slices."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorstore as ts
from orbax import checkpoint as ocp

from finetune_trainer.checkpoints.writing import Index
from finetune_trainer.storage import engine_path, local_path

_MANIFEST = "manifest.ocdbt"
#: Members of a training state's tree that are not parameters.
_STATE = ("opt_state", "optimizer", "step")


class CheckpointUnreadableError(Exception):
    """There is no checkpoint, or a part of it is missing or damaged; the message is Orbax's or TensorStore's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """An array's metadata, without its values."""

    name: str
    """Orbax's name of the array."""
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]


class CheckpointReader:
    """The parameters of one checkpoint, by MaxText's dashed key (``params-decoder-layers-mlp-wo-kernel``).

    Reads converted models (``.../0/items``) and training's ``checkpoints/<step>/model_params``, full or LoRA (keys end
    in ``_lora_a`` and ``_lora_b``).
    """

    def __init__(self, items: str) -> None:
        """Raises ``CheckpointUnreadableError``."""
        self._items = items.rstrip("/")
        self._open: dict[str, Any] = {}
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                tree = checkpointer.metadata(engine_path(self._items)).item_metadata.tree
            self.arrays: Mapping[str, ArrayMetadata] = dict(_leaves(tree, ()))
        except (ValueError, OSError, KeyError, AttributeError) as error:
            raise CheckpointUnreadableError(" ".join(str(error).split())) from error

    def read(self, key: str, index: Index = ()) -> np.ndarray:
        """A slice of one array, in the array's dtype. Raises ``CheckpointUnreadableError``."""
        try:
            store = self._open.get(key)
            if store is None:
                store = self._open[key] = ts.open(self._spec(self.arrays[key].name)).result()
            found: np.ndarray = store[index].read().result()
        except ValueError as error:
            raise CheckpointUnreadableError(" ".join(str(error).split())) from error
        return found

    def blocks(self, key: str) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """The whole array chunk by chunk, each with its index."""
        array = self.arrays[key]
        for corner in np.ndindex(
            *(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
        ):
            index = tuple(
                slice(at * chunk, min((at + 1) * chunk, size))
                for at, chunk, size in zip(corner, array.chunks, array.shape, strict=True)
            )
            yield index, self.read(key, index)

    def _spec(self, name: str) -> dict[str, Any]:
        return {
            "driver": "zarr3" if self._zarr3 else "zarr",
            "kvstore": {"driver": "ocdbt", "base": _kvstore(self._items), "path": f"{name}/"}
            if self.ocdbt
            else _kvstore(f"{self._items}/{name}"),
            "open": True,
            # A missing chunk is an error, not zeros.
            "fill_missing_data_reads": False,
        }

    @cached_property
    def ocdbt(self) -> bool:
        """Whether all arrays are in one database (OCDBT); else each has its own folder."""
        return bool(self._folder.read(_MANIFEST).result().state == "value")

    @cached_property
    def _zarr3(self) -> bool:
        return bool(json.loads(self._folder.read("_METADATA").result().value).get("use_zarr3"))

    @cached_property
    def _folder(self) -> Any:
        return ts.KvStore.open(_kvstore(self._items)).result()


def _kvstore(folder: str) -> dict[str, str]:
    local = local_path(folder)
    if local is not None:
        return {"driver": "file", "path": f"{local}/"}
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}


def _leaves(tree: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ArrayMetadata]]:
    """The arrays by the names that MaxText's converter gives them, without training state.

    Accepts the trees of Linen and NNX alike.
    """
    if isinstance(tree, Mapping):
        for name, below in tree.items():
            if (not at and name in _STATE) or re.search(r"(^|_)rngs$", str(name)):
                continue
            # NNX holds each array as the member "value"; attention has a module of that name.
            wrapped = name in ("params", "base") or (name == "value" and not isinstance(below, Mapping))
            if wrapped:
                yield from _leaves(below, at)
            elif str(name).isdigit() and at:  # an element of a list of layers
                yield from _leaves(below, (*at[:-1], f"{at[-1]}_{name}"))
            else:
                yield from _leaves(below, (*at, str(name)))
    elif getattr(tree, "shape", None) is not None:
        chunks = getattr(tree.storage, "chunk_shape", None) if tree.storage is not None else None
        yield (
            "-".join(("params", *at)),
            ArrayMetadata(
                name=tree.name,
                shape=tuple(tree.shape),
                dtype=np.dtype(tree.dtype),
                chunks=tuple(chunks or tree.shape),
            ),
        )
