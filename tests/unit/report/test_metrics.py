"""``train/metrics.jsonl`` as columns: what is kept of any content."""

import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.results.lines import parse_lines
from finetune_operator.results.report.curves import loss_curve
from finetune_operator.results.training_metrics import TrainingMetrics
from tests.unit.comparison.runs import run
from tests.unit.report.records import measured, metrics


def parsed(content: bytes) -> dict[str, list[tuple[int, float]]]:
    found = measured(content)
    return {name: found.column(name).points() for name in found.names}


def test_each_metric_becomes_a_column_with_its_steps() -> None:
    found = metrics(200)
    assert len(found.column("loss").points()) == 200
    assert found.column("loss").points()[-1] == (200, 3.0 / 200)
    assert found.column("evaluation_loss").points() == [(100, 0.032), (200, 0.016)]
    assert found.column("reward_margin").points() == []


def test_values_that_are_not_finite_are_kept_and_recognized() -> None:
    content = b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "loss": -Infinity}\n'
    column = measured(content).column("loss")
    assert math.isnan(column.values[1])
    assert column.finite() == [(1, 2.0)]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[]",
        b"null",
        b'{"loss": 1.0}',
        b'{"step": -1, "loss": 1.0}',
        b'{"step": true, "loss": 1.0}',
        b'{"step": 1.5, "loss": 1.0}',
        b'{"step": 1' + b"0" * 300 + b', "loss": 1.0}',
        b'{"step": 1, "loss": ' + b"[" * 5000,
        b'{"step": 1, "loss": 1.0, "note": "' + b"x" * 10_000 + b'"}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_measurement_is_counted_and_left_out(line: bytes) -> None:
    found = TrainingMetrics()
    rejected = parse_lines(
        b'{"step": 1, "loss": 2.0}\n' + line + b"\n", found.take, most_lines=10, line_bytes=8192
    )
    assert (rejected.number, found.column("loss").points()) == (1, [(1, 2.0)])
    assert rejected.first_fault.startswith("line 2: ")
    assert len(rejected.first_fault) < 200


def test_values_that_are_no_numbers_are_left_out() -> None:
    content = (
        b'{"step": 1, "loss": "2.0", "ok": true, "norm": null, "deep": {"a": 1}, "huge": 1'
        + b"0" * 300
        + b"}"
    )
    assert parsed(content) == {}


def test_the_number_of_metrics_is_bounded() -> None:
    content = b"".join(b'{"step": %d, "m%d": 1.0}\n' % (number, number) for number in range(500))
    assert len(parsed(content)) == 64


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(allow_nan=False)), max_size=40))
def test_steps_ascend_and_the_last_value_of_a_step_counts(points: list[tuple[int, float]]) -> None:
    content = "".join(
        f'{{"step": {step}, "loss": {value!r}}}\n'.replace("inf", "Infinity") for step, value in points
    )
    assert parsed(content.encode()).get("loss", []) == sorted(dict(points).items())


def test_validation_sets_beyond_those_that_are_drawn_take_no_more_memory() -> None:
    def peak(sets: int) -> int:
        values = {f"set-{number}/loss": 1.5 for number in range(sets)}
        lines = (json.dumps({"step": step, **values}) for step in range(2000))
        found = measured("\n".join(lines).encode())
        tracemalloc.start()
        try:
            curve = loss_curve(run(metrics=found))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert curve is not None
            assert len(curve.series) == 9

    assert peak(60) < 1.2 * peak(9)
