"""What preflight found out about memory and speed, as the status tells it."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from finetune_contract import ExitCode, Failure, MemoryOutcome, PreflightOutcome, Stage
from finetune_operator.lifecycle.progress import decimal, mebibytes
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.memory import place_name
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering import CpuPoolTooSmall
from finetune_operator.rendering.memory import memory_wanted, require_cpu_memory
from finetune_operator.rendering.scratch import needed_scratch_gib, require_scratch

type Object = Mapping[str, Any]

_HOUR = 3600
#: Beyond it no training lasts; a larger number is a record gone wrong.
_MOST_SECONDS = 2**31 - 1


def found(plan: Plan, findings: Findings) -> MemoryOutcome | None:
    """What holds for the plan as it is: capacity may have moved the job to another slice since."""
    outcome = findings.preflight.memory if findings.preflight else None
    if outcome is None or plan.memory is None or outcome.slice != place_name(plan.memory, plan.mesh):
        return None
    return outcome


def memory_status(plan: Plan, findings: Findings) -> Object:
    """``status.resolved.memory``."""
    status: dict[str, Any] = {"source": plan.memory.source if plan.memory else "Off"}
    outcome = found(plan, findings)
    if outcome and outcome.peak_bytes is not None and outcome.limit_bytes is not None:
        status["estimatedPerChip"] = mebibytes(outcome.peak_bytes)
        status["limitPerChip"] = mebibytes(outcome.limit_bytes)
    return status


def host_requests_status(plan: Plan, findings: Findings) -> Object:
    """``status.resolved.hostMemory`` and ``ephemeralStorage``; empty before preflight has read the model."""
    if findings.preflight is None:
        return {}
    model = findings.preflight.model
    stages = [stage for stage in plan.stages if STAGES[stage].sized_by_model]
    return {
        "hostMemory": {stage.lower(): f"{memory_wanted(plan, stage, model)}Gi" for stage in stages},
        "ephemeralStorage": {
            stage.lower(): f"{needed_scratch_gib(plan, stage, model)}Gi" for stage in stages
        },
    }


def not_held(plan: Plan, stages: Sequence[Stage], found: PreflightOutcome) -> CpuPoolTooSmall | None:
    """Why the profile's CPU nodes cannot hold one of ``stages``, now that the model is known."""
    try:
        require_cpu_memory(plan, stages, found.model)
        require_scratch(plan, stages, found.model)
    except CpuPoolTooSmall as error:
        return error
    return None


def too_small(error: CpuPoolTooSmall) -> Failure:
    """As the job's failure."""
    return Failure(code=ExitCode.OUT_OF_MEMORY, reason="CpuPoolTooSmall", message=str(error), fix=error.fix)


def estimate_status(plan: Plan, findings: Findings) -> Object | None:
    """``status.estimate``: training by the roofline of its compiled step; None where nothing was compiled."""
    seconds = _estimated_seconds(plan, findings)
    if seconds is None:
        return None
    low, high = seconds
    hours = high * plan.chips / _HOUR
    status: dict[str, Any] = {
        "durationSeconds": {"low": floor(low), "high": ceil(high)},
        "chipHours": decimal(hours),
    }
    price = plan.placement.chip_hour_price
    if price is not None:
        status["cost"] = decimal(hours * price)
    return status


def least_chip_hours(plan: Plan, findings: Findings) -> float | None:
    """What the whole training takes at least: no step is faster than the low end of its roofline."""
    seconds = _estimated_seconds(plan, findings)
    return None if seconds is None else seconds[0] * plan.chips / _HOUR


def _estimated_seconds(plan: Plan, findings: Findings) -> tuple[float, float] | None:
    """Of all steps: at least, and at most; None where nothing was compiled."""
    outcome = found(plan, findings)
    if outcome is None or outcome.step_seconds is None or findings.preflight is None:
        return None
    low, high = (each * findings.preflight.steps for each in outcome.step_seconds)
    return (low, high) if 0 <= low <= high <= _MOST_SECONDS else None
