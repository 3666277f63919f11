"""How spec.evaluation, the checkpoints to keep and the one to export are resolved."""

from typing import Any

import pytest

from finetune_contract import BenchmarkReport, EvaluateOutcome, Stage, StageRequest, TrainOutcome
from finetune_operator.api import Reason
from finetune_operator.planning import Findings, Refused, admit, stage_request
from finetune_operator.planning.plan import Plan
from tests.unit.lifecycle.world import job, profile
from tests.unit.planning.test_requests import FOUND

FAQ = {"name": "faq", "uri": "gs://data/faq.jsonl", "metrics": ["Loss", "ExactMatch"]}
MEASURED = {"evaluation": {"everySteps": 50}, "checkpointing": {"everySteps": 100}}
KEPT = {"keep": {"last": 3, "best": 2}, "bestBy": {"metric": "loss", "mode": "Max"}}
TRAINED = TrainOutcome(step=100, total_steps=100, best_step=60, end_ids=[])


def plan(**spec: Any) -> Plan:
    return admit(job(**spec), [profile()]).plan


def request(stage: Stage, findings: Findings | None = None, **spec: Any) -> StageRequest:
    return stage_request(plan(**spec), stage, 1, findings or Findings())


def refusal(**spec: Any) -> str:
    with pytest.raises(Refused) as caught:
        admit(job(**spec), [profile()])
    assert caught.value.reason is Reason.INVALID_SPEC
    return caught.value.message


def test_datasets_and_gates_reach_the_trainer() -> None:
    gates = [
        {"metric": "faq/exact_match", "op": "GreaterOrEqual", "value": 0.62},
        {"metric": "loss", "op": "LessOrEqual", "deltaFromBaseline": -0.1},
    ]
    received = request(
        Stage.EVALUATE,
        evaluation={
            "datasets": [FAQ], "gates": gates, "maxExamples": 30, "generation": {"temperature": 0.7, "topK": 40}
        },
    ).evaluation  # fmt: skip
    (dataset,) = received.datasets
    assert (dataset.source.path, dataset.source.name) == ("spec.evaluation.datasets[0]", "faq")
    assert (dataset.source.max_examples, dataset.metrics) == (30, ["Loss", "ExactMatch"])
    assert (received.temperature, received.top_k) == (0.7, 40)
    assert [(gate.metric, gate.value, gate.delta_from_baseline) for gate in received.gates] == [
        ("faq/exact_match", 0.62, None), ("loss", None, -0.1)
    ]  # fmt: skip


def test_no_evaluation_reads_more_rows_than_requested() -> None:
    validation = [{"uri": "gs://data/held-back.jsonl", "maxExamples": 20}]
    train = [{"uri": "gs://data/chat.jsonl"}]
    assert request(Stage.TRAIN).data.validation[0].max_examples == 500
    few = request(Stage.TRAIN, datasets={"train": train, "validation": validation})
    assert few.data.validation[0].max_examples == 20
    assert few.data.train[0].max_examples is None


def test_each_of_several_validation_sets_can_be_gated() -> None:
    gate = {"metric": "faq/loss", "op": "LessOrEqual", "value": 1}
    sets = [{"uri": "gs://data/a.jsonl"}, {"uri": "gs://data/b.jsonl", "name": "faq"}]
    train = [{"uri": "gs://data/chat.jsonl"}]
    requested: dict[str, Any] = {"evaluation": {"gates": [gate]}}
    assert (
        plan(datasets={"train": train, "validation": sets}, **requested).evaluation.gates[0].metric
        == "faq/loss"
    )
    assert "It measures loss, perplexity. " in refusal(
        datasets={"train": train, "validation": sets[1:]}, **requested
    )


@pytest.mark.parametrize("names", [("faq", "other"), ("a", "a")])
def test_two_sets_with_the_same_name_are_refused(names: tuple[str, str]) -> None:
    sets = [{"uri": "gs://data/a.jsonl", "name": name} for name in names]
    datasets = {"train": [{"uri": "gs://data/chat.jsonl"}], "validation": sets}
    assert "two metrics would have the name" in refusal(datasets=datasets, evaluation={"datasets": [FAQ]})


def test_rows_held_back_from_training_are_measured_and_gated() -> None:
    gate = {"metric": "loss", "op": "LessOrEqual", "value": 1}
    datasets = {"train": [{"uri": "gs://data/chat.jsonl"}], "splitFromTrain": {"fraction": 0.1}}
    made = plan(datasets=datasets, evaluation={"gates": [gate], "everySteps": 50, "maxExamples": 30})
    assert made.data.split_from_train is not None
    assert made.data.split_from_train.max_examples == 30
    assert made.exported_checkpoint == "Best"


