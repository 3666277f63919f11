"""Whether the job's train step fits its slice: what preflight finds out and what it chooses."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from finetune_contract import ExitCode, MemoryCheck, MemoryOutcome, StageRequest
from finetune_contract.result import MOST_TRIED
from finetune_trainer.compiled import analytic
from finetune_trainer.compiled.asking import Asking, NoCompiler
from finetune_trainer.compiled.question import Candidate, Exceeded, NotCompiled
from finetune_trainer.compiled.search import Choices, Found, Model, gib, search, told
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import Store

_LOG = logging.getLogger(__name__)
#: A node with two cores compiles some six candidates in it.
_PATIENCE_SECONDS = 600.0


def check_memory(
    request: StageRequest, plan: ModelPlan, model: Path, store: Store, environment: Mapping[str, str]
) -> MemoryOutcome | None:
    """None: not asked for. Raises ``StageError`` 78 where the step does not fit, with what would.

    That nothing could be found out (no compiler, one that gives up) is told in the outcome and stops nobody.
    """
    check = request.memory
    if check is None:
        return None
    start = Candidate(
        slice=check.slice, mesh=request.mesh, global_batch=request.hyperparameters.global_batch_size
    )
    if check.source == "Analytic":
        return _analytic(request, plan, check, start)
    try:
        with Asking(request, plan, model, store, environment) as asking:
            until = time.monotonic() + _PATIENCE_SECONDS
            found = search(
                start,
                choices(request, check),
                bounds(request, plan),
                asking,
                late=lambda: time.monotonic() > until,
            )
            return _outcome(found, start, cached=asking.compiled == 0)
    except NoCompiler as error:
        _LOG.warning("%s", error)
        return MemoryOutcome(source="Compile", slice=start.place, unknown=str(error))


def choices(request: StageRequest, check: MemoryCheck) -> Choices:
    """What neither job nor profile says."""
    said = request.engine_overrides
    return Choices(
        remat="remat_policy" not in said,
        tiles="num_vocab_tiling" not in said and request.method.type == "SFT",  # MaxText's DPO knows no tiles
        parallelism=check.choose_parallelism and check.slice.devices > 1,
        larger=tuple(check.larger),
    )


def bounds(request: StageRequest, plan: ModelPlan) -> Model:
    return Model(
        heads=plan.heads,
        kv_heads=plan.kv_heads,
        vocab_size=plan.vocab_size,
        sequence=request.data.max_seq_length,
        accumulation=request.hyperparameters.gradient_accumulation_steps,
    )


def _outcome(found: Found, start: Candidate, *, cached: bool) -> MemoryOutcome:
    if found.best is None or found.answer is None:
        return _refuse(found, start)
    answer, per_chip = found.answer, start.slice.devices // start.slice.chips
    return MemoryOutcome(
        source="Compile",
        slice=start.place,
        peak_bytes=answer.peak_bytes * per_chip,
        limit_bytes=answer.limit_bytes * per_chip,
        arguments_bytes=answer.arguments_bytes * per_chip,
        temporaries_bytes=answer.temporaries_bytes * per_chip,
        flops=answer.flops * per_chip,
        hbm_bytes=answer.hbm_bytes * per_chip,
        network_bytes=answer.network_bytes * per_chip,
        step_seconds=answer.step_seconds,
        mesh=found.best.mesh,
        tuning=found.best.tuning,
        tried=list(found.tried[:MOST_TRIED]),
        cached=cached,
    )


def _refuse(found: Found, start: Candidate) -> MemoryOutcome:
    """Raises for too little memory; another refusal proves nothing about it."""
    if isinstance(found.refusal, Exceeded):
        raise _exceeded(
            told(found.refusal),
            start,
            fix=f"Compiled and found to fit: {' or '.join(found.remedies)}."
            if found.remedies
            else "No smaller batch and no slice of the profile was found to fit: use LoRA or shorter sequences.",
        )
    assert isinstance(found.refusal, NotCompiled)
    return MemoryOutcome(
        source="Compile",
        slice=start.place,
        unknown=f"The train step could not be compiled beforehand: {found.refusal.message}",
        tried=list(found.tried[:MOST_TRIED]),
    )


def _analytic(request: StageRequest, plan: ModelPlan, check: MemoryCheck, start: Candidate) -> MemoryOutcome:
    needed, limit = analytic.state_bytes(plan, request), analytic.limit_bytes(check)
    if limit is None:
        return MemoryOutcome(
            source="Analytic",
            slice=start.place,
            unknown=f"How much memory a chip of {check.slice.name} has is not known.",
        )
    if needed > limit:
        raise _exceeded(
            f"parameters and optimizer alone are {gib(needed)} of {gib(limit)}",
            start,
            fix="Use LoRA, weightPrecision BF16 or a larger slice.",
        )
    return MemoryOutcome(source="Analytic", slice=start.place, peak_bytes=needed, limit_bytes=limit)


def _exceeded(saw: str, start: Candidate, *, fix: str) -> StageError:
    return StageError(
        ExitCode.OUT_OF_MEMORY,
        "MemoryExceeded",
        "the training does not fit the slice's memory",
        where="spec.resources",
        saw=f"{saw} per device with batch {start.global_batch} on {start.place}",
        fix=f"{fix} No TPU time was used.",
    )
