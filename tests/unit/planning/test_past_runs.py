"""Past trainings of a plan's shape, by records of the ledger."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord, TrainedSteps
from finetune_operator.planning import Plan, admit
from finetune_operator.planning.estimate.past_runs import (
    DAYS,
    LEAST_STEPS,
    PastRuns,
    PastTrainings,
    TrainingShape,
)
from tests.unit.ledger.test_record import UID, record
from tests.unit.lifecycle.world import job, profile

OTHER = "11111111-8d0e-4c39-a7d6-1f1f0c1d2e3f"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return admit(job(), [profile()]).plan


def ended(plan: Plan, trained: Mapping[str, Any] | None = None, **values: Any) -> LedgerRecord:
    """The record of an attempt of the plan's shape that made 100 steps in 1,000 seconds, but for these fields."""
    lora = plan.method.lora
    shape: dict[str, Any] = {
        "steps": 100,
        "method": plan.method.type,
        "lora": lora is not None,
        "quantization": (lora.quantization if lora else None) or "",
        "max_seq_length": plan.data.max_seq_length,
        "global_batch_size": plan.hyperparameters.global_batch_size,
    }
    fields: dict[str, Any] = {
        "model": plan.model.address,
        "tpu": plan.placement.shape.name,
        "chips": plan.chips,
        "seconds": 1000,
        "trained": TrainedSteps.model_validate(shape | dict(trained or {})),
    }
    return record(**fields | values)


def past_runs(plan: Plan, records: Sequence[LedgerRecord]) -> PastRuns | None:
    return PastTrainings(records).of(TrainingShape.of_plan(plan))


def test_median_and_range_of_several_attempts(plan: Plan) -> None:
    found = past_runs(
        plan,
        [
            ended(plan, number=1, seconds=1000),
            ended(plan, number=2, seconds=1200),
            ended(plan, number=1, uid=OTHER, seconds=3000),
        ],
    )
    assert found == PastRuns(attempts=3, jobs=2, low=10, median=12, high=30)


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_time_of_an_attempt_over_several_days_is_that_of_all_its_records(
    plan: Plan, newest_first: bool
) -> None:
    day = ended(plan, outcome=LedgerOutcome.RUNNING, seconds=4000, failure_class=None)
    records = [day.model_copy(update={"trained": None}), ended(plan, seconds=1000)]
    found = past_runs(plan, records[::-1] if newest_first else records)
    assert found == PastRuns(attempts=1, jobs=1, low=50, median=50, high=50)


@pytest.mark.parametrize(
    "values",
    [
        {"model": "Qwen/Qwen3-32B"},
        {"tpu": "v6e-64"},
        {"chips": 4096},
        {"trained": {"max_seq_length": 131072}},
        {"trained": {"global_batch_size": 4096}},
        {"trained": {"method": "ORPO"}},
        {"trained": {"quantization": "INT8"}},
        {"trained": {"steps": LEAST_STEPS - 1}},
        {"seconds": 0},
        {"outcome": LedgerOutcome.CORRECTION},
    ],
    ids=str,
)
def test_attempts_of_another_shape_or_with_few_steps_do_not_count(plan: Plan, values: dict[str, Any]) -> None:
    assert past_runs(plan, [ended(plan, **values)]) is None


def test_an_adapter_is_no_training_of_all_weights(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, {"lora": plan.method.lora is None})]) is None


def test_records_of_earlier_releases_do_not_count(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan).model_copy(update={"trained": None})]) is None


def test_all_namespaces_count(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, namespace="team-z", uid=UID)]) is not None


def test_a_record_that_is_given_twice_counts_once(plan: Plan) -> None:
    """It is read from the ledger, and written again after an error."""
    assert past_runs(plan, [ended(plan)] * 2) == past_runs(plan, [ended(plan)])


def test_what_is_known_follows_new_records(plan: Plan) -> None:
    trainings, shape = PastTrainings(), TrainingShape.of_plan(plan)
    assert trainings.of(shape) is None
    for number in (1, 2):
        trainings.add(ended(plan, number=number))
        found = trainings.of(shape)
        assert found is not None
        assert found.attempts == number


def test_old_trainings_are_forgotten(plan: Plan) -> None:
    new = ended(plan, number=2)
    old = ended(plan, number=1, seconds=9000, day=new.day - timedelta(days=DAYS + 1))
    assert past_runs(plan, [old, new]) == past_runs(plan, [new])
    other = new.model_copy(update={"model": "a/b"})
    assert past_runs(plan, [old, other]) is None
    edge = old.model_copy(update={"day": new.day - timedelta(days=DAYS)})
    assert past_runs(plan, [edge, new]) == PastRuns(attempts=2, jobs=1, low=10, median=50, high=90)


def test_other_stages_are_no_trainings(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, stage=Stage.EVALUATE)]) is None
