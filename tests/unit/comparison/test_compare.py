"""Two or more runs compared by their records."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_contract import DatasetScores, EvaluatedRow, EvaluateOutcome
from finetune_operator.results.comparison.compare import compared
from finetune_operator.results.comparison.model import (
    Comparison,
    Contrast,
    Direction,
    MetricComparison,
    Verdict,
)
from finetune_operator.results.comparison.settings import direction_of
from finetune_operator.results.errors import NotComparableError
from finetune_operator.results.records import RunRecords
from tests.unit.comparison.runs import Kind, digest, preflight, request, results, row, rows, run, status

PAIRS = {"type": "DPO", "beta": 0.1, "label_smoothing": 0.0, "max_prompt_length": 512}
UNPACKED = {"data__packing": False}
NOTHING_ASKED = "name datasets, benchmarks, prompts or gates in spec.evaluation"


def metrics(found: Comparison) -> dict[str, MetricComparison]:
    return {each.name: each for each in found.metrics}


def contrast(found: Comparison, metric: str, job: str = "B") -> Contrast:
    (value,) = (each for each in metrics(found)[metric].values if each.job == job)
    assert value.from_reference is not None
    return value.from_reference


def scored(values: Sequence[float], name: str = "exact_match") -> list[EvaluatedRow]:
    return [row(at, kind="Dataset", name="faq", scores={name: each}) for at, each in enumerate(values)]


def measured(rows_of: Sequence[EvaluatedRow], name: str = "support-bot", **fields: Any) -> RunRecords:
    return run(name, rows_of, evaluation=None, **fields)


def test_a_better_model_is_better_in_loss_and_score() -> None:
    found = compared([run("a", rows(200, seed=1)), run("b", rows(200, seed=2, gain=0.1, right=0.8))])
    assert list(metrics(found)) == ["loss", "faq/exact_match"]
    loss, score = contrast(found, "loss"), contrast(found, "faq/exact_match")
    assert (loss.verdict, score.verdict) == (Verdict.BETTER, Verdict.BETTER)
    assert loss.difference == pytest.approx(-0.1, abs=0.02)
    assert loss.interval is not None
    assert loss.interval[0] < loss.difference < loss.interval[1] < 0  # type: ignore[operator]
    assert metrics(found)["loss"].rows == 200


def test_each_model_is_compared_with_its_base_model() -> None:
    found = compared([run("a", rows(100, seed=1)), run("b", rows(100, seed=2))])
    a, b = metrics(found)["loss"].values
    assert a.from_reference is None
    for each in (a, b):
        assert each.from_baseline is not None
        assert each.from_baseline.verdict is Verdict.BETTER
        assert each.from_baseline.difference == pytest.approx(-0.5, abs=0.02)
    assert a.baseline == b.baseline


def test_the_mean_loss_is_over_tokens_and_a_mean_score_over_rows() -> None:
    first = [row(1, 10.0, tokens=10), row(2, 90.0, tokens=30)]
    second = [row(1, 20.0, tokens=10), row(2, 90.0, tokens=30)]
    found = compared([measured(first), measured(second)])
    a, b = metrics(found)["loss"].values
    assert (a.value, b.value) == (2.5, 2.75)
    assert contrast(found, "loss").difference == 0.25


@pytest.mark.parametrize(
    ("before", "after", "name", "verdict"),
    [
        ([0.0] * 40, [1.0] * 40, "exact_match", Verdict.BETTER),
        ([1.0] * 40, [0.0] * 40, "exact_match", Verdict.WORSE),
        ([0.5] * 40, [0.4] * 40, "bits_per_byte", Verdict.BETTER),
        ([0.0] * 40, [1.0] * 40, "house_score", Verdict.HIGHER),
        ([1.0] * 40, [0.0] * 40, "house_score", Verdict.LOWER),
        ([0.0, 1.0] * 20, [1.0, 0.0] * 20, "exact_match", Verdict.NO_DIFFERENCE),
        ([0.0] * 40, [0.0] * 35 + [1.0] * 5, "exact_match", Verdict.NO_DIFFERENCE),
        ([0.25] * 40, [0.25] * 40, "exact_match", Verdict.IDENTICAL),
        ([0.0] * 5, [1.0] * 5, "exact_match", Verdict.TOO_FEW_ROWS),
        ([0.0], [1.0], "exact_match", Verdict.TOO_FEW_ROWS),
        ([0.0] * 40, [*[1.0] * 39, float("nan")], "exact_match", Verdict.NOT_COMPARABLE),
        ([1e300] * 40, [1e308] * 40, "exact_match", Verdict.NOT_COMPARABLE),
    ],
)
def test_verdicts(before: list[float], after: list[float], name: str, verdict: Verdict) -> None:
    found = compared([measured(scored(before, name)), measured(scored(after, name))])
    assert contrast(found, f"faq/{name}").verdict is verdict


def test_few_rows_that_differ_are_the_reason_for_no_difference() -> None:
    found = compared([measured(scored([0.0] * 200)), measured(scored([0.0] * 196 + [1.0] * 4))])
    assert contrast(found, "faq/exact_match").reason == "only 4 rows differ"


def test_the_smallest_difference_is_half_of_the_interval() -> None:
    found = contrast(compared([run("a", rows(200, seed=1)), run("b", rows(200, seed=2))]), "faq/exact_match")
    assert found.interval is not None
    assert found.smallest == pytest.approx((found.interval[1] - found.interval[0]) / 2)


@settings(max_examples=25)
@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.integers(1, 3))
def test_equal_models_are_identical_with_difference_0(losses: list[float], copies: int) -> None:
    same = measured([row(at, loss) for at, loss in enumerate(losses)])
    found = compared([same] * (copies + 1))
    for value in metrics(found)["loss"].values[1:]:
        assert value.from_reference is not None
        assert value.from_reference.difference == 0
        few = len(losses) < 10
        assert value.from_reference.verdict is (Verdict.TOO_FEW_ROWS if few else Verdict.IDENTICAL)


def test_the_result_is_the_same_for_any_order_of_rows() -> None:
    first, second = rows(60, seed=1), rows(60, seed=2, gain=0.02)
    shuffled = list(second)
    Random(3).shuffle(shuffled)
    straight = compared([run("a", first), run("b", second)])
    assert compared([run("a", first), run("b", shuffled)]).metrics == straight.metrics
    assert compared([run("a", first), run("b", second)]) == straight


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("loss", Direction.LOWER),
        ("set/loss", Direction.LOWER),
        ("gsm8k/exact_match,strict-match", Direction.HIGHER),
        ("wiki/word_perplexity", Direction.LOWER),
        ("mmlu/acc", Direction.HIGHER),
        ("reward_margin", Direction.HIGHER),
        ("task/unheard_of", Direction.UNKNOWN),
    ],
)
def test_the_direction_of_a_metric(metric: str, direction: Direction) -> None:
    assert direction_of(metric) is direction


# --- sets


def test_several_validation_sets_have_a_loss_together_and_each() -> None:
    several = [row(at, 1.0 + at, name=name) for name in ("one", "two") for at in range(12)]
    assert list(metrics(compared([measured(several)] * 2))) == ["loss", "one/loss", "two/loss"]
    assert list(metrics(compared([measured(several[:12])] * 2))) == ["loss"]


def test_a_metric_that_one_run_does_not_measure_has_no_difference() -> None:
    with_loss = [row(at, 5.0, kind="Dataset", name="faq", scores={"token_f1": 0.5}) for at in range(20)]
    found = compared([measured(scored([1.0] * 20)), measured(with_loss)])
    for name in ("faq/exact_match", "faq/token_f1", "faq/loss"):
        a, b = metrics(found)[name].values
        assert (a.value is None) != (b.value is None)
        assert b.from_reference is None


def test_a_metric_on_different_rows_of_a_set_is_not_compared() -> None:
    first = [row(at, kind="Dataset", name="faq", scores={"m": 1.0} if at < 2 else {}) for at in range(4)]
    second = [row(at, kind="Dataset", name="faq", scores={"m": 1.0} if at >= 2 else {}) for at in range(4)]
    found = contrast(compared([measured(first), measured(second)]), "faq/m")
    assert (found.verdict, found.reason) == (
        Verdict.NOT_COMPARABLE,
        "2 of A's 4 rows have no value and 2 of B's 4 rows have no value",
    )


def test_a_model_without_values_of_some_rows_is_not_compared_and_takes_no_rows_from_others() -> None:
    """The rows without a value may be those that the model got wrong."""
    whole = scored([0.0, 1.0] * 50)
    partial = [each if each.tuned.scores["exact_match"] else row(at, kind="Dataset", name="faq")
               for at, each in enumerate(whole)]  # fmt: skip
    found = compared([measured(whole), measured(partial), measured(scored([1.0] * 100))])
    score = metrics(found)["faq/exact_match"]
    assert score.rows == 100
    assert contrast(found, "faq/exact_match").verdict is Verdict.NOT_COMPARABLE
    assert contrast(found, "faq/exact_match").reason == "50 of B's 100 rows have no value"
    assert contrast(found, "faq/exact_match", "C").difference == 0.5


def test_a_base_model_without_values_of_some_rows_is_not_compared() -> None:
    some = [row(at, kind="Dataset", name="faq", scores={"m": 1.0}, base_scores={"m": 0.0} if at % 2 else {})
            for at in range(40)]  # fmt: skip
    (value,) = metrics(compared([measured(some)]))["faq/m"].values
    assert value.from_baseline is not None
    assert value.from_baseline.verdict is Verdict.NOT_COMPARABLE
    assert value.from_baseline.reason == "20 of A's base model's 40 rows have no value"


def test_equal_rows_are_one_observation() -> None:
    """Of 12 different rows, five differ: however often each occurs, that is no difference."""
    right = [float(at < 5) for at in range(12)]

    def repeated(values: Sequence[float], times: int) -> RunRecords:
        return measured([each for each in scored(values) for _ in range(times)])

    found = compared([repeated([0.0] * 12, 5), repeated(right, 5)])
    score = metrics(found)["faq/exact_match"]
    assert (score.rows, score.different_rows) == (60, 12)
    assert contrast(found, "faq/exact_match").verdict is Verdict.NO_DIFFERENCE
    assert contrast(found, "faq/exact_match").reason == "only 5 rows differ"
    few = contrast(compared([repeated([0.0] * 9, 5), repeated([1.0] * 9, 5)]), "faq/exact_match")
    assert (few.verdict, few.reason) == (Verdict.TOO_FEW_ROWS, "an interval needs 10 different rows")


def test_a_metric_without_values_of_single_rows_is_compared_by_its_recorded_value() -> None:
    """A benchmark's perplexity is computed from all rows at once."""

    def wiki(perplexity: float) -> RunRecords:
        of_rows = [row(at, kind="Benchmark", name="wiki", scores={"acc": 0.5}) for at in range(20)]
        recorded = DatasetScores(name="wiki", rows=20, tuned={"perplexity": perplexity, "acc": 0.5})
        evaluation = EvaluateOutcome(
            datasets=[recorded], samples_uri="gs://r/samples", rows_uri="gs://r/rows"
        )
        return run("w", of_rows, evaluation=evaluation)

    found = compared([wiki(7.4), wiki(4.5)])
    assert metrics(found)["wiki/acc"].rows == 20
    assert metrics(found)["wiki/perplexity"].rows is None
    assert contrast(found, "wiki/perplexity").verdict is Verdict.NO_INTERVAL
    assert contrast(found, "wiki/perplexity").difference == pytest.approx(-2.9)


