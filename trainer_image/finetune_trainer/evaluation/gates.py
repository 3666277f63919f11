"""Checks whether a tuned model passes the requested gates. Pure."""

from collections.abc import Mapping, Sequence

from finetune_contract import GateOutcome, GateSpec


def evaluate_gates(
    gates: Sequence[GateSpec], baseline: Mapping[str, float], tuned: Mapping[str, float]
) -> list[GateOutcome]:
    """Returns the outcome of each gate. ``baseline`` and ``tuned`` are metrics by name.

    A gate fails if its metric was not measured or is not a number.
    """
    return [_judged(gate, baseline.get(gate.metric), tuned.get(gate.metric)) for gate in gates]


def _judged(gate: GateSpec, baseline: float | None, value: float | None) -> GateOutcome:
    threshold = gate.value
    if gate.delta_from_baseline is not None:
        threshold = None if baseline is None else baseline + gate.delta_from_baseline
    passed = (
        value is not None
        and threshold is not None
        and (value >= threshold if gate.op == "GreaterOrEqual" else value <= threshold)
    )
    return GateOutcome(metric=gate.metric, value=value, op=gate.op, threshold=threshold, passed=passed)
