"""``status.resolved`` and ``status.estimate``: what decides the result, once it is resolved."""

from collections.abc import Callable
from math import ceil, floor
from typing import Any

from finetune_contract import DatasetReport, ModelIdentity, PreflightOutcome, Stage
from finetune_operator.api.data import DatasetFormat
from finetune_operator.api.method import ResolvedHyperparameters
from finetune_operator.api.numbers import decimal, mebibytes
from finetune_operator.api.policies import MemoryCheck
from finetune_operator.api.status_resolved import (
    Estimate,
    HostRequests,
    ModelLineage,
    PastRunsStatus,
    Resolved,
    ResolvedBenchmark,
    ResolvedDataset,
    ResolvedImages,
    ResolvedMemory,
    ResolvedMethod,
    ResolvedModel,
    ResolvedPlan,
    ResolvedProfile,
    ResolvedResources,
    ResolvedServiceAccounts,
    SecondsRange,
)
from finetune_operator.lifecycle.fitting import copied
from finetune_operator.lifecycle.stages.findings import MOST_SECONDS, estimated_seconds, found
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.estimate.past_runs import PastTrainings, TrainingShape
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import plan_name
from finetune_operator.rendering.memory import memory_wanted
from finetune_operator.rendering.scratch import needed_scratch_gib

_HOUR = 3600


def resolved_status(plan: Plan, findings: Findings, trainer_id: str | None = None) -> Resolved:
    """Returns ``status.resolved``: the plan, with what preflight and the first node have found."""
    preflight, lora, pathways = findings.preflight, plan.method.lora, plan.pathways
    read: dict[str, Any] = {}
    if preflight is not None:
        reports = (*preflight.train, *preflight.validation, *preflight.evaluation)
        read = {
            "datasets": tuple(dataset_status(report, preflight.report) for report in reports),
            "benchmarks": tuple(copied(ResolvedBenchmark, report) for report in preflight.benchmarks) or None,
            "host_memory": _host_requests(plan, memory_wanted, preflight.model),
            "ephemeral_storage": _host_requests(plan, needed_scratch_gib, preflight.model),
        }
    return Resolved.model_construct(
        spec_hash=plan.spec_hash,
        profile=ResolvedProfile.model_construct(name=plan.profile_name, hash=plan.profile_hash),
        plan=ResolvedPlan.model_construct(name=plan_name(plan.job.uid), digest=plan.digest),
        model=_model(plan, preflight),
        method=copied(
            ResolvedMethod,
            plan.method,
            lora_rank=lora.rank if lora else None,
            lora_alpha=decimal(lora.alpha) if lora else None,
            quantization=(lora.quantization or None) if lora else None,
        ),
        hyperparameters=_hyperparameters(plan, preflight),
        resources=_resources(plan),
        memory=memory_status(plan, findings),
        checkpoint=plan.exported_checkpoint,
        images=ResolvedImages.model_construct(
            trainer=plan.image,
            trainer_id=trainer_id,
            cpu=plan.cpu_image or None,
            pathways_server=pathways.server if pathways else None,
            pathways_proxy=pathways.proxy if pathways else None,
        ),
        service_accounts=ResolvedServiceAccounts.model_construct(
            tpu=plan.service_account_tpu, cpu=plan.service_account_cpu
        ),
        run_folder=plan.run_folder.uri,
        cache=plan.cache.uri,
        **read,
    )


def dataset_status(report: DatasetReport, uri: str) -> ResolvedDataset:
    """Returns one entry of ``status.resolved.datasets``; it has counts only if every row was read."""
    # The report explains the format: "PromptCompletion of messages".
    name = report.format.partition(" ")[0]
    known: dict[str, Any] = {
        "format": DatasetFormat(name) if name in DatasetFormat else None,
        "report_uri": uri,
    }
    if report.checked != "Full":
        return ResolvedDataset.model_construct(name=report.name, revision=report.revision, **known)
    rows = max(1, report.rows)
    truncated = 100 * min(max(0, report.truncated_rows), rows) / rows
    if report.weight is None or report.sequences is None:
        known |= {"sequences": None, "epoch_sequences": None}
    return copied(ResolvedDataset, report, truncated_percent=decimal(round(truncated, 2)), **known)


