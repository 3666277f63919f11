"""The compiler's requests and answers: JSON lines between two processes, and files in the cache."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from finetune_contract import MeshSpec, SliceShape, StageRequest
from finetune_contract.base import Record

type Kind = Literal["Train", "TrainingLoss", "Loss", "TextLoss", "Reference", "Generate", "Likelihood"]
#: Every kind of program that a job runs on its slice.
KINDS: tuple[Kind, ...] = get_args(Kind.__value__)


class SliceProgram(Record):
    """A program that a job runs on its slice."""

    kind: Kind = "Train"
    """Train: the train step. TrainingLoss: on the validation rows, while training. The others belong to the Evaluate
    stage: the method's own loss and the log-probabilities that it is relative to, the loss on texts if the method
    compares pairs, answers, and log-probabilities for benchmarks."""
    adapter: bool = True
    """With the LoRA adapter, if the job trains one; False: the base model alone, as a baseline."""
    width: int = 0
    """Tokens of the longest prompt or text of Generate and Likelihood, rounded up."""
    longest: int = 0
    """Most tokens that any of them may have."""
    count: int = 0
    """Number of prompts or texts."""
    new_tokens: int = 0
    """Most tokens of an answer."""
    temperature: float = 0.0
    top_k: int = 0

    @property
    def of_texts(self) -> bool:
        """Whether the program runs over prompts or texts, as many rows at a time as fit; else over a batch of rows."""
        return self.kind in ("Generate", "Likelihood")

    def __str__(self) -> str:
        base = "" if self.adapter else " of the base model"
        match self.kind:
            case "Generate":
                return f"answers{base} of {self.new_tokens} tokens to prompts of {self.width}"
            case "Likelihood":
                return f"log-probabilities{base} of texts of {self.width} tokens"
            case _:
                return _NAMES[self.kind] + base


_NAMES = {
    "Train": "the train step",
    "TrainingLoss": "loss on the validation rows while training",
    "Loss": "loss on the validation rows",
    "TextLoss": "loss on texts",
    "Reference": "log-probabilities of the reference model",
}


class Candidate(Record):
    """One way to run ``program``; everything else is as in the request."""

    slice: SliceShape
    mesh: MeshSpec
    global_batch: int
    tuning: dict[str, str | int] = {}
    """MaxText's settings beyond the request's."""
    program: SliceProgram = SliceProgram()

    @property
    def place(self) -> str:
        """Slices and their name, such as ``2 x v6e-16``."""
        return f"{self.mesh.slices} x {self.slice.name}" if self.mesh.slices > 1 else self.slice.name

    def __str__(self) -> str:
        mesh = f"data {self.mesh.data} x fsdp {self.mesh.fsdp} x tensor {self.mesh.tensor}"
        tuned = "".join(f", {key} {value}" for key, value in self.tuning.items())
        if self.program.kind != "Train":
            return f"{self.program} on {self.place}"
        return f"{self.place}, batch {self.global_batch}, {mesh}{tuned}"


class CompileSuccess(Record):
    """The candidate compiles. Bytes, operations and seconds are those of one run on one device."""

    kind: Literal["Measured"] = "Measured"
    peak_bytes: int
    limit_bytes: int
    arguments_bytes: int
    """Parameters, those of a reference model, the optimizer's state and the batch."""
    temporaries_bytes: int
    flops: float = 0.0
    hbm_bytes: float = 0.0
    network_bytes: float = 0.0
    step_seconds: tuple[float, float] | None = None
    """Roofline bounds; None for a family without published rates. This and the three before it, ``cost.step_cost``, are
    the train step's alone."""
    rows: int | None = None
    """Rows at a time, for a program that takes as many as fit; else None."""


class MemoryExceeded(Record):
    """The candidate needs more memory than a device has."""

    kind: Literal["Exceeded"] = "Exceeded"
    needed_bytes: int | None
    """None if the compiler did not say."""
    limit_bytes: int
    arguments_bytes: int


class CompileFailure(Record):
    """MaxText or the compiler refuses the candidate, for a reason other than memory."""

    kind: Literal["NotCompiled"] = "NotCompiled"
    message: str
    certain: bool = False
    """Whether the program itself is refused, so that the slice would refuse it too; else only this compilation failed.
    """
    of_mesh: bool = False
    """Whether the model's sizes do not suit the mesh, whatever the program."""


type Answer = CompileSuccess | MemoryExceeded | CompileFailure


class CompileResponse(Record):
    """An answer as it is sent and cached."""

    answer: Annotated[CompileSuccess | MemoryExceeded | CompileFailure, Field(discriminator="kind")]
    fingerprint: str | None = None
    """Fingerprint of the request, in the cache."""
    programs: list[str] = []
    """JAX's cache keys of the compiled programs, when sent: files in ``CompilerConfig.programs``."""


class CompilerConfig(Record):
    """The configuration that the compiler's process is started with."""

    request: StageRequest
    """``hyperparameters.steps`` is the Train stage's number of steps: the learning rates are part of the train step."""
    model: str
    """Folder of the model's configuration."""
    end_ids: list[int] = []
    """Tokens that end an answer, part of the programs that generate."""
    programs: str
    """Folder for compiled programs, each in a file named by its key in JAX's compilation cache."""
