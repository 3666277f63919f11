"""``status.resolved`` and ``status.estimate``: what decides the result, once it is resolved."""

from math import ceil, floor
from typing import Any

from finetune_contract import DatasetReport, HyperparametersSpec, MethodSpec, PreflightOutcome, Stage
from finetune_operator.api.data import DatasetFormat
from finetune_operator.api.method import (
    LearningRateSchedule,
    MethodType,
    Optimizer,
    Precision,
    Quantization,
    ResolvedHyperparameters,
)
from finetune_operator.api.numbers import decimal, mebibytes
from finetune_operator.api.placement import Capacity, Controller
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
from finetune_operator.lifecycle.stages.preflight_memory import MOST_SECONDS, estimated_seconds, found
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.estimate.past_runs import PastTrainings, TrainingShape
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import plan_name
from finetune_operator.rendering.memory import memory_wanted
from finetune_operator.rendering.scratch import needed_scratch_gib

_HOUR = 3600


def resolved_status(plan: Plan, findings: Findings, trainer_id: str | None = None) -> Resolved:
    """Returns ``status.resolved``: the plan, with what preflight and the first node have found."""
    preflight = findings.preflight
    return Resolved.model_construct(
        spec_hash=plan.spec_hash,
        profile=ResolvedProfile.model_construct(name=plan.profile_name, hash=plan.profile_hash),
        plan=ResolvedPlan.model_construct(name=plan_name(plan.job.uid), digest=plan.digest),
        model=_model(plan, preflight),
        datasets=_datasets(preflight) if preflight else None,
        benchmarks=_benchmarks(preflight) if preflight else None,
        method=_method(plan.method),
        hyperparameters=_hyperparameters(plan, preflight),
        resources=_resources(plan),
        memory=memory_status(plan, findings),
        host_memory=_host_memory(plan, preflight) if preflight else None,
        ephemeral_storage=_ephemeral_storage(plan, preflight) if preflight else None,
        checkpoint=plan.exported_checkpoint,
        images=_images(plan, trainer_id),
        service_accounts=ResolvedServiceAccounts.model_construct(
            tpu=plan.service_account_tpu, cpu=plan.service_account_cpu
        ),
        run_folder=plan.run_folder.uri,
        cache=plan.cache.uri,
    )


def dataset_status(report: DatasetReport, uri: str) -> ResolvedDataset:
    """Returns one entry of ``status.resolved.datasets``; it has counts only if every row was read."""
    # The report explains the format: "PromptCompletion of messages".
    name = report.format.partition(" ")[0]
    full = report.checked == "Full"
    rows = max(1, report.rows)
    truncated = 100 * min(max(0, report.truncated_rows), rows) / rows
    weighted = full and report.weight is not None and report.sequences is not None
    return ResolvedDataset.model_construct(
        name=report.name,
        revision=report.revision,
        format=DatasetFormat(name) if name in DatasetFormat else None,
        rows=report.rows if full else None,
        tokens=report.tokens if full else None,
        truncated_percent=decimal(round(truncated, 2)) if full else None,
        dropped_rows=report.dropped_rows if full else None,
        sequences=report.sequences if weighted else None,
        epoch_sequences=report.epoch_sequences if weighted else None,
        report_uri=uri,
    )


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
    hours = high * plan.chips / _HOUR
    return Estimate.model_construct(
        duration_seconds=SecondsRange.model_construct(low=floor(low), high=ceil(high)),
        chip_hours=decimal(hours),
        cost=_cost(plan, hours),
        past_runs=past,
    )


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
    hours = middle * plan.chips / _HOUR
    return PastRunsStatus.model_construct(
        attempts=past.attempts,
        jobs=past.jobs,
        duration_seconds=SecondsRange.model_construct(low=floor(low), high=ceil(high)),
        median_seconds=round(middle),
        chip_hours=decimal(hours),
        cost=_cost(plan, hours),
    )


def _cost(plan: Plan, chip_hours: float) -> str | None:
    price = plan.placement.chip_hour_price
    return None if price is None else decimal(chip_hours * price)


def _datasets(preflight: PreflightOutcome) -> tuple[ResolvedDataset, ...]:
    reports = (*preflight.train, *preflight.validation, *preflight.evaluation)
    return tuple(dataset_status(report, preflight.report) for report in reports)