def test_hostile_rows_with_very_many_metrics_are_refused() -> None:
    hostile = [
        row(at, kind="Dataset", name="faq", scores={f"{at}-{each}": 1.0 for each in range(60)})
        for at in range(6)
    ]
    with pytest.raises(NotComparableError, match="more than 256 metrics"):
        compared([measured(hostile), measured(hostile)])


# --- different rows


def test_different_rows_are_refused_and_named() -> None:
    first, second = rows(30, seed=1), rows(32, seed=2)
    longer = request(data__max_seq_length=2048)
    with pytest.raises(NotComparableError) as error:
        compared([run("a", first), run("b", second[:-1], request=longer)])
    assert "Validation validation-0: 30 in all, 2 more in B (" in error.value.message
    assert second[30].digest[:12] in error.value.message
    assert "Dataset faq: 30 in all, 1 more in B" in error.value.message
    assert "Settings that differ: datasets.maxSeqLength." in error.value.message
    assert error.value.fix == "--common compares the 60 rows that all have."


def test_common_rows_are_compared_on_request() -> None:
    first, second = rows(30, seed=1), rows(32, seed=2)
    found = compared([run("a", first), run("b", second)], common=True)
    only = compared([run("a", first), run("b", [*second[:30], *second[32:62]])])
    assert found.common_only
    assert not only.common_only
    assert found.metrics == only.metrics
    assert found.notes == ["Only the 60 rows that all have are compared; rows left out: 4 of B."]


