"""What the compiler is asked, and what it answers: JSON lines between two processes, and files in the cache."""

from typing import Annotated, Literal

from pydantic import Field

from finetune_contract import MeshSpec, SliceShape
from finetune_contract.base import Record


class Candidate(Record):
    """One way to train: the rest is as the request says."""

    slice: SliceShape
    mesh: MeshSpec
    global_batch: int
    tuning: dict[str, str | int] = {}
    """MaxText's settings beyond the request's."""

    @property
    def place(self) -> str:
        """``2 x v6e-16``."""
        return f"{self.mesh.slices} x {self.slice.name}" if self.mesh.slices > 1 else self.slice.name

    def __str__(self) -> str:
        mesh = f"data {self.mesh.data} x fsdp {self.mesh.fsdp} x tensor {self.mesh.tensor}"
        tuned = "".join(f", {key} {value}" for key, value in self.tuning.items())
        return f"{self.place}, batch {self.global_batch}, {mesh}{tuned}"


class Measured(Record):
    """It compiles. Bytes, operations and seconds are of one step on one device."""

    kind: Literal["Measured"] = "Measured"
    peak_bytes: int
    limit_bytes: int
    arguments_bytes: int
    """Parameters, those that DPO began with, optimizer's state and batch."""
    temporaries_bytes: int
    flops: float
    hbm_bytes: float
    network_bytes: float
    step_seconds: tuple[float, float] | None = None
    """Roofline; None for a family whose rates nobody has published."""


class Exceeded(Record):
    """It needs more memory than a device has."""

    kind: Literal["Exceeded"] = "Exceeded"
    needed_bytes: int | None
    """None: the compiler did not say."""
    limit_bytes: int
    arguments_bytes: int


class NotCompiled(Record):
    """MaxText or the compiler does not take it, for another reason than memory."""

    kind: Literal["NotCompiled"] = "NotCompiled"
    message: str


type Answer = Measured | Exceeded | NotCompiled


class Answered(Record):
    """As it travels and is kept."""

    answer: Annotated[Measured | Exceeded | NotCompiled, Field(discriminator="kind")]
    fingerprint: str | None = None
    """Of the question, where it is kept."""