def _benchmarks(preflight: PreflightOutcome) -> tuple[ResolvedBenchmark, ...] | None:
    benchmarks = tuple(
        ResolvedBenchmark.model_construct(name=each.name, revision=each.revision, rows=each.rows)
        for each in preflight.benchmarks
    )
    return benchmarks or None


def _hyperparameters(plan: Plan, preflight: PreflightOutcome | None) -> ResolvedHyperparameters:
    numbers = plan.hyperparameters
    ratio = numbers.warmup_ratio
    if ratio is None and numbers.warmup_steps is None:
        ratio = 0.0
    # Every value that request and status have under the same name.
    shared: dict[str, Any] = {
        name: decimal(value) if isinstance(value, float) else value
        for name in HyperparametersSpec.model_fields.keys() & ResolvedHyperparameters.model_fields.keys()
        if (value := getattr(numbers, name)) is not None
    }
    return ResolvedHyperparameters.model_construct(
        **shared
        | {
            "steps": preflight.steps if preflight else numbers.steps,
            "per_device_batch_size": decimal(numbers.microbatch_size / plan.mesh.devices),
            "max_seq_length": preflight.max_seq_length if preflight else None,
            "schedule": LearningRateSchedule(numbers.schedule),
            "warmup_ratio": None if ratio is None else decimal(ratio),
            "optimizer": Optimizer(numbers.optimizer),
            "weight_precision": Precision(numbers.weight_precision),
            "compute_precision": Precision(numbers.compute_precision),
        }
    )


def _method(method: MethodSpec) -> ResolvedMethod:
    lora = method.lora
    return ResolvedMethod.model_construct(
        type=MethodType(method.type),
        lora_rank=lora.rank if lora else None,
        lora_alpha=decimal(lora.alpha) if lora else None,
        quantization=Quantization(lora.quantization) if lora and lora.quantization else None,
    )


def _resources(plan: Plan) -> ResolvedResources:
    shape, mesh = plan.placement.shape, plan.mesh
    return ResolvedResources.model_construct(
        tpu=shape.name,
        accelerator=shape.accelerator,
        topology=shape.topology,
        machine_type=shape.machine_type,
        chips=plan.chips,
        hosts=shape.hosts * mesh.slices,
        slices=mesh.slices,
        capacity=Capacity(plan.placement.capacity),
        controller=Controller(mesh.controller),
        why=plan.placement.why,
    )


def _images(plan: Plan, trainer_id: str | None) -> ResolvedImages:
    return ResolvedImages.model_construct(
        trainer=plan.image,
        trainer_id=trainer_id,
        cpu=plan.cpu_image or None,
        pathways_server=plan.pathways.server if plan.pathways else None,
        pathways_proxy=plan.pathways.proxy if plan.pathways else None,
    )


def _model(plan: Plan, preflight: PreflightOutcome | None) -> ResolvedModel:
    lineage = ModelLineage.model_construct(**plan.lineage) if plan.lineage else None
    if preflight is None:
        return ResolvedModel.model_construct(source=plan.model.address, from_job=lineage)
    model = preflight.model
    return ResolvedModel.model_construct(
        source=model.source,
        revision=model.revision,
        architecture=model.architecture,
        parameters=model.parameters,
        maxtext_model=model.maxtext_model,
        layout=model.layout,
        from_job=lineage,
    )


def _host_memory(plan: Plan, preflight: PreflightOutcome) -> HostRequests:
    sized = {stage: f"{memory_wanted(plan, stage, preflight.model)}Gi" for stage in _sized_stages(plan)}
    return HostRequests.model_construct(convert=sized.get(Stage.CONVERT), export=sized.get(Stage.EXPORT))


def _ephemeral_storage(plan: Plan, preflight: PreflightOutcome) -> HostRequests:
    sized = {stage: f"{needed_scratch_gib(plan, stage, preflight.model)}Gi" for stage in _sized_stages(plan)}
    return HostRequests.model_construct(convert=sized.get(Stage.CONVERT), export=sized.get(Stage.EXPORT))


def _sized_stages(plan: Plan) -> list[Stage]:
    return [stage for stage in plan.stages if STAGES[stage].sized_by_model]