def test_rows_that_three_runs_have_are_common() -> None:
    files = [rows(40, seed=seed) for seed in range(3)]
    runs = [run("a", files[0]), run("b", files[1][1:]), run("c", files[2][2:])]
    found = compared(runs, common=True)
    assert metrics(found)["loss"].rows == 38
    assert len({each.value for each in metrics(found)["loss"].values}) == 3


def test_without_a_common_row_there_is_nothing_to_compare() -> None:
    first, second = [row("x", 1.0)], [row("y", 1.0)]
    with pytest.raises(NotComparableError) as error:
        compared([measured(first), measured(second)], common=True)
    assert "--common" not in error.value.fix
    assert "A and B on the same rows" in error.value.fix


def test_a_renamed_set_is_noted() -> None:
    first = [row(at, 1.0, name="old") for at in range(12)]
    second = [row(at, 1.1, name="new") for at in range(12)]
    found = compared([measured(first), measured(second)])
    assert found.notes == ["Rows of B's set new are compared with those of A's set old."]


# --- without values of single rows


def means(name: str, loss: float, rows_digest: str = "rows", **fields: Any) -> RunRecords:
    outcome = EvaluateOutcome.model_validate(
        {
            "dataset_hash": digest(rows_digest),
            "tuned": {"loss": loss, "tokens": 10, "rows": 5, "perplexity": 2.0},
            "samples_uri": "gs://r/samples",
            "rows_uri": "gs://r/rows",
        }
    )
    return run(name, evaluation=outcome, **fields)


