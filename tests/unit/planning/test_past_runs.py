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
    step_settings,
)
from tests.unit.ledger.test_record import UID, record
from tests.unit.lifecycle.world import job, profile

OTHER = "11111111-8d0e-4c39-a7d6-1f1f0c1d2e3f"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return admit(job(), [profile()]).plan


def ended(plan: Plan, trained: Mapping[str, Any] | None = None, **values: Any) -> LedgerRecord:
    """The record of a job of the plan's shape whose only attempt made 100 steps in 1,000 seconds, but for these
    fields."""
    made = {"start_step": 0, "end_step": 100, "attempts": 1, "seconds": 1000}
    fields: dict[str, Any] = {
        "model": plan.model.address,
        "tpu": plan.placement.shape.name,
        "chips": plan.chips,
        "trained": TrainedSteps.model_validate(step_settings(plan) | made | dict(trained or {})),
    }
    return record(**fields | values)


def past_runs(
    plan: Plan, records: Sequence[LedgerRecord], steps: int | None = None, least: float | None = None
) -> PastRuns | None:
    return PastTrainings(records).of(TrainingShape.of_plan(plan), steps, least)


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
            ended(plan, {"seconds": seconds}, uid=f"{number}{OTHER[1:]}")
            for number, seconds in enumerate((1000, 3000, 1200))
        ],
    )
    assert found == of(3, (100, 100), 10, 12, 30)


def attempts(plan: Plan, *made: tuple[int, int], **values: Any) -> list[LedgerRecord]:
    """The records of one job's attempts: the step, and the seconds of all attempts until then."""
    return [
        ended(plan, {"end_step": step, "seconds": seconds, "attempts": number}, number=number, **values)
        for number, (step, seconds) in enumerate(made, start=1)
    ]


#: A step takes 2 s, a start 300 s.
INTERRUPTED = ((25, 350), (60, 730), (110, 1150), (1025, 3300))


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_job_that_was_interrupted_took_what_its_attempts_took_together(
    plan: Plan, newest_first: bool
) -> None:
    records = attempts(plan, *INTERRUPTED)
    found = past_runs(plan, records[::-1] if newest_first else records)
    assert found == of(4, (1025, 1025), 3300 / 1025, 3300 / 1025, 3300 / 1025)


def test_the_attempts_of_one_job_do_not_outweigh_other_jobs(plan: Plan) -> None:
    honest = [ended(plan, uid=f"{number}{OTHER[1:]}") for number in range(2)]
    forged = attempts(plan, *((20 * n, 10_000 * n) for n in range(1, 900)))
    found = past_runs(plan, [*honest, *forged])
    assert found is not None
    assert (found.jobs, found.median) == (3, 10)


def test_a_job_that_is_faster_than_its_arithmetic_does_not_count(plan: Plan) -> None:
    records = [ended(plan), ended(plan, {"end_step": 2**53}, uid=OTHER)]
    assert past_runs(plan, records, least=0.5) == of(1, (100, 100), 10, 10, 10)
    assert past_runs(plan, records, least=11.0) is None


def test_a_job_that_continues_another_one_made_the_steps_since_its_begin(plan: Plan) -> None:
    assert past_runs(plan, [ended(plan, {"start_step": 400, "end_step": 500})]) == of(
        1, (100, 100), 10, 10, 10
    )


def test_jobs_of_far_fewer_steps_do_not_count(plan: Plan) -> None:
    """Most of their time is their start."""
    records = [*attempts(plan, (20, 340)), *attempts(plan, (5000, 10300), uid=OTHER)]
    assert past_runs(plan, records, 201) == of(1, (5000, 5000), 2.06, 2.06, 2.06)
    found = past_runs(plan, records, 200)
    assert found is not None
    assert (found.jobs, found.low, found.high) == (2, 2.06, 17)


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
        {"trained": {"seconds": 0}},
        {"outcome": LedgerOutcome.RUNNING},
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
    trainings, shape = PastTrainings(), TrainingShape.of_plan(plan)
    assert trainings.of(shape) is None
    for number in (1, 2):
        trainings.add(ended(plan, uid=f"job-{number}"))
        found = trainings.of(shape)
        assert found is not None
        assert found.attempts == number


def test_old_trainings_are_forgotten(plan: Plan) -> None:
    new = ended(plan)
    old = ended(plan, {"seconds": 9000}, uid=OTHER, day=new.day - timedelta(days=DAYS + 1))
    assert past_runs(plan, [old, new]) == past_runs(plan, [new])
    other = new.model_copy(update={"model": "a/b"})
    assert past_runs(plan, [old, other]) is None
    edge = old.model_copy(update={"day": new.day - timedelta(days=DAYS)})
    assert past_runs(plan, [edge, new]) == of(2, (100, 100), 10, 50, 90)


def test_other_stages_are_no_trainings(plan: Plan) -> None:
    other = ended(plan, stage=Stage.EVALUATE).model_copy(update={"trained": None})
    assert past_runs(plan, [other]) is None
