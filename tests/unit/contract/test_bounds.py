"""Records hold only so much: a writer cuts it, and a reader refuses one that is not cut."""

import pytest
from pydantic import ValidationError

from finetune_contract import (
    CheckpointRecord,
    Failure,
    Progress,
    Stage,
    StageProgress,
    StageResult,
    StepMetrics,
    TrainOutcome,
)
from finetune_contract.result import MOST_CHECKPOINTS, SHOWN_CHARACTERS, Sample
from finetune_operator.artifacts.port import PROGRESS_LIMIT, RECORD_LIMIT
from tests.unit.reconcile.fakes import NOW
from tests.unit.reconcile.records import progress, result, stage_progress


def test_the_texts_of_a_shown_sample_are_cut() -> None:
    sample = Sample(prompt="p" * 5000, tuned="t" * SHOWN_CHARACTERS)
    shown = sample.shown()
    assert len(shown.prompt) == SHOWN_CHARACTERS
    assert shown.prompt.endswith("…")
    assert shown.tuned == sample.tuned
    assert shown.baseline is shown.reference is None


def test_sixteen_samples_of_whole_documents_fit_a_record() -> None:
    sample = Sample(
        prompt="語" * 100_000, baseline="語" * 100_000, tuned="語" * 100_000, reference="語" * 100_000
    )
    assert 16 * len(sample.shown().to_json().encode()) < RECORD_LIMIT / 2


def test_a_training_with_the_most_checkpoints_fits_a_record() -> None:
    uri = f"gs://{'b' * 63}/{'n' * 63}/{'j' * 63}-00000000/train/checkpoints/123456789"
    one = CheckpointRecord(step=123456789, uri=uri, metrics={"loss": 1.2345678901234567, "perplexity": 3.4})
    outcome = TrainOutcome(step=1, total_steps=1, end_ids=[], checkpoints=[one] * MOST_CHECKPOINTS)
    assert len(outcome.to_json().encode()) < RECORD_LIMIT / 2
    with pytest.raises(ValidationError):
        TrainOutcome(step=1, total_steps=1, end_ids=[], checkpoints=[one] * (MOST_CHECKPOINTS + 1))


def test_a_map_beyond_all_measure_is_refused() -> None:
    document = result(Stage.PREFLIGHT).model_dump(mode="json")
    document["details"]["fingerprint_inputs"] = {f"k{number}": "v" for number in range(600)}
    with pytest.raises(ValidationError):
        StageResult.model_validate(document)


@pytest.mark.parametrize(
    "name", ["seconds", "seconds_before", "queued", "provisioning", "chips", "checkpoint"]
)
@pytest.mark.parametrize("value", [-1, 10**400, "NaN", 1e300, float("inf")])
def test_a_failure_with_a_number_beyond_all_measure_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Failure.model_validate({"code": 69, "reason": "Broken", "message": "it broke", name: value})


def test_the_longest_progress_fits_its_limit() -> None:
    longest = progress(3).model_copy(
        update={
            "curve": [(10**9, 1.2345678901234567)] * 48,
            "seconds": {f"{'k' * 60}{number}": 1.2345678901234567e10 for number in range(64)},
            "updated": NOW,
        }
    )
    assert len(longest.to_json().encode()) < PROGRESS_LIMIT / 2


@pytest.mark.parametrize(
    "changes",
    [
        {"doing": ""}, {"doing": "d" * 81}, {"unit": "u" * 17}, {"done": -1}, {"total": 2**53 + 1},
        {"done_bytes": 10**400}, {"total_bytes": "many"}, {"updated": "yesterday"}, {"since": "2026-11-25T12:00:00"},
    ],
    ids=str,
)  # fmt: skip
def test_a_progress_of_a_stage_beyond_all_measure_is_refused(changes: dict[str, object]) -> None:
    document = stage_progress().model_dump(mode="json")
    assert StageProgress.model_validate(document) == stage_progress()
    with pytest.raises(ValidationError):
        StageProgress.model_validate(document | changes)


@pytest.mark.parametrize("field", ["seconds", "seconds_before", "queued", "provisioning", "chip_hour_price"])
@pytest.mark.parametrize("value", ["NaN", '"NaN"', "Infinity", "-Infinity", "1e999", "1e308", "-1"])
def test_a_duration_or_price_that_is_not_finite_or_out_of_bounds_is_refused(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        Failure.model_validate_json(f'{{"code": 69, "reason": "Lost", "message": "x", "{field}": {value}}}')


@pytest.mark.parametrize("value", ["-1", "9" * 20, "9" * 1100])
def test_a_count_out_of_bounds_is_refused(value: str) -> None:
    for field in ("chips", "host", "checkpoint"):
        with pytest.raises(ValidationError):
            Failure.model_validate_json(
                f'{{"code": 69, "reason": "Lost", "message": "x", "{field}": {value}}}'
            )
    document = progress(3).to_json()[:-1]
    for field in ("step", "total_steps", "checkpoints", "peak_memory_bytes"):
        told = f"[{value}]" if field == "checkpoints" else value
        with pytest.raises(ValidationError):
            Progress.model_validate_json(f'{document},"{field}":{told}}}')


def test_a_loss_that_diverged_is_still_a_record() -> None:
    written = progress(3).model_copy(update={"metrics": StepMetrics(loss=float("nan"))}).to_json()
    assert str(Progress.model_validate_json(written).metrics.loss) == "nan"


def test_a_large_training_is_within_bounds() -> None:
    Failure(
        code=75,
        reason="Evicted",
        message="x",
        seconds=400 * 86400.0,
        chips=50_000,
        chip_hour_price=4_000_000.0,
    )
