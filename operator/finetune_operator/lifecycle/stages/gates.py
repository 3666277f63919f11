"""The effect of gates on the tuned model's metrics, which the trainer has evaluated."""

from collections.abc import Sequence

from finetune_contract import EvaluateOutcome, ExitCode, Failure, GateOutcome
from finetune_operator.api import Reason
from finetune_operator.api.numbers import decimal
from finetune_operator.planning import Plan

_COMPARISON = {"GreaterOrEqual": "at least", "LessOrEqual": "at most"}


def not_met(outcome: EvaluateOutcome) -> Sequence[GateOutcome]:
    """Returns the gates that the tuned model does not meet."""
    return [gate for gate in outcome.gates if not gate.passed]


def gate_text(gate: GateOutcome) -> str:
    """Returns the comparison, such as ``faq/exact_match is 0.41, at least 0.62 is required``."""
    value = "was not measured" if gate.value is None else f"is {decimal(gate.value)}"
    if gate.threshold is None:
        return f"{gate.metric} {value}, and the base model's, which it is compared with, was not measured"
    return f"{gate.metric} {value}, {_COMPARISON[gate.op]} {decimal(gate.threshold)} is required"


def failure_of(outcome: EvaluateOutcome, plan: Plan) -> Failure | None:
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
