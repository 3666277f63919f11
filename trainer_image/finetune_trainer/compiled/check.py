"""Checks whether the job's train step fits its slice, and chooses settings with which it does."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from finetune_contract import ExitCode, MemoryCheckSpec, MemoryOutcome, SliceShape, StageRequest
from finetune_contract.result import MOST_TRIED
from finetune_trainer.compiled import analytic
from finetune_trainer.compiled.compile_client import CompileClient, CompilerUnavailable
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.compiled.remedies import remedies
from finetune_trainer.compiled.search import ModelBounds, SearchSpace, describe, gib, heads_divide, search
from finetune_trainer.compiled.slice_selection import (
    SliceSearchState,
    TooSmallSlice,
    memory_exceeded_error,
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
        programs: returns the job's other programs on its slice, the most important ones first. Called only if there is
            a compiler.
        end_ids: tokens that end an answer; part of the programs that generate.
        progress: counts the programs that have been compiled.

    Raises:
        StageError: 78 if the train step or one of ``programs`` does not fit, with remedies that fit; 64 for a program
            that the compiler refuses.
    """
    check = request.memory
    if check is None:
        return None
    if check.source == "Analytic":
        return _analytic(request, plan, check)
    with CompileClient(request, plan, model, store, environment, end_ids=end_ids) as client:
        began = time.monotonic()

        def ask(candidate: Candidate) -> Answer:
            answer = client(candidate)
            progress.advance()
            return answer

        progress.begin("compiling the train step", unit="programs")
        compiled = _Compiled(
            choices=choices(request, check),
            model=bounds(request, plan),
            ask=ask,
            progress=progress,
            keep=client.keep,
            programs=cache(programs),
            search_expired=lambda: time.monotonic() > began + _SEARCH_SECONDS,
            compiling_expired=lambda: time.monotonic() > began + _PATIENCE_SECONDS,
        )
        outcome, considered = select_first_fitting(
            slice_candidates(request, check), compiled.model, compiled.evaluate
        )
        if outcome is not None:
            return outcome.model_copy(update={"cached": client.compiled == 0 and not outcome.unknown})
        raise no_slice_fits_error(considered, remedies=compiled.remedies(considered, check.larger))


