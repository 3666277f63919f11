"""What preflight has found about memory and speed, and the evaluation about gates, and when a stage fails for it."""

from collections.abc import Sequence

from finetune_contract import (
    EvaluateOutcome,
    ExitCode,
    Failure,
    GateOutcome,
    MemoryOutcome,
    PreflightOutcome,
    Stage,
)
from finetune_operator.api import Reason
from finetune_operator.api.numbers import decimal
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.slices.memory import place_name
from finetune_operator.rendering import CpuPoolTooSmall
from finetune_operator.rendering.memory import require_cpu_memory
from finetune_operator.rendering.scratch import require_scratch

#: No training lasts longer; a larger number is an error in the record.
MOST_SECONDS = 2**31 - 1
_COMPARISON = {"GreaterOrEqual": "at least", "LessOrEqual": "at most"}


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


def estimated_seconds(plan: Plan, findings: Findings) -> tuple[float, float] | None:
    """Returns the minimum and the maximum for all steps; None if preflight compiled nothing for this slice."""
    outcome = found(plan, findings)
    if outcome is None or outcome.step_seconds is None or findings.preflight is None:
        return None
    low, high = (each * findings.preflight.steps for each in outcome.step_seconds)
    return (low, high) if 0 <= low <= high <= MOST_SECONDS else None


def not_met(outcome: EvaluateOutcome) -> Sequence[GateOutcome]:
    """Returns the gates that the tuned model does not meet."""
    return [gate for gate in outcome.gates if not gate.passed]


def gate_text(gate: GateOutcome) -> str:
    """Returns the comparison, such as ``faq/exact_match is 0.41, at least 0.62 is required``."""
    value = "was not measured" if gate.value is None else f"is {decimal(gate.value)}"
    if gate.threshold is None:
        return f"{gate.metric} {value}, and the base model's, which it is compared with, was not measured"
    return f"{gate.metric} {value}, {_COMPARISON[gate.op]} {decimal(gate.threshold)} is required"


def missed_gates(outcome: EvaluateOutcome, plan: Plan) -> Failure | None:
    """Returns the failure of Evaluate if a gate is not met and the job then exports no model; else None."""
    missed = not_met(outcome)
    if not missed or plan.on_gate_failure == "Export":
        return None
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=Reason.GATE_NOT_MET,
        message=f"The tuned model is not exported: {'; '.join(map(gate_text, missed))}."[:1024],
        fix="Train longer or on better data; or lower the gate and retry from Evaluate, "
        "or set spec.export.onGateFailure to Export and retry from Export.",
    )
