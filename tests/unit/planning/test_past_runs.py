"""Past trainings of a plan's shape, by records of the ledger."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord, TrainedSteps
from finetune_operator.planning import Plan, admit
from finetune_operator.planning.estimate.past_runs import (
    DAYS,
    LEAST_STEPS,
    PastRuns,
    TrainingRecords,
    TrainingShape,
)
from tests.unit.ledger.test_record import UID, record
from tests.unit.lifecycle.world import job, profile

OTHER = "11111111-8d0e-4c39-a7d6-1f1f0c1d2e3f"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return admit(job(), [profile()]).plan


def ended(
    plan: Plan, trained: Mapping[str, Any] | None = None, seconds: float = 1000, **values: Any
) -> LedgerRecord:
    """The record of an attempt of the plan's shape that made 100 steps in 1,000 seconds, but for these fields."""
    lora = plan.method.lora
    shape: dict[str, Any] = {
        "start_step": 0,
        "end_step": 100,
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
        "chip_hours": round(Decimal(seconds * plan.chips) / 3600, 6),
        "trained": TrainedSteps.model_validate(shape | dict(trained or {})),
    }
    return record(**fields | values)


def past_runs(
    plan: Plan, records: Sequence[LedgerRecord], steps: int | None = None, least: float | None = None
) -> PastRuns | None:
    return TrainingRecords(records).trainings().of(TrainingShape.of_plan(plan), steps, least)


def of(attempts: int, steps: tuple[int, int], *range_: float) -> PastRuns:
    """Of one job with so many attempts; of several jobs, if they differ, with one attempt each."""
    low, middle, high = range_
    return PastRuns(
        attempts=attempts, jobs=1 if low == high else attempts, fewest_steps=steps[0], most_steps=steps[1],
        low=low, median=middle, high=high,
    )  # fmt: skip


def test_median_and_range_of_several_jobs(plan: Plan) -> None:
    found = past_runs(
        plan,
        [
            ended(plan, uid=f"{number}{OTHER[1:]}", seconds=seconds)
            for number, seconds in enumerate((1000, 3000, 1200))
        ],
    )
    assert found == of(3, (100, 100), 10, 12, 30)


#: Attempts of one job: first step, last step, seconds. A step takes 2 s, a start 300 s.
INTERRUPTED = ((0, 25, 350), (20, 60, 380), (50, 110, 420), (100, 1025, 2150))


def attempts(plan: Plan, *made: tuple[int, int, float], **values: Any) -> list[LedgerRecord]:
    return [
        ended(plan, {"start_step": start, "end_step": end}, seconds, number=number, **values)
        for number, (start, end, seconds) in enumerate(made, start=1)
    ]


def test_a_job_that_was_interrupted_often_took_what_its_attempts_took_together(plan: Plan) -> None:
    found = past_runs(plan, attempts(plan, *INTERRUPTED))
    each = (350 + 380 + 420 + 2150) / 1025
    assert found == of(4, (1025, 1025), each, each, each)


def test_the_attempts_of_one_job_do_not_outweigh_other_jobs(plan: Plan) -> None:
    honest = [ended(plan, uid=f"{number}{OTHER[1:]}") for number in range(2)]
    forged = attempts(plan, *((20 * n, 20 * n + 20, 10_000) for n in range(900)))
    found = past_runs(plan, [*honest, *forged])
    assert found is not None
    assert (found.jobs, found.median) == (3, 10)


def test_a_job_that_is_faster_than_its_arithmetic_does_not_count(plan: Plan) -> None:
    records = [ended(plan), ended(plan, {"end_step": 2**53}, uid=OTHER)]
    assert past_runs(plan, records, least=0.5) == of(1, (100, 100), 10, 10, 10)
    assert past_runs(plan, records, least=11.0) is None


@pytest.mark.parametrize("lost", [1, 2])
def test_an_attempt_without_known_steps_counts_with_its_time(plan: Plan, lost: int) -> None:
    """It was lost before its first step, or what it has saved is where the next one begins."""
    records = attempts(plan, (0, 50, 400), (50, 100, 400), (100, 200, 600))
    records[lost - 1] = records[lost - 1].model_copy(update={"trained": None})
    if lost == 1:
        records[1] = attempts(plan, (0, 0, 0), (0, 100, 400))[1]
    assert past_runs(plan, records) == of(3, (200, 200), 7, 7, 7)


def test_what_a_job_did_before_its_steps_are_known_does_not_count(plan: Plan) -> None:
    records = attempts(plan, (0, 0, 9000), (400, 500, 1000))
    records[0] = records[0].model_copy(update={"trained": None})
    assert past_runs(plan, records) == of(1, (100, 100), 10, 10, 10)