def memory_status(plan: Plan, findings: Findings) -> ResolvedMemory:
    """Returns ``status.resolved.memory``."""
    source = MemoryCheck(plan.memory.source) if plan.memory else MemoryCheck.OFF
    outcome = found(plan, findings)
    if outcome is None or outcome.peak_bytes is None or outcome.limit_bytes is None:
        return ResolvedMemory.model_construct(source=source)
    return ResolvedMemory.model_construct(
        estimated_per_chip=mebibytes(outcome.peak_bytes),
        state_per_chip=None if outcome.arguments_bytes is None else mebibytes(outcome.arguments_bytes),
        limit_per_chip=mebibytes(outcome.limit_bytes),
        source=source,
    )


def estimate_status(plan: Plan, findings: Findings, past: PastRunsStatus | None) -> Estimate | None:
    """Returns ``status.estimate`` from the roofline of the compiled step, and past runs; None if neither is known."""
    seconds = estimated_seconds(plan, findings)
    if seconds is None:
        return Estimate.model_construct(past_runs=past) if past else None
    low, high = seconds
    return Estimate.model_construct(**_duration(low, high), **_spent(plan, high), past_runs=past)


def past_runs_status(plan: Plan, findings: Findings, known: PastTrainings | None) -> PastRunsStatus | None:
    """Returns what all steps take by past trainings of the plan's shape; None if none are known, or preflight has not
    counted the steps."""
    if findings.preflight is None or known is None or not findings.preflight.steps:
        return None
    seconds, steps = estimated_seconds(plan, findings), findings.preflight.steps
    past = known.of(TrainingShape.of_plan(plan), steps, seconds[0] / steps if seconds else None)
    if past is None:
        return None
    low, middle, high = (each * steps for each in (past.low, past.median, past.high))
    if high > MOST_SECONDS:
        return None
    return PastRunsStatus.model_construct(
        attempts=past.attempts,
        jobs=past.jobs,
        median_seconds=round(middle),
        **_duration(low, high),
        **_spent(plan, middle),
    )


def _duration(low: float, high: float) -> dict[str, Any]:
    return {"duration_seconds": SecondsRange.model_construct(low=floor(low), high=ceil(high))}


def _spent(plan: Plan, seconds: float) -> dict[str, Any]:
    """Returns the chip hours of so many seconds on the plan's slices, and their cost."""
    hours, price = seconds * plan.chips / _HOUR, plan.placement.chip_hour_price
    return {"chip_hours": decimal(hours), "cost": None if price is None else decimal(hours * price)}


def _hyperparameters(plan: Plan, preflight: PreflightOutcome | None) -> ResolvedHyperparameters:
    numbers = plan.hyperparameters
    ratio = numbers.warmup_ratio
    if ratio is None and numbers.warmup_steps is None:
        ratio = 0.0
    return copied(
        ResolvedHyperparameters,
        numbers,
        steps=preflight.steps if preflight else numbers.steps,
        per_device_batch_size=decimal(numbers.microbatch_size / plan.mesh.devices),
        max_seq_length=preflight.max_seq_length if preflight else None,
        warmup_ratio=None if ratio is None else decimal(ratio),
    )


def _resources(plan: Plan) -> ResolvedResources:
    placement, mesh = plan.placement, plan.mesh
    return copied(
        ResolvedResources,
        placement.shape,
        tpu=placement.shape.name,
        chips=plan.chips,
        hosts=placement.shape.hosts * mesh.slices,
        slices=mesh.slices,
        capacity=placement.capacity,
        controller=mesh.controller,
        why=placement.why,
    )


def _model(plan: Plan, preflight: PreflightOutcome | None) -> ResolvedModel:
    lineage = ModelLineage.model_construct(**plan.lineage) if plan.lineage else None
    if preflight is None:
        return ResolvedModel.model_construct(source=plan.model.address, from_job=lineage)
    return copied(ResolvedModel, preflight.model, from_job=lineage)


def _host_requests(
    plan: Plan, needed: Callable[[Plan, Stage, ModelIdentity], int], model: ModelIdentity
) -> HostRequests:
    sized = {stage for stage in plan.stages if STAGES[stage].sized_by_model}
    requests: dict[str, Any] = {stage.lower(): f"{needed(plan, stage, model)}Gi" for stage in sized}
    return HostRequests.model_construct(**requests)