PAIRS = {
    "name": "held",
    "uri": "gs://data/pairs.jsonl",
    "format": "Preference",
    "columns": {"chosen": "good"},
}


def test_pairs_are_measured_and_gated_if_the_method_compares_them() -> None:
    gate = {"metric": "held/reward_accuracy", "op": "GreaterOrEqual", "value": 0.6}
    (dataset,) = request(
        Stage.EVALUATE, method={"type": "DPO"}, evaluation={"datasets": [PAIRS], "gates": [gate]}
    ).evaluation.datasets
    assert dataset.pairs
    assert (dataset.metrics, dataset.source.columns) == (["Loss"], {"chosen": "good"})


@pytest.mark.parametrize(
    ("method", "change", "expected"),
    [
        ("SFT", {}, "SFT compares no answers"),
        ("DPO", {"metrics": ["Loss", "ExactMatch"]}, "have Loss alone"),
        ("ORPO", {"format": "Auto"}, "set format: Preference"),
    ],
)
def test_pairs_that_the_method_does_not_compare_are_refused(
    method: str, change: dict[str, Any], expected: str
) -> None:
    message = refusal(method={"type": method}, evaluation={"datasets": [{**PAIRS, **change}]})
    assert message.startswith("spec.evaluation.datasets[0].")
    assert expected in message


def test_rows_are_held_back_from_a_mixture_of_pairs() -> None:
    train = [{"uri": f"gs://data/{name}.jsonl", "weight": weight} for name, weight in (("a", 1), ("b", 3))]
    made = plan(method={"type": "DPO"}, datasets={"train": train, "splitFromTrain": {"fraction": 0.1}})
    assert made.data.split_from_train is not None
    assert [source.weight for source in made.data.train] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("evaluation", "runs"),
    [
        ({}, False),
        ({"everySteps": 10}, False),
        ({"prompts": ["Hello"]}, True),
        ({"datasets": [FAQ]}, True),
        ({"benchmarks": [{"name": "gsm8k"}]}, True),
        ({"gates": [{"metric": "loss", "op": "LessOrEqual", "value": 1.0}]}, True),
    ],
)
def test_evaluate_runs_if_it_has_something_to_do(evaluation: dict[str, Any], runs: bool) -> None:
    assert (Stage.EVALUATE in plan(evaluation=evaluation).stages) is runs


BENCHMARKS = [
    {"name": "gsm8k", "limit": 200},
    {"name": "house-style", "uri": "gs://data/tasks/"},
]


def test_benchmarks_reach_the_trainer_at_the_revision_of_preflight() -> None:
    gate = {"metric": "gsm8k/exact_match,strict-match", "op": "GreaterOrEqual", "value": 0.4}
    requested = {"benchmarks": BENCHMARKS, "gates": [gate]}
    gsm8k, own = request(Stage.PREFLIGHT, evaluation=requested).evaluation.benchmarks
    assert (gsm8k.name, gsm8k.uri, gsm8k.limit, gsm8k.revision) == ("gsm8k", None, 200, None)
    assert (own.path, own.uri, own.limit) == ("spec.evaluation.benchmarks[1]", "gs://data/tasks", None)
    places = {"abc": (gsm8k, "hf://datasets/openai/gsm8k@abc"), "def": (own, "gs://data/tasks")}
    reports = [
        BenchmarkReport(path=benchmark.path, name=benchmark.name, uri=uri, revision=revision, rows=8)
        for revision, (benchmark, uri) in places.items()
    ]
    found = Findings(preflight=FOUND.model_copy(update={"benchmarks": reports}))
    pinned = request(Stage.EVALUATE, found, evaluation=requested).evaluation
    assert [each.revision for each in pinned.benchmarks] == ["abc", "def"]
    assert pinned.gates[0].metric == gate["metric"]
    elsewhere = [BENCHMARKS[0], {**BENCHMARKS[1], "uri": "gs://data/other"}]
    edited = request(Stage.EVALUATE, found, evaluation={"benchmarks": elsewhere}).evaluation
    assert [each.revision for each in edited.benchmarks] == ["abc", None]