def test_means_are_compared_without_intervals_if_there_are_no_rows() -> None:
    found = compared([means("a", 2.0), means("b", 1.5)])
    assert list(metrics(found)) == ["loss"]
    loss = contrast(found, "loss")
    assert (loss.verdict, loss.difference, loss.interval) == (Verdict.NO_INTERVAL, -0.5, None)
    assert all("no values of single rows" in " ".join(job.missing) for job in found.jobs)


def test_means_of_different_rows_are_refused() -> None:
    with pytest.raises(NotComparableError, match=r"datasetHash .* A and B have no evaluate/rows\.jsonl"):
        compared([means("a", 2.0), means("b", 1.5, "others")], common=True)


def test_a_run_without_rows_is_compared_by_its_means_beside_runs_with_rows() -> None:
    first, second = rows(40, seed=1), rows(40, seed=2)
    old = run("c", first, rows=())
    found = compared([run("a", first), run("b", second), old])
    assert contrast(found, "loss", "B").interval is not None
    assert contrast(found, "loss", "C").verdict is Verdict.NO_INTERVAL
    assert contrast(found, "loss", "C").difference == pytest.approx(0, abs=1e-9)


def test_a_mean_that_is_not_a_number_is_not_comparable() -> None:
    found = compared([means("a", 2.0), means("b", float("nan"))])
    assert contrast(found, "loss").verdict is Verdict.NOT_COMPARABLE


# --- settings that make metrics incomparable


@pytest.mark.parametrize(
    ("changes", "comparable"),
    [
        ({"evaluation__max_new_tokens": 64}, False),
        ({"evaluation__temperature": 0.7}, False),
        ({"evaluation__top_k": 5}, True),
        ({"hyperparameters__seed": 1}, True),
    ],
)
def test_scores_of_answers_need_equal_generation(changes: dict[str, Any], comparable: bool) -> None:
    found = compared([run("a", rows(40, seed=1)), run("b", rows(40, seed=2), request=request(**changes))])
    assert contrast(found, "loss").verdict is not Verdict.NOT_COMPARABLE
    score = contrast(found, "faq/exact_match")
    assert (score.verdict is not Verdict.NOT_COMPARABLE) is comparable
    if not comparable:
        assert score.reason is not None
        assert "evaluation.generation." in score.reason


