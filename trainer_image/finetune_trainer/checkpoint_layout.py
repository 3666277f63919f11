"""How converted models and checkpoints lie in storage, which the controller decides.

Pathways' workers read and write arrays themselves, but neither OCDBT (many arrays in one database) nor zarr 3. What
they cannot read passes through the memory of the one JAX process: hundreds of GiB for a large model.
"""

from dataclasses import dataclass

from finetune_contract import MeshSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayout:
    """Of MaxText's layers and of Orbax's files."""

    name: str
    """Part of a converted model's identity."""
    ocdbt: bool
    zarr3: bool

    def settings(self) -> dict[str, bool]:
        """As MaxText calls them."""
        return {"checkpoint_storage_use_ocdbt": self.ocdbt, "checkpoint_storage_use_zarr3": self.zarr3}


OCDBT = CheckpointLayout(name="scanned/float32", ocdbt=True, zarr3=True)
"""Orbax's own default."""
PLAIN = CheckpointLayout(name="scanned/float32/zarr2", ocdbt=False, zarr3=False)
"""A folder of zarr 2 files for each array."""


def layout_for(mesh: MeshSpec) -> CheckpointLayout:
    """The layout that the mesh's controller reads."""
    return PLAIN if mesh.controller == "Pathways" else OCDBT
