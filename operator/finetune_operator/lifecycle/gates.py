"""What the gates on the tuned model's metrics decide. The trainer has judged them; here is what follows."""

from collections.abc import Sequence

from finetune_contract import EvaluateOutcome, ExitCode, Failure, GateOutcome
from finetune_operator.api import Reason
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.planning import Plan

_ASKED = {"GreaterOrEqual": "at least", "LessOrEqual": "at most"}


def not_met(outcome: EvaluateOutcome) -> Sequence[GateOutcome]:
    return [gate for gate in outcome.gates if not gate.passed]


def gate_text(gate: GateOutcome) -> str:
    """``faq/exact_match is 0.41, at least 0.62 is asked for``"""
    value = "was not measured" if gate.value is None else f"is {decimal(gate.value)}"
    if gate.threshold is None:
        return f"{gate.metric} {value}, and the base model's, which it is compared with, was not measured"
    return f"{gate.metric} {value}, {_ASKED[gate.op]} {decimal(gate.threshold)} is asked for"


def failure_of(outcome: EvaluateOutcome, plan: Plan) -> Failure | None:
    """Why Evaluate has failed though it measured: a gate is not met, and the model is not to be exported then."""
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