def test_a_benchmark_has_its_own_generation_settings() -> None:
    asked = [row(at, kind="Benchmark", name="gsm8k", scores={"exact_match": at % 2}) for at in range(20)]
    found = compared([measured(asked), measured(asked, request=request(evaluation__max_new_tokens=64))])
    assert contrast(found, "gsm8k/exact_match").verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("other", "comparable"),
    [
        (PAIRS, True),
        (PAIRS | {"max_prompt_length": 100}, True),
        (PAIRS | {"beta": 0.3}, False),
        ({"type": "ORPO", "weight": 0.1, "max_prompt_length": 512}, False),
    ],
)
def test_losses_of_pairs_need_equal_methods(other: dict[str, Any], comparable: bool) -> None:
    pairs = [row(at, 0.5, tokens=1, scores={"reward_accuracy": 1.0}) for at in range(20)]
    first = measured(pairs, request=request(method=PAIRS, **UNPACKED))
    second = measured(pairs, request=request(method=other, **UNPACKED))
    found = compared([first, second])
    for name in ("loss", "reward_accuracy"):
        verdict = contrast(found, name).verdict
        assert (verdict is Verdict.IDENTICAL) is comparable
        assert (verdict is Verdict.NOT_COMPARABLE) is not comparable


def test_losses_per_token_need_equal_tokens() -> None:
    first = [row(at, 10.0, tokens=10) for at in range(20)]
    second = [row(at, 10.0, tokens=9) for at in range(20)]
    found = contrast(compared([measured(first), measured(second)]), "loss")
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert found.reason is not None
    assert "different numbers of tokens" in found.reason


BASE = "Qwen/Qwen3-0.6B"
COMMITS = ("c" * 40, "d" * 40)
FOLDERS = ("gs://a/export/model", "gs://b/export/model")


@pytest.mark.parametrize(
    ("first", "second", "comparable"),
    [
        ((BASE, COMMITS[0]), (BASE, COMMITS[0]), True),
        ((BASE, COMMITS[0]), (BASE, COMMITS[1]), False),
        ((BASE, COMMITS[0]), ("acme/support", COMMITS[0]), False),
        ((BASE, COMMITS[0]), (FOLDERS[0], "sha256:" + "1" * 64), False),
        ((FOLDERS[0], "sha256:" + "1" * 64), (FOLDERS[1], "sha256:" + "1" * 64), True),
        ((FOLDERS[0], "sha256:" + "1" * 64), (FOLDERS[0], "sha256:" + "2" * 64), False),
        ((BASE, "main"), ("acme/support", "main"), False),
    ],
)
@pytest.mark.parametrize("by_request", [False, True])
def test_rewards_need_equal_reference_models(
    first: tuple[str, str], second: tuple[str, str], comparable: bool, by_request: bool
) -> None:
    pairs = [
        row(at, 0.5, tokens=1, scores={"reward_accuracy": 1.0, "reward_margin": 0.2}) for at in range(20)
    ]

    def relative(source: str, revision: str, method: dict[str, Any]) -> RunRecords:
        # Otherwise preflight alone has found out the commit or the digest.
        at = {"uri": source, "digest": revision if by_request else None}
        model = (
            at
            if "://" in source
            else {"hugging_face": {"repo": source, "revision": revision if by_request else "main"}}
        )
        asked = request(method=method, model=model, **UNPACKED)
        checked = preflight()
        identity = checked.model.model_copy(update={"source": source, "revision": revision})
        known = None if by_request else checked.model_copy(update={"model": identity})
        return measured(pairs, request=asked, preflight=known)

    found = compared([relative(*first, PAIRS), relative(*second, PAIRS)])
    for name in ("loss", "reward_accuracy", "reward_margin"):
        assert (contrast(found, name).verdict is Verdict.IDENTICAL) is comparable
        assert ("different reference models" in (contrast(found, name).reason or "")) is not comparable
    without = {"type": "ORPO", "weight": 0.1, "max_prompt_length": 512}
    found = compared([relative(*first, without), relative(*second, without)])
    assert contrast(found, "reward_margin").verdict is Verdict.IDENTICAL


def rendered(template: str, kind: Kind = "Dataset") -> list[EvaluatedRow]:
    """Rows of a dataset or benchmark as a template renders them, so with digests of their own."""
    return [
        row(f"{template} {at}", 5.0 if kind == "Dataset" else None, kind=kind, name="faq",
            scores={"exact_match": float(at % 2)}, asked=at)
        for at in range(20)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["Dataset", "Benchmark"])
