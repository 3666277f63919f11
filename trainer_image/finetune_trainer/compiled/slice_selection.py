"""Selects the first of a job's possible slices on which its training and all its other programs fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from finetune_contract import ExitCode, MemoryCheckSpec, MemoryOutcome, SliceShape, StageRequest
from finetune_contract.result import UnfitSlice
from finetune_trainer.compiled.compile_protocol import Candidate, MemoryExceeded
from finetune_trainer.compiled.search import ModelBounds, heads_divide
from finetune_trainer.errors import StageError

OTHER_MESH = (
    "Raise hyperparameters.globalBatchSize to the number of devices, so that no devices share a row; or set another "
    "resources.parallelism or another slice. No TPU time was used."
)
#: Limit of the contract's ``UnfitSlice.why``.
_WHY_CHARACTERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmallSlice:
    """A slice on which the training was compiled and does not fit."""

    start: Candidate
    tried: Candidate
    """The last candidate compiled for it."""
    answer: MemoryExceeded


@dataclass(slots=True, kw_only=True)
class SliceSearchState:
    """What is known about the slices so far."""

    several: bool
    """Whether there is more than one slice."""
    unfit: list[UnfitSlice] = field(default_factory=list)
    small: list[TooSmallSlice] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    """One line for each candidate that was compiled."""

    def reject(self, start: Candidate, why: str) -> None:
        """Records why a slice is not used. ``why`` completes a sentence that begins with the slice's name."""
        self.unfit.append(UnfitSlice(slice=without_flags(start.slice), why=why[:_WHY_CHARACTERS]))

    def settled(self, outcome: MemoryOutcome, start: Candidate) -> MemoryOutcome:
        """``outcome``, which is for ``start``, with what was considered before it."""
        if not self.several:
            return outcome
        return outcome.model_copy(update={"chosen": without_flags(start.slice), "unfit": list(self.unfit)})

    @property
    def summary(self) -> str:
        return "; ".join(f"{each.slice.name} {each.why}" for each in self.unfit)


def slice_candidates(request: StageRequest, check: MemoryCheckSpec) -> list[Candidate]:
    """The slices that the job may have, in the order in which they are tried."""
    batch = request.hyperparameters.global_batch_size
    first = Candidate(slice=check.slice, mesh=request.mesh, global_batch=batch)
    others = (Candidate(slice=each.slice, mesh=each.mesh, global_batch=batch) for each in check.candidates)
    return [first, *others]


def without_flags(shape: SliceShape) -> SliceShape:
    return shape.model_copy(update={"flags": None})


def select_first_fitting(
    candidates: Sequence[Candidate],
    model: ModelBounds,
    evaluate: Callable[[Candidate, SliceSearchState], MemoryOutcome | None],
) -> tuple[MemoryOutcome | None, SliceSearchState]:
    """Returns the outcome for the first candidate that can be used, and what was considered on the way.

    The outcome is None if no candidate can be used. ``evaluate`` returns the outcome for one candidate; for one that
    cannot be used it returns None and records the reason in its second argument. Of several candidates, those whose
    mesh does not divide the model's heads are rejected without it; a single one is left to ``evaluate``, which reports
    that as an error of the job.
    """
    considered = SliceSearchState(several=len(candidates) > 1)
    for start in candidates:
        if considered.several and not heads_divide(start.mesh, model):
            considered.reject(
                start,
                f"has {start.mesh.devices} devices for {start.global_batch} rows, and the model's {model.heads} heads "
                f"and {model.kv_heads} kv heads do not divide among the {start.mesh.tensor} that would share a row",
            )
            continue
        outcome = evaluate(start, considered)
        if outcome is not None:
            return considered.settled(outcome, start), considered
    return None, considered


def no_slice_fits_error(considered: SliceSearchState, *, fix: str) -> StageError:
    """``StageError`` 78 if no slice that the job may have holds the training; 64 if none can divide the batch.

    ``fix``: what to change so that the training fits, as a sentence.
    """
    if not considered.small:
        return StageError(
            ExitCode.BAD_REQUEST, "BatchNotDivisible",
            "the batch cannot be divided among the devices of any slice that the job may use",
            where="hyperparameters.globalBatchSize", actual=considered.summary,
            fix="Use a batch that is a multiple of the number of devices, or name a slice in resources.tpu.",
        )  # fmt: skip
    last, several = considered.small[-1], considered.several
    policy = last.tried.tuning.get("remat_policy")
    kept = f" and remat_policy {policy}" if policy else ""
    needs, on = (considered.summary, "") if several else (considered.unfit[-1].why, f" on {last.start.place}")
    return StageError(
        ExitCode.OUT_OF_MEMORY,
        "MemoryExceeded",
        "the training fits none of the slices that the job may use"
        if several
        else "the training does not fit the slice's memory",
        where="spec.resources",
        actual=f"{needs} per device with batch {last.start.global_batch}{kept}{on}",
        fix=f"{fix} No TPU time was used.",
    )
