"""Preflight's findings about memory and speed, for the status and for spending limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import ExitCode, Failure, MemoryOutcome, PreflightOutcome, Stage
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.slices.memory import place_name
from finetune_operator.rendering import CpuPoolTooSmall
from finetune_operator.rendering.memory import require_cpu_memory
from finetune_operator.rendering.scratch import require_scratch

type Object = Mapping[str, Any]

_HOUR = 3600
#: No training lasts longer; a larger number is an error in the record.
MOST_SECONDS = 2**31 - 1


def found(plan: Plan, findings: Findings) -> MemoryOutcome | None:
    """Returns the findings if they are about the plan's slice; None after the job has moved to another slice."""
    outcome = findings.preflight.memory if findings.preflight else None
    if outcome is None or plan.memory is None or outcome.slice != place_name(plan.memory, plan.mesh):
        return None
    return outcome


def not_held(plan: Plan, stages: Sequence[Stage], found: PreflightOutcome) -> CpuPoolTooSmall | None:
    """Returns why one of ``stages`` fits no CPU node of the profile, now that the model is known; None if all fit."""
    try:
        require_cpu_memory(plan, stages, found.model)
        require_scratch(plan, stages, found.model)
    except CpuPoolTooSmall as error:
        return error
    return None


def too_small(error: CpuPoolTooSmall) -> Failure:
    """Returns the error as the job's failure."""
    return Failure(code=ExitCode.OUT_OF_MEMORY, reason="CpuPoolTooSmall", message=str(error), fix=error.fix)


def least_chip_hours(plan: Plan, findings: Findings) -> float | None:
    """Returns the lower bound of the whole training in chip hours, by the roofline of a step; None if unknown."""
    seconds = estimated_seconds(plan, findings)
    return None if seconds is None else seconds[0] * plan.chips / _HOUR


def estimated_seconds(plan: Plan, findings: Findings) -> tuple[float, float] | None:
    """Returns the minimum and the maximum for all steps; None if preflight compiled nothing for this slice."""
    outcome = found(plan, findings)
    if outcome is None or outcome.step_seconds is None or findings.preflight is None:
        return None
    low, high = (each * findings.preflight.steps for each in outcome.step_seconds)
    return (low, high) if 0 <= low <= high <= MOST_SECONDS else None