def test_scores_of_models_with_different_templates_are_compared_and_their_losses_are_not(kind: Kind) -> None:
    other = request(data__chat_template="{{ messages }}")
    found = compared([measured(rendered("llama", kind)), measured(rendered("qwen", kind), request=other)])
    assert found.notes == ["A and B have different chat templates: each is measured with its own."]
    assert contrast(found, "faq/exact_match").verdict is Verdict.IDENTICAL
    if kind == "Dataset":
        loss = contrast(found, "faq/loss")
        assert loss.verdict is Verdict.NOT_COMPARABLE
        assert loss.reason is not None
        assert loss.reason.startswith("the tokens of 20 rows differ")


def test_other_tokens_of_the_tokenizers_own_template_are_noted() -> None:
    found = compared([measured(rendered("llama")), measured(rendered("qwen"))])
    assert len(found.notes) == 1
    assert "asked 20 of the questions with other tokens" in found.notes[0]


def test_validation_rows_under_different_templates_are_refused_and_scores_compared_with_common() -> None:
    def both(template: str) -> RunRecords:
        return measured([*(row(f"{template} loss {at}", 5.0) for at in range(20)), *rendered(template)])

    with pytest.raises(NotComparableError) as error:
        compared([both("llama"), both("qwen")])
    assert error.value.fix == "--common compares the 20 rows that all have."
    found = compared([both("llama"), both("qwen")], common=True)
    assert contrast(found, "faq/exact_match").verdict is Verdict.IDENTICAL
    assert "loss" not in metrics(found)


# --- chat templates that print the date


def dated(day: str, **changes: Any) -> Any:
    return request(data__chat_template_date=day, **changes)


LLAMA = "{{ date_string or strftime_now('%d %b %Y') }}{{ messages }}"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, True),
        ({"data__chat_template": LLAMA}, True),
        ({"data__chat_template": "{{ messages }}"}, False),
        ({"data__chat_template_arguments": {"date_string": "26 Jul 2024"}}, False),
    ],
)
def test_a_printed_date_is_named_where_rows_differ(changes: dict[str, Any], named: bool) -> None:
    first, second = ([row(f"{day} {at}", 1.0) for at in range(20)] for day in ("one", "two"))
    with pytest.raises(NotComparableError) as error:
        compared(
            [
                measured(first, request=dated("2026-11-18", **changes)),
                measured(second, request=dated("2026-11-19", **changes)),
            ]
        )
    assert ("datasets.chatTemplate.arguments: {date_string: ...}" in error.value.message) is named
    assert ("2026-11-18 to 2026-11-19" in error.value.message) is named


def test_days_of_creation_are_no_difference_where_rows_are_equal() -> None:
    same = rows(20, seed=1)
    found = compared(
        [run("a", same, request=dated("2026-11-18")), run("b", same, request=dated("2026-11-19"))]
    )
    assert found.configuration == []
    assert found.notes == []


def test_scores_of_questions_with_another_printed_date_are_compared_and_noted() -> None:
    found = compared(
        [
            measured(rendered("18 Nov"), request=dated("2026-11-18")),
            measured(rendered("19 Nov"), request=dated("2026-11-19")),
        ]
    )
    assert contrast(found, "faq/exact_match").verdict is Verdict.IDENTICAL
    assert len(found.notes) == 2
    assert "date_string" in found.notes[1]


# --- the best checkpoint


@pytest.mark.parametrize(("checkpoint", "noted"), [("Best", True), ("Last", False)])
def test_validation_metrics_of_the_best_checkpoint_are_noted(checkpoint: str, noted: bool) -> None:
    chosen = status(resolved={"checkpoint": checkpoint})
    found = compared([run("a", rows(20, seed=1)), run("b", rows(20, seed=2), status=chosen)])
    assert [
        each.startswith("B: the evaluated checkpoint was chosen by its loss") for each in found.notes
    ] == ([True] if noted else [])
    answers = [each for each in rows(20, seed=1) if each.kind == "Dataset"]
    assert compared([measured(answers, status=chosen), measured(answers, status=chosen)]).notes == []