def test_a_group_reaches_the_trainer_with_the_commits_of_its_datasets() -> None:
    gate = {"metric": "glue/rte/acc", "op": "GreaterOrEqual", "value": 0.4}
    requested = {"benchmarks": [{"name": "glue"}], "gates": [gate]}
    (asked,) = request(Stage.PREFLIGHT, evaluation=requested).evaluation.benchmarks
    commits = {"nyu-mll/glue": "abc", "nyu-mll/mnli": "def"}
    report = BenchmarkReport(
        path=asked.path, name="glue", uri="hf://datasets/nyu-mll/glue@abc and 1 more datasets", revision="123",
        rows=8, tasks=9, revisions=commits,
    )  # fmt: skip
    found = Findings(preflight=FOUND.model_copy(update={"benchmarks": [report]}))
    pinned = request(Stage.EVALUATE, found, evaluation=requested).evaluation
    assert [(each.revision, each.revisions) for each in pinned.benchmarks] == [("123", commits)]
    assert pinned.gates[0].metric == "glue/rte/acc"


@pytest.mark.parametrize(("benchmark", "reads"), list(zip(BENCHMARKS, (True, False), strict=True)))
def test_only_the_harness_own_benchmarks_are_read_from_the_hub(
    benchmark: dict[str, Any], reads: bool
) -> None:
    assert plan(evaluation={"benchmarks": [benchmark]}).reads_hub is reads


def test_a_benchmark_and_a_dataset_cannot_share_a_name() -> None:
    message = refusal(evaluation={"benchmarks": [{"name": "faq"}], "datasets": [FAQ]})
    assert "spec.evaluation.benchmarks[0] has the name of a dataset, faq" in message


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (
            {"evaluation": {"gates": [{"metric": "faq/rouge_l", "op": "LessOrEqual", "value": 1}],
                            "datasets": [FAQ]}},
            "It measures loss, perplexity, faq/loss, faq/exact_match",
        ),
        ({"export": {"checkpoint": "Best"}}, "spec.evaluation.everySteps: not set"),
        (
            {"checkpointing": {"everySteps": 50, "keep": {"best": 2}}, "evaluation": {"everySteps": 40}},
            "spec.evaluation.everySteps: 40",
        ),
        (
            {"checkpointing": {"bestBy": {"metric": "faq/loss"}}, "evaluation": {"everySteps": 50}},
            "training measures loss and perplexity",
        ),
    ],
)  # fmt: skip
def test_an_impossible_evaluation_is_refused(spec: dict[str, Any], named: str) -> None:
    assert named in refusal(**spec)


@pytest.mark.parametrize(
    ("spec", "kept", "exported"),
    [
        ({}, (2, 0, "Min"), "Last"),
        (MEASURED, (2, 1, "Min"), "Best"),
        ({**MEASURED, "export": {"checkpoint": "Last"}}, (2, 1, "Min"), "Last"),
        (
            {**MEASURED, "checkpointing": KEPT},
            (3, 2, "Max"),
            "Best",
        ),
    ],
)  # fmt: skip
def test_the_best_checkpoint_is_kept_and_exported_if_training_measures_it(
    spec: dict[str, Any], kept: tuple[int, int, str], exported: str
) -> None:
    made = plan(**spec)
    policy = made.checkpointing
    assert (policy.keep_last, policy.keep_best, policy.best_mode) == kept
    assert made.exported_checkpoint == exported
    received = request(Stage.EVALUATE, Findings(train=TRAINED), **spec)
    assert received.train_step == (60 if exported == "Best" else 100)


def test_checkpoints_are_also_saved_by_time() -> None:
    assert request(Stage.TRAIN).checkpointing.every_seconds == 600
    assert request(Stage.TRAIN, checkpointing={"everySeconds": 60}).checkpointing.every_seconds == 60


def test_the_measured_checkpoint_is_the_exported_one() -> None:
    """Also if the choice was edited in between."""
    evaluated = EvaluateOutcome(step=60, samples_uri="gs://r/samples", rows_uri="gs://r/rows")
    findings = Findings(train=TRAINED, evaluated=evaluated)
    last = {**MEASURED, "export": {"checkpoint": "Last"}}
    assert request(Stage.EXPORT, findings, **last).train_step == 60


@pytest.mark.parametrize(
    ("stage", "ends"), [(Stage.EVALUATE, [7, 2]), (Stage.EXPORT, [7, 2]), (Stage.TRAIN, None)]
)
def test_the_stages_after_training_get_the_ends_that_it_counted(stage: Stage, ends: list[int] | None) -> None:
    counted = TRAINED.model_copy(update={"end_ids": [7, 2]})
    assert request(stage, Findings(train=counted)).end_ids == ends
