"""The storage layout of converted models and checkpoints, which depends on the controller.

Pathways' workers read and write arrays themselves, but support neither OCDBT (many arrays in one database) nor zarr 3.
What they cannot read passes through the memory of the one JAX process: hundreds of GiB for a large model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune_contract import MeshSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Layout of MaxText's layers and of Orbax's files."""

    name: str
    """Part of a converted model's identity."""
    ocdbt: bool
    zarr3: bool
    least_chunk_bytes: int
    """Minimum size of a chunk in bytes."""
    tensor_pieces: int
    """Most pieces of the axis that tensor parallelism shards."""

    def settings(self) -> dict[str, bool]:
        """The layout as MaxText's settings."""
        return {"checkpoint_storage_use_ocdbt": self.ocdbt, "checkpoint_storage_use_zarr3": self.zarr3}

    def metadata(self, chunks: Sequence[int], itemsize: int) -> dict[str, Any]:
        """An array's zarr metadata: its chunks and their compression."""
        if not self.zarr3:
            # As Orbax writes them: which other codecs Pathways' workers decode is not documented.
            return {"chunks": list(chunks), "compressor": {"id": "zstd", "level": 1}}
        return {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                # Bfloat16 weights in float32 have two zero bytes in four. With those grouped together by the shuffle,
                # lz4 makes them 2.2 times smaller in a third of the time that zstd takes for 2.1.
                {
                    "name": "blosc",
                    "configuration": {
                        "cname": "lz4",
                        "clevel": 5,
                        "shuffle": "shuffle",
                        "typesize": itemsize,
                    },
                },
                {"name": "crc32c"},
            ],
        }


OCDBT = CheckpointLayout(
    name="scanned/float32", ocdbt=True, zarr3=True, least_chunk_bytes=2**18, tensor_pieces=4
)
"""Orbax's default. Adjacent chunks are stored in one file, so small ones cost little."""
PLAIN = CheckpointLayout(
    name="scanned/float32/zarr2", ocdbt=False, zarr3=False, least_chunk_bytes=2**20, tensor_pieces=1
)
"""A folder of zarr 2 files per array. Each chunk is a file, so there are no more of them than hosts need."""


def layout_for(mesh: MeshSpec) -> CheckpointLayout:
    """The layout that the mesh's controller reads."""
    return PLAIN if mesh.controller == "Pathways" else OCDBT
