"""Checks whether the job's train step fits its slice, and chooses settings with which it does."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from finetune_contract import ExitCode, MemoryCheckSpec, MemoryOutcome, SliceShape, StageRequest
from finetune_contract.result import MOST_TRIED
from finetune_trainer.compiled.analytic import check_analytically
from finetune_trainer.compiled.compile_client import CompileClient, CompilerUnavailable
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.compiled.cost import step_cost
from finetune_trainer.compiled.remedies import remedies
from finetune_trainer.compiled.search import ModelBounds, SearchSpace, describe, search
from finetune_trainer.compiled.slice_selection import (
    OTHER_MESH,
    SliceSearchState,
    TooSmallSlice,
    no_slice_fits_error,
    select_first_fitting,
    slice_candidates,
)
from finetune_trainer.engine import widths
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from finetune_trainer.storage import StorageClient

_LOG = logging.getLogger(__name__)
#: Seconds until the search stops, and until no other program is compiled. A node with two cores compiles some four
#: train steps in the first, and another four programs until the second.
_SEARCH_SECONDS, _PATIENCE_SECONDS = 360.0, 600.0


def check_memory(
    request: StageRequest,
    plan: ModelPlan,
    model: Path,
    store: StorageClient,
    environment: Mapping[str, str],
    *,
    programs: Callable[[], Sequence[SliceProgram]] = tuple,
    end_ids: frozenset[int] = frozenset(),
    progress: StageProgressReporter = SILENT,
) -> MemoryOutcome | None:
    """Checks that the job's programs fit into the memory of its slice, and selects the slice if the job leaves it open.

    Returns None if the request has no memory check. If nothing could be determined (no compiler, or one that fails),
    the outcome's ``unknown`` says why, and the job continues.

    Args:
        request: its ``memory`` selects the check: by the compiler, or by a lower bound without it.
        plan: plan of the model.
        model: folder with the model's config.json.
        store: storage for compiled programs.
        environment: environment of the compiler's processes.
        programs: returns the job's programs on its slice, the most important ones first; the train step is always one.
            Called only if the train step fits.
        end_ids: tokens that end an answer; part of the programs that generate.
        progress: counts the programs that have been compiled.

    Raises:
        StageError: 78 if the train step or one of ``programs`` does not fit, with what to change; 64 for a program that
            the compiler refuses.
    """
    check = request.memory
    if check is None:
        return None
    sizes = bounds(request, plan)
    if check.source == "Analytic":
        return check_analytically(request, plan, check, sizes)

    def seconds(candidate: Candidate) -> float:
        interval = step_cost(plan, request, candidate).seconds(candidate.slice.family)
        return interval[1] if interval else math.inf

    with CompileClient(request, plan, model, store, environment, end_ids=end_ids) as client:
        progress.begin("compiling the train step", unit="programs")
        compiled = _Compiled(
            client=client,
            choices=choices(request, check),
            model=sizes,
            seconds=seconds,
            programs=cache(programs),
            progress=progress,
        )
        outcome, considered = select_first_fitting(slice_candidates(request, check), sizes, compiled.evaluate)
        if outcome is not None:
            return outcome.model_copy(update={"cached": client.compiled == 0 and not outcome.unknown})
        raise compiled.refused(considered, check.larger)


@dataclass(slots=True, kw_only=True)
class _Compiled:
    """Evaluates slices, one after the other, with the compiler."""

    client: CompileClient
    choices: SearchSpace
    model: ModelBounds
    seconds: Callable[[Candidate], float]
    """The estimated duration of a candidate's step."""
    programs: Callable[[], Sequence[SliceProgram]]
    progress: StageProgressReporter
    _began: float = field(default_factory=time.monotonic, init=False)
    _refusal: StageError | None = field(default=None, init=False)
    """Why the last slice was refused, if not for the train step's memory."""

    def _expired(self, seconds: float) -> bool:
        return time.monotonic() > self._began + seconds

    def _ask(self, candidate: Candidate) -> Answer:
        answer = self.client(candidate)
        self.progress.advance()
        return answer

    def evaluate(self, start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        """The outcome for ``start``, also if nothing could be determined about it; None if the job does not fit.

        Raises ``StageError`` 64 for a program that the compiler refuses on the first slice.
        """
        if considered.unfit and self._expired(_PATIENCE_SECONDS):
            return _unknown(
                start,
                considered,
                "The training does not fit the cheaper slices; for this one it was not compiled in time.",
            )
        self._refusal = None
        try:
            return self._compiled(start, considered)
        except CompilerUnavailable as error:
            _LOG.warning("%s", error)
            return _unknown(start, considered, str(error))
        except (ProgramExceeded, ProgramRefused, MeshRefused) as error:
            if isinstance(error, ProgramRefused) and not considered.unfit:
                raise
            self._refusal = error
            considered.reject(start, error.actual)
            return None

    def _compiled(self, start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        found = search(
            start, self.choices, self.model, self._ask, self.seconds,
            late=lambda: self._expired(_SEARCH_SECONDS),
        )  # fmt: skip
        considered.tried += found.tried
        if found.best is not None and found.answer is not None:
            self.client.keep(found.best)
            return _measured(found.answer, found.best, considered, *self._others(found.best))
        answer = found.refusal
        if isinstance(answer, MemoryExceeded):
            assert found.refused is not None, "a candidate was refused"
            considered.small.append(TooSmallSlice(start=start, tried=found.refused, answer=answer))
            considered.reject(start, describe(answer))
            return None
        assert answer is not None, "a search ends with a result or a rejection"
        if not answer.certain:
            why = f"The train step could not be compiled before training: {answer.message}"
            return _unknown(start, considered, why)
        raise _program_refused(start, answer)

    def _others(self, best: Candidate) -> tuple[list[str], list[str]]:
        """Compiles what the job runs beside the train step ``best``.

        Returns ``programs`` and ``uncompiled`` of the outcome. Raises ``StageError`` 64 or 78.
        """
        fitting: list[str] = []
        uncompiled: list[str] = []
        programs = [program for program in self.programs() if program.kind != "Train"]
        self.progress.begin("compiling the job's other programs", len(programs), "programs")
        for program in programs:
            if self._expired(_PATIENCE_SECONDS):
                uncompiled.append(str(program))
                continue
            candidate = best.model_copy(update={"program": program})
            answer = self._ask(candidate)
            match answer:
                case CompileSuccess():
                    self.client.keep(candidate)
                    rows = f", {answer.rows} rows at a time" if answer.rows else ""
                    fitting.append(f"{program}: {describe(answer)}{rows}")
                case MemoryExceeded():
                    raise _program_exceeded(candidate, answer)
                case CompileFailure(certain=True):
                    raise _program_refused(candidate, answer)
                case CompileFailure():
                    uncompiled.append(f"{program} ({describe(answer)})")
        return fitting, uncompiled

    def refused(self, considered: SliceSearchState, larger: Sequence[SliceShape]) -> StageError:
        """Why no slice can be used, with what to change for the largest one that was considered.

        It is the last slice's refusal if that is not the train step's memory and nothing is known about a larger one.
        """
        if self._refusal is not None and (isinstance(self._refusal, ProgramExceeded) or not considered.small):
            return self._refusal
        fix = ""
        if considered.small:
            most = max(
                considered.small, key=lambda each: each.start.slice.chips * (each.start.slice.hbm_gib or 0)
            )
            known = {_place(each.slice) for each in considered.unfit}
            others = [shape for shape in larger if _place(shape) not in known]
            fix = remedies(
                most.start, most.answer, self.choices, self.model, others, several=considered.several
            )
        return no_slice_fits_error(considered, fix=fix)


def _place(shape: SliceShape) -> tuple[str, str, int]:
    return shape.family, shape.topology, shape.hosts


def choices(request: StageRequest, check: MemoryCheckSpec) -> SearchSpace:
    """The choices that neither job nor profile make."""
    said = request.engine_overrides
    return SearchSpace(
        remat="remat_policy" not in said,
        tiles="num_vocab_tiling" not in said and not method_of(request.method).whole_logits,
        parallelism=check.choose_parallelism,
    )


def bounds(request: StageRequest, plan: ModelPlan) -> ModelBounds:
    return ModelBounds(
        heads=plan.heads,
        kv_heads=plan.kv_heads,
        vocab_size=plan.vocab_size,
        sequence=widths.of_rows(request),
        accumulation=request.hyperparameters.gradient_accumulation_steps,
    )


def _unknown(start: Candidate, considered: SliceSearchState, why: str) -> MemoryOutcome:
    return MemoryOutcome(
        source="Compile", slice=start.place, unknown=why, tried=considered.tried[:MOST_TRIED]
    )


def _measured(
    answer: CompileSuccess,
    best: Candidate,
    considered: SliceSearchState,
    programs: list[str],
    uncompiled: list[str],
) -> MemoryOutcome:
    per_chip = best.slice.devices // best.slice.chips
    figures = (
        "peak_bytes", "limit_bytes", "arguments_bytes", "temporaries_bytes", "flops", "hbm_bytes", "network_bytes"
    )  # fmt: skip
    return MemoryOutcome(
        source="Compile",
        slice=best.place,
        **{name: getattr(answer, name) * per_chip for name in figures},
        step_seconds=answer.step_seconds,
        mesh=best.mesh,
        tuning=best.tuning,
        tried=considered.tried[:MOST_TRIED],
        programs=programs[:MOST_TRIED],
        uncompiled=uncompiled[:MOST_TRIED],
    )


class ProgramExceeded(StageError):
    """A program other than the train step does not fit the slice."""


class ProgramRefused(StageError):
    """The compiler definitely refuses a program."""


class MeshRefused(StageError):
    """The model cannot be loaded on a slice's mesh; another slice has another mesh."""


def _program_exceeded(candidate: Candidate, answer: MemoryExceeded) -> ProgramExceeded:
    program = candidate.program
    training = program.kind == "TrainingLoss"
    return ProgramExceeded(
        ExitCode.OUT_OF_MEMORY,
        "MemoryExceeded",
        "training fits the slice's memory, but an evaluation of the job does not",
        where="spec.datasets.validation" if training else "spec.evaluation",
        actual=f"{program}: {describe(answer)} per device on {candidate.place}",
        fix="Lower evaluation.generation.maxNewTokens, remove the longest rows, or use a larger slice."
        if program.of_texts
        else "Lower hyperparameters.globalBatchSize or datasets.maxSeqLength, or use a larger slice.",
    )


def _program_refused(candidate: Candidate, refusal: CompileFailure) -> StageError:
    if refusal.of_mesh:
        return MeshRefused(
            ExitCode.BAD_REQUEST, "MeshNotDivisible", "the model cannot be loaded on the job's mesh",
            where="spec.resources.parallelism", actual=f"{candidate.place}: {refusal.message}", fix=OTHER_MESH,
        )  # fmt: skip
    return ProgramRefused(
        ExitCode.BAD_REQUEST,
        "ProgramRefused",
        "the TPU compiler rejects a program that the job would run",
        where="spec.engineOverrides" if "block" in refusal.message else "spec",
        actual=f"{candidate.program} on {candidate.place}: {refusal.message}",
        fix="Remove the engineOverrides that the message concerns, or change the setting that it names. "
        "No TPU time was used.",
    )