# --- runs without an evaluation


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        (
            {"status": status(phase="Running")},
            "B has no evaluation: it has not ended (Running). Wait with `finetune wait b`.",
        ),
        (
            {"status": {}, "spec": {"evaluation": {"prompts": ["hi"]}}},
            "B has no evaluation: it has not ended (Pending). Wait with `finetune wait b`.",
        ),
        (
            {"status": status(phase="Failed", failure={"stage": "Train", "reason": "OutOfMemory"})},
            "B has no evaluation: it failed in Train (OutOfMemory). See `finetune status b`, mend the cause, then",
        ),
        (
            {
                "status": status(phase="Failed", failure={"stage": "Train", "reason": "Cancelled"}),
                "spec": {"cancel": True},
            },
            "B has no evaluation: it was cancelled in Train: create a job that continues it (spec.resumeFrom).",
        ),
        (
            {"status": status(phase="Failed", failure={"reason": "OutOfMemory"}), "spec": {"cancel": True}},
            "B has no evaluation: it failed (OutOfMemory). See `finetune status b`, mend the cause, then create a job",
        ),
        (
            {"spec": {}, "request": None},
            f"B has no evaluation: {NOTHING_ASKED}, then `finetune retry b --from-stage Evaluate`.",
        ),
        (
            {"spec": {}, "live": False, "request": None},
            f"B has no evaluation: {NOTHING_ASKED}, then create a job that continues this run folder",
        ),
        (
            {"status": status(phase="Planned")},
            "B has no evaluation: it only plans (planOnly). Create a job without",
        ),
    ],
)
def test_what_is_missing_and_how_to_get_it(fields: dict[str, Any], missing: str) -> None:
    found = compared([run("a", rows(20, seed=1)), run("b", **fields)])
    assert found.jobs[1].missing[0].startswith(missing)
    assert [each.job for each in metrics(found)["loss"].values] == ["A"]


def test_without_the_references_evaluation_there_are_values_alone() -> None:
    runs = [run("a"), run("b", rows(20, seed=1)), run("c", rows(22, seed=2))]
    found = compared(runs)
    assert found.notes == ["A is the reference and has no evaluation: no differences of metrics are known."]
    assert [(each.job, each.from_reference) for each in metrics(found)["loss"].values] == [
        ("B", None),
        ("C", None),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["phase", "stages", "name", "startTime", "cost", "chipHours", "resolved", "model",
                             "activeTime", "seconds", "failure", "evaluation", "resources", "source"]),
            inner, max_size=4,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_any_document_serves_as_status_and_spec(document: object) -> None:
    found = document if isinstance(document, dict) else {"stages": document}
    hostile = run("b", status=found, spec=found, request=None, preflight=None, progress=None)
    assert compared([hostile, run("a")]).jobs[0].name == "b"
    assert Comparison.model_validate_json(compared([hostile, hostile]).model_dump_json()).jobs[1].name == "b"


def test_cost_time_and_model_are_those_of_the_records() -> None:
    job = compared([run("a"), run("b")]).jobs[0]
    assert (job.chip_hours, job.cost, job.running_seconds) == ("1.412", "3.81", 1320)
    assert job.stage_seconds == {"Train": 1085, "Evaluate": 160}
    assert job.model is not None
    assert (job.model.source, job.model.architecture) == ("Qwen/Qwen3-0.6B", "Qwen3ForCausalLM")
    assert (job.steps, job.training_loss, job.validation_loss) == (600, 1.7, 1.8)


def test_the_model_of_a_run_without_a_data_report_is_that_of_the_status() -> None:
    known = status(resolved={"model": {"source": "gs://m/x", "revision": "sha256:1", "parameters": 5}})
    job = compared([run("a", preflight=None, status=known), run("b")]).jobs[0]
    assert job.model is not None
    assert (job.model.source, job.model.revision, job.model.parameters) == ("gs://m/x", "sha256:1", 5)


def test_results_record_the_mean_of_their_rows() -> None:
    """The test data is consistent: otherwise metrics would be compared by mean."""
    measured_rows = rows(20, seed=1)
    (loss, score) = compared([run("a", measured_rows), run("b", measured_rows)]).metrics
    assert results(measured_rows).metrics("tuned") == {
        "loss": pytest.approx(loss.values[0].value),
        "faq/exact_match": score.values[0].value,
    }