@dataclass(slots=True, kw_only=True)
class _Compiled:
    """Evaluates slices, one after the other, with the compiler."""

    choices: SearchSpace
    model: ModelBounds
    ask: Callable[[Candidate], Answer]
    keep: Callable[[Candidate], None]
    """Stores the programs compiled for a candidate where the slice reads them."""
    programs: Callable[[], Sequence[SliceProgram]]
    search_expired: Callable[[], bool]
    """Whether the search for better candidates has to stop."""
    compiling_expired: Callable[[], bool]
    """Whether compiling has to stop, except for what is indispensable."""
    progress: StageProgressReporter
    refusal: StageError | None = None
    """Why the last slice was refused, if not for the train step's memory."""

    def evaluate(self, start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        """The outcome for ``start``, also if nothing could be determined about it; None if the job does not fit.

        Raises ``StageError`` 64 for a program that the compiler refuses on the first slice.
        """
        if considered.unfit and self.compiling_expired():
            return MemoryOutcome(
                source="Compile",
                slice=start.place,
                unknown="The training does not fit the cheaper slices; for this one it was not compiled in time.",
                tried=considered.tried[:MOST_TRIED],
            )
        self.refusal = None
        try:
            return self._compiled(start, considered)
        except CompilerUnavailable as error:
            _LOG.warning("%s", error)
            return MemoryOutcome(source="Compile", slice=start.place, unknown=str(error))
        except (ProgramExceeded, ProgramRefused, MeshRefused) as error:
            if isinstance(error, ProgramRefused) and not considered.unfit:
                raise
            self.refusal = error
            considered.reject(start, error.actual)
            return None

    def _compiled(self, start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        found = search(start, self.choices, self.model, self.ask, late=self.search_expired)
        considered.tried += found.tried
        if found.best is not None and found.answer is not None:
            outcome = _measured(found.answer, found.best, considered)
            self.keep(found.best)
            programs = self.programs()
            self.progress.begin("compiling the job's other programs", len(programs), "programs")
            return outcome.model_copy(
                update=check_programs(
                    found.best, programs, self.ask, late=self.compiling_expired, keep=self.keep
                )
            )
        answer = found.refusal
        if isinstance(answer, MemoryExceeded):
            assert found.refused is not None, "a candidate was refused"
            considered.small.append(TooSmallSlice(start=start, tried=found.refused, answer=answer))
            considered.reject(start, describe(answer))
            return None
        assert answer is not None, "a search ends with a result or a rejection"
        if not answer.certain:
            return MemoryOutcome(
                source="Compile",
                slice=start.place,
                unknown=f"The train step could not be compiled before training: {answer.message}",
                tried=considered.tried[:MOST_TRIED],
            )
        raise _program_refused("the train step", start, answer)

    def remedies(self, considered: SliceSearchState, larger: Sequence[SliceShape]) -> Sequence[str]:
        """Remedies for the largest slice that was considered.

        Raises the last slice's refusal if that is not the train step's memory and nothing is known about a larger one.
        """
        if self.refusal is not None and (isinstance(self.refusal, ProgramExceeded) or not considered.small):
            raise self.refusal
        if not considered.small:
            return ()
        most = max(
            considered.small, key=lambda each: each.start.slice.chips * (each.start.slice.hbm_gib or 0)
        )
        known = {_place(each.slice) for each in considered.unfit}
        try:
            found = remedies(
                most.start,
                most.answer,
                self.choices,
                self.model,
                self.ask,
                larger=[each for each in larger if _place(each) not in known],
                late=self.compiling_expired,
            )
        except CompilerUnavailable as error:
            _LOG.warning("%s", error)
            return ()
        on = f" on {most.start.place}" if considered.several else ""
        return [each if each.startswith("resources.tpu") else f"{each}{on}" for each in found]


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


def _measured(answer: CompileSuccess, best: Candidate, considered: SliceSearchState) -> MemoryOutcome:
    per_chip = best.slice.devices // best.slice.chips
    return MemoryOutcome(
        source="Compile",
        slice=best.place,
        peak_bytes=answer.peak_bytes * per_chip,
        limit_bytes=answer.limit_bytes * per_chip,
        arguments_bytes=answer.arguments_bytes * per_chip,
        temporaries_bytes=answer.temporaries_bytes * per_chip,
        flops=answer.flops * per_chip,
        hbm_bytes=answer.hbm_bytes * per_chip,
        network_bytes=answer.network_bytes * per_chip,
        step_seconds=answer.step_seconds,
        mesh=best.mesh,
        tuning=best.tuning,
        tried=considered.tried[:MOST_TRIED],
    )


_OTHER_MESH = (
    "Raise hyperparameters.globalBatchSize to the number of devices, so that no devices share a row; or set another "
    "resources.parallelism or another slice. No TPU time was used."
)


class ProgramExceeded(StageError):
    """A program other than the train step does not fit the slice."""


class ProgramRefused(StageError):
    """The compiler definitely refuses a program."""


class MeshRefused(StageError):
    """The model cannot be loaded on a slice's mesh; another slice has another mesh."""


def check_programs(
    best: Candidate,
    programs: Sequence[SliceProgram],
    ask: Callable[[Candidate], Answer],
    *,
    late: Callable[[], bool],
    keep: Callable[[Candidate], None] = lambda _: None,
) -> dict[str, list[str]]:
    """Compiles what a job runs beside the train step ``best``.

    Returns ``programs`` and ``uncompiled`` of the outcome. Nothing is compiled once ``late`` returns True. ``keep`` is
    called for each program that fits. Raises ``StageError`` 64 or 78.
    """
    fitting: list[str] = []
    left: list[str] = []
    for program in programs:
        if late():
            left.append(str(program))
            continue
        asked = best.model_copy(update={"program": program})
        answer = ask(asked)
        match answer:
            case CompileSuccess():
                keep(asked)
                rows = f", {answer.rows} rows at a time" if answer.rows else ""
                fitting.append(f"{program}: {describe(answer)}{rows}")
            case MemoryExceeded():
                raise _program_exceeded(program, best, answer)
            case CompileFailure(certain=True):
                raise _program_refused(str(program), best, answer)
            case CompileFailure():
                left.append(f"{program} ({describe(answer)})")
    return {"programs": fitting[:MOST_TRIED], "uncompiled": left[:MOST_TRIED]}


def _program_exceeded(program: SliceProgram, best: Candidate, answer: MemoryExceeded) -> "ProgramExceeded":
    training = program.kind == "TrainingLoss"
    return ProgramExceeded(
        ExitCode.OUT_OF_MEMORY,
        "MemoryExceeded",
        "training fits the slice's memory, but an evaluation of the job does not",
        where="spec.datasets.validation" if training else "spec.evaluation",
        actual=f"{program}: {describe(answer)} per device on {best.place}",
        fix="Lower hyperparameters.globalBatchSize or datasets.maxSeqLength, or use a larger slice."
        if program.kind in {"TrainingLoss", "Loss", "TextLoss", "Reference"}
        else "Lower evaluation.generation.maxNewTokens, remove the longest rows, or use a larger slice.",
    )


def _program_refused(what: str, start: Candidate, refusal: CompileFailure) -> StageError:
    if refusal.of_mesh:
        return MeshRefused(
            ExitCode.BAD_REQUEST, "MeshNotDivisible", "the model cannot be loaded on the job's mesh",
            where="spec.resources.parallelism", actual=f"{start.place}: {refusal.message}", fix=_OTHER_MESH,
        )  # fmt: skip
    return ProgramRefused(
        ExitCode.BAD_REQUEST,
        "ProgramRefused",
        "the TPU compiler rejects a program that the job would run",
        where="spec.engineOverrides"
        if "sa_block" in refusal.message or "block" in refusal.message
        else "spec",
        actual=f"{what} on {start.place}: {refusal.message}",
        fix="Remove the engineOverrides that the message concerns, or change the setting that it names. "
        "No TPU time was used.",
    )


def _heads_do_not_divide(start: Candidate, model: ModelBounds) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "MeshNotDivisible", "the model's heads do not divide among the devices that share a row",
        where="spec.resources.parallelism.tensor",
        actual=f"{start.mesh.tensor} devices on {start.place}, {model.heads} heads, {model.kv_heads} kv heads",
        fix=_OTHER_MESH,
    )  # fmt: skip


def _analytic(request: StageRequest, plan: ModelPlan, check: MemoryCheckSpec) -> MemoryOutcome:
    """Checks by the lower bound of the training's memory.

    Raises ``StageError`` 78 if it exceeds that of each slice, and 64 if the model's heads do not divide among the
    devices that share a row of the only slice.
    """
    model = bounds(request, plan)

    def evaluate(start: Candidate, considered: SliceSearchState) -> MemoryOutcome | None:
        if not heads_divide(start.mesh, model):
            raise _heads_do_not_divide(start, model)
        needed, limit = analytic.state_bytes(plan, request, start.mesh), analytic.limit_bytes(start.slice)
        if limit is None:
            return MemoryOutcome(
                source="Analytic",
                slice=start.place,
                unknown=f"The memory of a chip of {start.slice.name} is unknown.",
            )
        if needed > limit:
            answer = MemoryExceeded(needed_bytes=needed, limit_bytes=limit, arguments_bytes=needed)
            considered.small.append(TooSmallSlice(start=start, tried=start, answer=answer))
            considered.reject(start, f"has {gib(limit)} for {gib(needed)} of parameters and optimizer alone")
            return None
        return MemoryOutcome(source="Analytic", slice=start.place, peak_bytes=needed, limit_bytes=limit)

    outcome, considered = select_first_fitting(slice_candidates(request, check), model, evaluate)
    if outcome is not None:
        return outcome
    if not considered.small or considered.several:
        raise no_slice_fits_error(considered)
    last = considered.small[-1]
    raise memory_exceeded_error(
        f"parameters and optimizer alone are {gib(last.answer.needed_bytes or 0)} of {gib(last.answer.limit_bytes)}",
        last,
        several=False,
        fix="Use LoRA or a larger slice.",
    )