def test_what_follows_the_last_known_step_does_not_count(plan: Plan) -> None:
    lost = ended(plan, seconds=9000, number=2).model_copy(update={"trained": None})
    running = ended(plan, seconds=86400, number=3, outcome=LedgerOutcome.RUNNING, failure_class=None)
    running = running.model_copy(update={"trained": None})
    records = [*attempts(plan, (0, 100, 1000)), lost, running]
    assert past_runs(plan, records) == of(1, (100, 100), 10, 10, 10)


def test_steps_that_were_made_on_another_slice_do_not_count(plan: Plan) -> None:
    records = attempts(plan, (0, 100, 1000), (100, 5000, 9000), (5000, 5100, 1000))
    records[1] = records[1].model_copy(update={"tpu": "v6e-64", "chips": 64})
    assert past_runs(plan, records) == of(2, (200, 200), 10, 10, 10)


def test_of_attempts_that_were_recorded_late_the_last_record_has_the_usage_of_all(plan: Plan) -> None:
    late = attempts(plan, (0, 50, 0), (50, 100, 1000))
    assert past_runs(plan, late) == of(2, (100, 100), 10, 10, 10)
    # Here it is that of Evaluate.
    assert past_runs(plan, attempts(plan, (0, 50, 500), (50, 100, 0))) is None


def test_jobs_of_far_fewer_steps_do_not_count(plan: Plan) -> None:
    """Most of their time is their start."""
    records = [*attempts(plan, (0, 20, 340)), *attempts(plan, (0, 5000, 10300), uid=OTHER)]
    assert past_runs(plan, records, 201) == of(1, (5000, 5000), 2.06, 2.06, 2.06)
    found = past_runs(plan, records, 200)
    assert found is not None
    assert (found.jobs, found.low, found.high) == (2, 2.06, 17)


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_time_of_an_attempt_over_several_days_is_that_of_all_its_records(
    plan: Plan, newest_first: bool
) -> None:
    day = ended(plan, outcome=LedgerOutcome.RUNNING, seconds=4000, failure_class=None)
    records = [day.model_copy(update={"trained": None}), ended(plan, seconds=1000)]
    found = past_runs(plan, records[::-1] if newest_first else records)
    assert found == of(1, (100, 100), 50, 50, 50)


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
        {"trained": {"end_step": LEAST_STEPS - 1}},
        {"seconds": 0},
        {"outcome": LedgerOutcome.CORRECTION},
    ],
    ids=str,
)
def test_attempts_of_another_shape_or_with_few_steps_do_not_count(plan: Plan, values: dict[str, Any]) -> None:
    assert past_runs(plan, [ended(plan, **values)]) is None


def test_an_adapter_is_no_training_of_all_weights(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, {"lora": plan.method.lora is None})]) is None


def test_records_without_steps_do_not_count(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan).model_copy(update={"trained": None})]) is None


def test_all_namespaces_count(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, namespace="team-z", uid=UID)]) is not None


def test_a_record_that_is_given_twice_counts_once(plan: Plan) -> None:
    """It is read from the ledger, and written again after an error."""
    assert past_runs(plan, [ended(plan)] * 2) == past_runs(plan, [ended(plan)])


def test_what_is_known_follows_new_records(plan: Plan) -> None:
    records, shape = TrainingRecords(), TrainingShape.of_plan(plan)
    assert records.trainings().of(shape) is None
    for number in (1, 2):
        records.add(ended(plan, uid=f"job-{number}"))
        found = records.trainings().of(shape)
        assert found is not None
        assert found.attempts == number


def test_usage_that_is_recorded_after_the_end_counts(plan: Plan) -> None:
    records, shape = TrainingRecords([ended(plan)]), TrainingShape.of_plan(plan)
    before = records.trainings()
    assert before.of(shape) == of(1, (100, 100), 10, 10, 10)
    late = ended(plan, seconds=500, outcome=LedgerOutcome.CORRECTION)
    records.add(late.model_copy(update={"trained": None}))
    assert records.trainings().of(shape) == of(1, (100, 100), 15, 15, 15)
    assert before.of(shape) == of(1, (100, 100), 10, 10, 10), "what a decision was given stays as it was"


def test_old_trainings_are_forgotten(plan: Plan) -> None:
    new = ended(plan)
    old = ended(plan, seconds=9000, uid=OTHER, day=new.day - timedelta(days=DAYS + 1))
    assert past_runs(plan, [old, new]) == past_runs(plan, [new])
    other = new.model_copy(update={"model": "a/b"})
    assert past_runs(plan, [old, other]) is None
    edge = old.model_copy(update={"day": new.day - timedelta(days=DAYS)})
    assert past_runs(plan, [edge, new]) == of(2, (100, 100), 10, 50, 90)


def test_other_stages_are_no_trainings(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, stage=Stage.EVALUATE)]) is None
