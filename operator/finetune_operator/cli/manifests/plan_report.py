"""Everything that ``finetune plan`` shows of a job: its plan, and what follows from inputs that a person may know."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from finetune_contract import ModelIdentity, Stage
from finetune_operator.api.numbers import decimal
from finetune_operator.catalog import TpuShape
from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError
from finetune_operator.cli.manifests.checks import PlannedJob
from finetune_operator.cli.text import size
from finetune_operator.planning import Plan
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.considered import ConsideredSlice, considered_slices
from finetune_operator.planning.estimate.model_shape import ModelShape, UnknownModelShape
from finetune_operator.planning.estimate.past_runs import PastRuns, PastTrainings, TrainingShape
from finetune_operator.planning.estimate.published_models import published_model
from finetune_operator.planning.estimate.training_memory import TrainingMemory, candidates_memory
from finetune_operator.planning.estimate.training_time import (
    StepCount,
    least_step_chip_seconds,
    least_step_seconds,
    step_count,
)
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering import CpuPoolTooSmall
from finetune_operator.rendering.memory import memory_for, memory_wanted, require_cpu_memory
from finetune_operator.rendering.scratch import needed_scratch_gib, require_scratch, scratch_gib

#: Far above any config.json.
_MOST_BYTES = 1 << 20
_PLAN_ONLY = "planOnly: true in the spec (Preflight alone, on CPU)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInputs:
    """What a manifest does not contain."""

    model: ModelShape | None = None
    rows: int | None = None
    """Number of training rows of all sources together."""
    past: PastTrainings | None = None
    """None if no ledger is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuNeeds:
    """What the pod of a CPU stage requests, in GiB. None: not known."""

    stage: Stage
    memory_gib: int | None
    disk_gib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A job's plan and what follows from it."""

    job: PlannedJob
    model: ModelShape | None
    published: bool
    """Whether the model's sizes are those of the table of published models."""
    considered: Sequence[ConsideredSlice]
    memory: Mapping[tuple[str, str], TrainingMemory]
    """By family and topology of the slice and of those that preflight may choose. Empty if the model is not known."""
    cpu: Sequence[CpuNeeds]
    rows: int | None
    steps: StepCount | None
    step_seconds: float | None
    """What no step is faster than. None if it is not known."""
    past: PastRuns | None
    """Past trainings of the same shape. None: no ledger is read, or it contains none."""
    reads_past: bool
    """Whether a ledger is read."""
    unknown: Sequence[tuple[str, str]]
    """What only a later step or a further input can tell, and how to learn it."""
    monthly_chip_hours: float | None
    """Chip hours that all jobs of the namespace together may use in a month; None if the profile sets no limit."""
    refusals: Sequence[CliError]
    """Why preflight would certainly refuse the job, whose model is known."""

    @property
    def plan(self) -> Plan:
        return self.job.plan

    def memory_on(self, shape: TpuShape | None) -> TrainingMemory | None:
        """Returns the memory on a slice; None if it is not known."""
        return self.memory.get((shape.family, shape.topology)) if shape else None

    @property
    def training_seconds(self) -> float | None:
        """What all steps together are not faster than."""
        if self.steps is None or self.step_seconds is None:
            return None
        return self.steps.steps * self.step_seconds

    def chip_hours(self, seconds: float) -> float:
        """Chip hours of a time on all chips of the job."""
        return seconds * self.plan.chips / 3600

    @property
    def past_seconds(self) -> tuple[float, float, float] | None:
        """What all steps together take at the least, median and most seconds that a step has taken in past trainings.
        None if there are none, or the number of steps is not known."""
        if self.steps is None or self.past is None:
            return None
        each = self.past
        return each.low * self.steps.steps, each.median * self.steps.steps, each.high * self.steps.steps


def report_of(job: PlannedJob, known: KnownInputs, where: str) -> PlanReport:
    """Returns the report. ``where`` is the job's place for messages."""
    plan = job.plan
    published = published_model(plan.model.hugging_face.repo) if plan.model.hugging_face else None
    known = replace(known, model=known.model or published)
    model = known.model
    identity = _identity(plan, model) if model else None
    steps, memory = step_count(plan, known.rows), candidates_memory(plan, model) if model else {}
    least, shape = least_step_seconds(plan, model) if model else None, TrainingShape.of_plan(plan)
    monthly = lookup(job.admission.stored.profile, "constraints.chipHoursPerMonth")
    considered = considered_slices(job.admission.job, job.admission.stored, plan)
    found: list[CliError] = []
    if model and identity:
        found += _refusals(plan, model, identity, memory)
        found += _unaffordable(plan, model, steps, [each for each in considered if each.chosen or each.next])
    return PlanReport(
        job=job,
        model=model,
        published=model is not None and model is published,
        considered=considered,
        memory=memory,
        cpu=[_needs(plan, stage, model, identity) for stage in plan.stages if STAGES[stage].cpu],
        rows=known.rows,
        steps=steps,
        step_seconds=least,
        past=known.past.of(shape, steps.steps if steps else None, least) if known.past else None,
        reads_past=known.past is not None,
        unknown=list(_unknown(plan, known, steps, monthly=monthly is not None)),
        monthly_chip_hours=None if monthly is None else float(monthly),
        refusals=[CliError(f"{where}: {plan.job.name}: {each.message}", fix=each.fix) for each in found],
    )


