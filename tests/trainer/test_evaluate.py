"""The Evaluate stage on a tiny model: answers with the KV cache, datasets with all metrics, samples and gates; and the
checkpoints that training keeps for it."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import AutoTokenizer

from devcluster.fixtures.chat_data import CAPITALS
from finetune_contract import EvaluatedRow, EvaluateOutcome, PreflightOutcome, TrainOutcome
from tests.doubles.hub import FakeHub
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of

LORA = {"method": {"lora": {"rank": 4, "alpha": 8.0}}}
STEPS = {
    "hyperparameters": {"steps": 30},
    "checkpointing": {"every_steps": 5, "keep_last": 2, "keep_best": 1},
}
TWO_HOSTS = {"mesh": {"hosts": 2, "chips_per_host": 1, "fsdp": 2}}


BENCHMARK = {"path": "spec.evaluation.benchmarks[0]", "name": "capitals", "limit": 6}


@pytest.fixture(scope="module", autouse=True)
def _task(stages: Stages) -> None:
    """Writes a benchmark of our own: whether the model prefers what it has learned to a refusal to answer."""
    folder = stages.root / "tasks"
    folder.mkdir()
    rows = [
        {"country": country, "said": ["I do not know.", f"The capital of {country} is {city}."], "right": 1}
        for country, city in CAPITALS.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    task = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "What is the capital of {{country}}?",
        "doc_to_choice": "said",
        "doc_to_target": "right",
    }
    (folder / "capitals.yaml").write_text(json.dumps(task))


def evaluation(stages: Stages, **changes: Any) -> dict[str, Any]:
    source = {
        "path": "spec.evaluation.datasets[0]",
        "name": "faq",
        "uri": f"file://{stages.root}/data/eval.jsonl",
    }
    return {
        "every_steps": 5,
        "prompts": ["What is the capital of France?"],
        "max_new_tokens": 16,
        "datasets": [
            {"source": {**source, "max_examples": 10}, "metrics": ["Loss", "ExactMatch", "TokenF1", "RougeL"]}
        ],
        "benchmarks": [{**BENCHMARK, "uri": f"file://{stages.root}/tasks"}],
        "gates": [
            {"metric": "loss", "op": "LessOrEqual", "delta_from_baseline": -0.1},
            {"metric": "faq/exact_match", "op": "GreaterOrEqual", "value": 1.01},
            {"metric": "capitals/acc", "op": "GreaterOrEqual", "value": 0.5},
        ],
        **changes,
    }


@pytest.fixture(scope="module")
def trained(stages: Stages, converted: str) -> TrainOutcome:
    found = stages.run(
        "Train", "measured", converted=converted, evaluation=evaluation(stages), **STEPS
    ).details
    assert isinstance(found, TrainOutcome)
    return found


@pytest.fixture(scope="module")
def evaluated(stages: Stages, converted: str, trained: TrainOutcome) -> EvaluateOutcome:
    found = stages.run(
        "Evaluate", "measured", converted=converted, train_step=30, evaluation=evaluation(stages)
    ).details
    assert isinstance(found, EvaluateOutcome)
    return found


def test_training_keeps_the_newest_checkpoints_and_the_best_one(
    stages: Stages, trained: TrainOutcome
) -> None:
    lines = (stages.root / "measured/train/metrics.jsonl").read_text().splitlines()
    losses = {
        row["step"]: row["evaluation_loss"] for row in map(json.loads, lines) if "evaluation_loss" in row
    }
    kept = [record.step for record in trained.checkpoints]
    assert sorted(losses) == [0, 5, 10, 15, 20, 25, 30]
    assert trained.best_step == min(kept, key=losses.__getitem__)
    assert kept[-2:] == [25, 30]
    assert {record.step: record.metrics["loss"] for record in trained.checkpoints} == {
        step: losses[step] for step in kept
    }
    on_disk = {
        int(path.name)
        for path in (stages.root / "measured/train/checkpoints").iterdir()
        if path.name.isdigit()
    }
    assert on_disk == set(kept)


def test_a_checkpoint_that_was_kept_is_the_one_that_was_measured(
    stages: Stages, converted: str, trained: TrainOutcome
) -> None:
    """Each kept checkpoint can be restored, and gives the loss that training recorded for it."""
    for record in trained.checkpoints:
        found = stages.run(
            "Evaluate", "measured", attempt=10 + record.step, converted=converted, train_step=record.step,
            evaluation={"prompts": [], "baseline": False},
        ).details  # fmt: skip
        assert isinstance(found, EvaluateOutcome)
        assert found.tuned is not None
        assert found.tuned.loss == record.metrics["loss"]


def test_every_metric_is_measured_before_and_after(evaluated: EvaluateOutcome) -> None:
    baseline, tuned = evaluated.metrics("baseline"), evaluated.metrics("tuned")
    assert list(tuned) == list(baseline)
    assert set(tuned) == {
        "loss", "perplexity", "faq/loss", "faq/exact_match", "faq/token_f1", "faq/rouge_l", "capitals/acc",
        "capitals/acc_norm",
    }  # fmt: skip
    assert tuned["loss"] < baseline["loss"]
    assert tuned["faq/token_f1"] > baseline["faq/token_f1"]
    assert tuned["capitals/acc"] > baseline["capitals/acc"]
    assert [(each.name, each.rows) for each in evaluated.datasets] == [("faq", 10), ("capitals", 6)]
    assert evaluated.step == 30


def test_samples_stand_side_by_side_with_their_reference(stages: Stages, evaluated: EvaluateOutcome) -> None:
    lines = (stages.root / "measured/evaluate/samples.jsonl").read_text().splitlines()
    assert len(lines) == 11
    assert [sample.dataset for sample in evaluated.samples] == [None, *["faq"] * 10]
    assert all(sample.reference and sample.baseline is not None for sample in evaluated.samples[1:])


def rows_of(stages: Stages, found: EvaluateOutcome) -> list[EvaluatedRow]:
    lines = Path(found.rows_uri.removeprefix("file://")).read_text().splitlines()
    return [EvaluatedRow.model_validate_json(line) for line in lines]


@pytest.mark.parametrize("which", ["baseline", "tuned"])
def test_rows_sum_to_what_the_results_say(
    stages: Stages, evaluated: EvaluateOutcome, which: Literal["baseline", "tuned"]
) -> None:
    assert evaluated.rows_uri == f"file://{stages.root}/measured/evaluate/rows.jsonl"
    rows = rows_of(stages, evaluated)
    measured = {
        kind: [getattr(row, which) for row in rows if row.kind == kind]
        for kind in ("Validation", "Dataset", "Benchmark")
    }
    assert sum(map(len, measured.values())) == len(rows)
    result, (faq, capitals) = getattr(evaluated, which), evaluated.datasets
    validation = measured["Validation"]
    assert (len(validation), sum(row.tokens for row in validation)) == (result.rows, result.tokens)
    assert sum(row.loss for row in validation) / result.tokens == pytest.approx(result.loss, rel=1e-12)
    assert not any(row.scores for row in validation)
    for kind, scores in (("Dataset", getattr(faq, which)), ("Benchmark", getattr(capitals, which))):
        found = measured[kind]
        means = {name: sum(row.scores[name] for row in found) / len(found) for name in found[0].scores}
        if kind == "Dataset":
            means["loss"] = sum(row.loss for row in found) / sum(row.tokens for row in found)
        assert means == pytest.approx(scores, rel=1e-12)
    assert [len(measured[kind]) for kind in ("Dataset", "Benchmark")] == [faq.rows, capitals.rows]


def test_gates_are_judged(evaluated: EvaluateOutcome) -> None:
    assert [gate.passed for gate in evaluated.gates] == [True, False, True]


def test_preflight_finds_what_a_benchmark_measures_and_pins_its_rows(stages: Stages) -> None:
    found = stages.run("Preflight", "checked", evaluation=evaluation(stages)).details
    assert isinstance(found, PreflightOutcome)
    assert [(each.name, each.rows) for each in found.evaluation] == [("faq", 10)]
    assert [(each.name, each.rows) for each in found.benchmarks] == [("capitals", 6)]
    page = (stages.root / "checked/preflight/data.html").read_text()
    assert "<h2>Evaluation</h2>" in page
    assert "<h2>Benchmarks</h2>" in page
    assert f"at {found.benchmarks[0].revision[:12]}" in page
    unknown = evaluation(stages, gates=[{"metric": "capitals/f1", "op": "GreaterOrEqual", "value": 1.0}])
    refused = stages.run("Preflight", "refused", evaluation=unknown).failure
    assert refused is not None
    assert refused.reason == "GateNotMeasured"
    assert refused.expected == "one of capitals/acc, capitals/acc_norm"
    changed = evaluation(stages)
    changed["benchmarks"][0]["revision"] = "0" * 40
    refused = stages.run("Preflight", "changed", evaluation=changed).failure
    assert refused is not None
    assert refused.reason == "InputChanged"


@pytest.mark.thorough
def test_a_group_of_benchmarks_is_evaluated_by_member(
    hub: FakeHub, stages: Stages, converted: str, trained: TrainOutcome
) -> None:
    """``ai2_arc`` is a tag of two tasks, so it has no score of its own."""
    row = {
        "id": "1",
        "question": "Where?",
        "choices": {"text": ["Rome", "Oslo"], "label": ["A", "B"]},
        "answerKey": "B",
    }
    readme, files = "---\nconfigs:\n", {}
    for name, number in (("ARC-Easy", 3), ("ARC-Challenge", 2)):
        readme += f"- config_name: {name}\n  data_files:\n"
        for split in ("train", "validation", "test"):
            readme += f"  - split: {split}\n    path: {name}/{split}.jsonl\n"
            files[f"{name}/{split}.jsonl"] = (json.dumps(row) + "\n").encode() * number
    hub.push("allenai/ai2_arc", {"README.md": f"{readme}---\n".encode(), **files}, kind="dataset")
    asked = {
        "benchmarks": [{"path": "spec.evaluation.benchmarks[0]", "name": "ai2_arc"}],
        "datasets": [],
        "gates": [{"metric": "ai2_arc/arc_easy/acc", "op": "GreaterOrEqual", "value": 0.0}],
    }
    checked = stages.run("Preflight", "grouped", evaluation=evaluation(stages, **asked)).details
    assert isinstance(checked, PreflightOutcome)
    assert [(each.name, each.rows, each.tasks) for each in checked.benchmarks] == [("ai2_arc", 5, 2)]
    found = stages.run(
        "Evaluate",
        "measured",
        attempt=300,
        converted=converted,
        train_step=30,
        evaluation=evaluation(stages, **asked),
    ).details
    assert isinstance(found, EvaluateOutcome)
    assert [(each.name, each.rows) for each in found.datasets] == [("ai2_arc", 5)]
    assert {each.name: each.rows for each in found.members} == {
        "ai2_arc/arc_challenge": 2,
        "ai2_arc/arc_easy": 3,
    }
    assert all(set(each.tuned) == set(each.baseline) == {"acc", "acc_norm"} for each in found.members)
    assert [gate.passed for gate in found.gates] == [True]
    assert sum(row.name == "ai2_arc" for row in rows_of(stages, found)) == 5
    results = EvaluateOutcome.model_validate_json(
        (stages.root / "measured/evaluate/results.json").read_text()
    )
    assert results == found


@pytest.mark.thorough
def test_two_processes_measure_what_one_does(stages: Stages, converted: str, trained: TrainOutcome) -> None:
    """Answers are sampled, so they differ if sampling depends on how rows are divided among processes."""
    drawn = evaluation(stages, temperature=0.8, top_k=20, max_new_tokens=6)
    asked = {"converted": converted, "train_step": 30, "evaluation": drawn}
    one = stages.run("Evaluate", "measured", attempt=100, **asked).details
    assert isinstance(one, EvaluateOutcome)
    rows = rows_of(stages, one)
    made = request(stages.root, "Evaluate", "measured", attempt=200, **TWO_HOSTS, **asked)
    running = stages.pair(made)
    assert [each.wait() for each in running] == [0, 0], "\n".join(each.log[-2000:] for each in running)
    found = result_of(made)
    assert found is not None
    assert isinstance(found.details, EvaluateOutcome)
    for which in ("baseline", "tuned"):
        assert found.details.metrics(which) == pytest.approx(one.metrics(which), rel=1e-6)
    assert found.details.samples == one.samples
    several = rows_of(stages, found.details)
    assert [row.digest for row in several] == [row.digest for row in rows]
    for mine, other in zip(rows, several, strict=True):
        assert (other.tuned.loss or 0.0) == pytest.approx(mine.tuned.loss or 0.0, rel=1e-4)
        assert other.tuned.tokens == mine.tuned.tokens
        assert other.tuned.scores == mine.tuned.scores


def test_a_row_is_the_same_in_another_set_file_and_order(
    stages: Stages, converted: str, trained: TrainOutcome
) -> None:
    """The dataset has the rows of the validation set in the reverse order, so that they are in other batches."""
    lines = (stages.root / "data/eval.jsonl").read_text().splitlines()
    (stages.root / "data/turned.jsonl").write_text("".join(f"{line}\n" for line in reversed(lines)))
    source = {
        "path": "spec.evaluation.datasets[0]",
        "name": "turned",
        "uri": f"file://{stages.root}/data/turned.jsonl",
    }
    asked = {"prompts": [], "baseline": False, "datasets": [{"source": source, "metrics": ["Loss"]}]}
    found = stages.run(
        "Evaluate", "measured", attempt=300, converted=converted, train_step=30, evaluation=asked
    ).details
    assert isinstance(found, EvaluateOutcome)
    kept, turned = (
        {row.digest: row for row in rows_of(stages, found) if row.kind == kind}
        for kind in ("Validation", "Dataset")
    )
    assert len(kept) > 1
    assert set(kept) == set(turned)
    assert list(kept) != list(turned)
    for digest, row in kept.items():
        assert row.baseline is None
        assert row.tuned.tokens == turned[digest].tuned.tokens
        assert row.tuned.loss == pytest.approx(turned[digest].tuned.loss, rel=1e-5)


def test_answers_stop_at_the_ends_that_training_counted(
    stages: Stages, converted: str, trained: TrainOutcome
) -> None:
    """With all tokens of an answer as ends, it stops before the first of them."""

    def answered(attempt: int, ends: list[int] | None) -> str:
        found = stages.run(
            "Evaluate", "measured", attempt=attempt, converted=converted, train_step=30, end_ids=ends,
            evaluation={"prompts": ["What is the capital of France?"], "baseline": False},
        ).details  # fmt: skip
        assert isinstance(found, EvaluateOutcome)
        return found.samples[0].tuned

    answer = answered(400, None)
    tokenizer = AutoTokenizer.from_pretrained(stages.root / "models/qwen3")
    assert answer
    assert answered(401, tokenizer(answer, add_special_tokens=False)["input_ids"]) == ""