def _refusals(
    plan: Plan,
    model: ModelShape,
    identity: ModelIdentity,
    memory: Mapping[tuple[str, str], TrainingMemory],
) -> Iterator[CliError]:
    checks = [partial(require_cpu_memory, plan, plan.stages, identity)]
    if model.dtype_bytes:
        checks.append(partial(require_scratch, plan, plan.stages, identity))
    for check in checks:
        try:
            check()
        except CpuPoolTooSmall as error:
            yield CliError(f"CpuPoolTooSmall: {error}", fix=error.fix)
    if plan.memory is not None and all(each.too_small for each in memory.values()):
        least = min(memory.values(), key=lambda each: each.state)
        yield CliError(
            f"MemoryExceeded: parameters and optimizer state alone take {size(least.state)} of the "
            f"{size(least.usable or 0)} of a chip{' on the largest slice' if len(memory) > 1 else ''}.",
            fix="Use LoRA or a larger slice.",
        )


def _unaffordable(
    plan: Plan, model: ModelShape, steps: StepCount | None, slices: Sequence[ConsideredSlice]
) -> Iterator[CliError]:
    """Yields the limits that the training exceeds by arithmetic alone, on each of the slices that it may get.

    Only where preflight's estimate, which is higher, keeps the training from starting.
    """
    estimated = plan.memory is not None and plan.memory.source == "Compile"
    if steps is None or steps.at_most or not estimated or plan.plan_only or plan.resumes:
        return
    hours, costs = list[float](), list[float]()
    for each in slices:
        seconds = least_step_chip_seconds(plan, model, each.shape.family) if each.shape else None
        if seconds is None or each.shape is None:
            return
        hours.append(seconds * steps.steps / 3600)
        if each.hourly_price is not None:
            costs.append(hours[-1] * float(each.hourly_price) / (each.shape.chips * plan.mesh.slices))
    if not hours:
        return
    limits: list[tuple[SpendingLimit | None, float, str]] = [
        (plan.budget.chip_hours, min(hours), " chip hours"),
        (plan.budget.cost, min(costs) if len(costs) == len(hours) else 0.0, f" {plan.currency}"),
    ]
    for limit, least, unit in limits:
        if limit is not None and least > limit.most:
            own = limit.path.startswith("spec.")
            raise_it = f"raise {limit.path}" if own else "ask the profile's owner to raise it"
            yield CliError(
                f"BudgetTooSmall: training takes at least {decimal(least)}{unit} for {steps.steps:,} steps, "
                f"and {limit.path} is {decimal(limit.most)}.",
                fix=f"Train fewer steps, or {raise_it}.",
            )


def _identity(plan: Plan, model: ModelShape) -> ModelIdentity:
    return ModelIdentity(
        source=plan.model.address,
        revision="",
        architecture=model.architecture,
        parameters=model.parameters,
        maxtext_model="",
        layout="",
        sizes=model.sizes(weights_bytes=model.weights_bytes),
    )


def _needs(plan: Plan, stage: Stage, model: ModelShape | None, identity: ModelIdentity | None) -> CpuNeeds:
    if not STAGES[stage].sized_by_model:
        memory: int | None = memory_for(plan, stage, None)
        return CpuNeeds(stage=stage, memory_gib=memory, disk_gib=scratch_gib(plan, stage, None))
    sized = identity is not None and model is not None and model.dtype_bytes is not None
    return CpuNeeds(
        stage=stage,
        memory_gib=memory_wanted(plan, stage, identity) if identity else None,
        disk_gib=needed_scratch_gib(plan, stage, identity) if sized else None,
    )


def _unknown(
    plan: Plan, known: KnownInputs, steps: StepCount | None, *, monthly: bool
) -> Iterator[tuple[str, str]]:
    if known.model is None:
        what = "parameters, memory per chip, memory and disk of Convert and Export, least time"
        yield what, "--model-config FILE, the model's config.json"
    elif known.model.dtype_bytes is None:
        yield "disk of Convert and Export", _PLAN_ONLY
    if steps is None:
        given = known.rows is not None
        yield "number of steps", _PLAN_ONLY if given else "--rows N, the number of training rows"
    if plan.use_cache == "Use":
        yield "whether the converted model and the prepared data are in the cache", _PLAN_ONLY
    if monthly:
        yield "what is left of the namespace's chip hours of this month", "finetune profiles"
    yield "exact memory, and the upper end of time and cost", _PLAN_ONLY
    if known.past is None:
        yield "how long such trainings have taken", f"--ledger URI if you may read it, or {_PLAN_ONLY}"


def read_model_config(file: Path) -> ModelShape:
    """Reads a model's config.json. Raises CliError if it is not the one of a supported model."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}") from error
    try:
        config = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise CliError(
            f"{file}: is not the JSON object of a model's config.json.",
            fix="Name the file config.json from the model's folder or repository.",
            code=WRONG_ARGUMENT,
        )
    try:
        return ModelShape.of(config)
    except UnknownModelShape as error:
        raise CliError(f"{file}: {error}.", code=WRONG_ARGUMENT) from error
