"""A mixture through the real stages: trained, interrupted and resumed, validated on several sets, and exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.fixtures.chat_data import write_data
from finetune_contract import EvaluateOutcome, ExportOutcome, PreflightOutcome, TrainOutcome
from tests.trainer.models import qwen3
from tests.trainer.stages import Stages

STEPS, STOP = 12, 4
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def mixed(stages: Stages, converted: str) -> dict[str, Any]:
    """Packed rows of two sources, of which the smaller has the larger share; two validation sets; a custom template."""
    sources = {}
    for name, train in (("few", 10), ("many", 60)):
        write_data(stages.root / f"mixed/{name}", train=train, evaluation=6, seed=train)
        sources[name] = f"file://{stages.root}/mixed/{name}"

    def listed(part: str, file: str, **weights: float) -> list[dict[str, Any]]:
        return [
            {
                "path": f"spec.datasets.{part}[{i}]",
                "name": name,
                "uri": f"{uri}/{file}.jsonl",
                "weight": weights.get(name),
            }
            for i, (name, uri) in enumerate(sources.items())
        ]

    return {
        "converted": converted,
        "data": {
            "train": listed("train", "train", few=2.0, many=1.0),
            "validation": listed("validation", "eval"),
            "packing": True,
            "max_seq_length": 64,
            "chat_template": TEMPLATE,
        },
        "hyperparameters": {"steps": STEPS, "global_batch_size": 4},
        "checkpointing": {"every_steps": 2, "keep_last": 2},
        "evaluation": {"every_steps": 6, "prompts": [], "baseline": False},
    }


def outcome(stages: Stages, run: str, mixed: dict[str, Any], **changes: Any) -> TrainOutcome:
    result = stages.run("Train", run, **mixed, **changes)
    assert isinstance(result.details, TrainOutcome), result.failure
    return result.details


@pytest.fixture(scope="module")
def whole(stages: Stages, mixed: dict[str, Any]) -> TrainOutcome:
    """The uninterrupted training, whose run folder later stages continue."""
    return outcome(stages, "whole", mixed)


def test_preflight_prepares_what_training_then_finds(stages: Stages, mixed: dict[str, Any]) -> None:
    first, again = (stages.run("Preflight", f"mixed-{n}", **mixed).details for n in (1, 2))
    assert isinstance(first, PreflightOutcome)
    assert isinstance(again, PreflightOutcome)
    assert [use.result for use in first.prepared] == ["Miss"] * 4
    assert [use.result for use in again.prepared] == ["Hit"] * 4
    few, many = first.train
    assert few.epoch_sequences is not None
    assert many.epoch_sequences is not None
    assert few.epoch_sequences == pytest.approx(2 * many.epoch_sequences, abs=2)
    assert (stages.root / "mixed-1/preflight/data.html").read_text().startswith("<!doctype html>")


def test_another_tokenizer_in_the_same_folder_is_a_miss_that_names_it(
    stages: Stages, mixed: dict[str, Any], tmp_path: Path
) -> None:
    """A stage after preflight refuses to continue with the other tokenizer."""
    folder = qwen3(tmp_path)
    asked = {**mixed, "model": {"uri": f"file://{folder}"}}
    first = stages.run("Preflight", "words-1", **asked).details
    assert isinstance(first, PreflightOutcome)
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(words))
    again = stages.run("Preflight", "words-2", **asked).details
    assert isinstance(again, PreflightOutcome)
    assert {use.result for use in again.prepared} == {"Miss"}
    assert {because.partition(":")[0] for use in again.prepared for because in use.miss_because} == {
        "tokenizer"
    }
    pinned = {**asked["model"], "tokenizer_digest": first.model.tokenizer_revision}
    failure = stages.run("Train", "words-1", **{**asked, "model": pinned}).failure
    assert failure is not None
    assert failure.reason == "InputChanged"
    assert "the tokenizer in file://" in failure.message


@pytest.mark.thorough
def test_an_interrupted_mixture_continues_with_the_same_digits(
    stages: Stages, mixed: dict[str, Any], whole: TrainOutcome
) -> None:
    stopped = outcome(stages, "torn", mixed, stop_at=STOP)
    assert STOP <= stopped.step < STEPS
    resumed = outcome(stages, "torn", mixed, attempt=2)
    assert resumed.start_step == stopped.step
    assert stages.losses("torn") == stages.losses("whole")
    assert len(stages.losses("whole")) == STEPS
    assert resumed.evaluation_loss == whole.evaluation_loss


@pytest.mark.usefixtures("whole")
def test_every_validation_set_has_a_loss_of_its_own(stages: Stages) -> None:
    lines = (stages.root / "whole/train/metrics.jsonl").read_text().splitlines()
    evaluated = [row for row in map(json.loads, lines) if "evaluation_loss" in row]
    assert evaluated
    for row in evaluated:
        low, high = sorted((row["few/loss"], row["many/loss"]))
        assert low <= row["evaluation_loss"] <= high


@pytest.mark.usefixtures("whole")
def test_each_validation_set_and_each_evaluation_dataset_is_measured_and_can_be_gated(
    stages: Stages, mixed: dict[str, Any]
) -> None:
    rows = [{"q": "What is the capital of France?", "a": "Paris."}, {"q": "And of Spain?", "a": "Madrid."}]
    file = stages.root / "mixed/questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {
        "path": "spec.evaluation.datasets[0]",
        "name": "faq",
        "uri": f"file://{file}",
        "format": "QuestionAnswer",
        "columns": {"question": "q", "answer": "a"},
    }
    evaluation = {
        **mixed["evaluation"],
        "max_new_tokens": 4,
        "datasets": [{"source": source, "metrics": ["Loss", "TokenF1"]}],
        "gates": [{"metric": "few/loss", "op": "LessOrEqual", "value": 100.0}],
    }
    asked = {**mixed, "evaluation": evaluation}
    checked = stages.run("Preflight", "whole", **asked).details
    assert isinstance(checked, PreflightOutcome)
    assert [(report.name, report.format, report.rows) for report in checked.evaluation] == [
        ("faq", "QuestionAnswer", 2)
    ]
    found = stages.run("Evaluate", "whole", train_step=STEPS, **asked).details
    assert isinstance(found, EvaluateOutcome)
    tuned = found.metrics("tuned")
    assert set(tuned) == {"loss", "perplexity", "few/loss", "many/loss", "faq/loss", "faq/token_f1"}
    lines = (stages.root / "whole/train/metrics.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, lines) if "evaluation_loss" in row][-1]
    assert {name: tuned[name] for name in ("loss", "few/loss", "many/loss")} == {
        "loss": last["evaluation_loss"], "few/loss": last["few/loss"], "many/loss": last["many/loss"]
    }  # fmt: skip
    # packed rows, of which each holds several rows of the set
    records = (stages.root / "whole/evaluate/rows.jsonl").read_text().splitlines()
    measured = [json.loads(line) for line in records]
    for kind, name in (("Validation", "few"), ("Validation", "many"), ("Dataset", "faq")):
        some = [row["tuned"] for row in measured if (row["kind"], row["name"]) == (kind, name)]
        assert len(some) == {"Validation": 6, "Dataset": 2}[kind]
        mean = sum(row["loss"] for row in some) / sum(row["tokens"] for row in some)
        assert mean == pytest.approx(tuned[f"{name}/loss"], rel=1e-12)
    assert [(sample.dataset, sample.prompt) for sample in found.samples] == [
        ("faq", row["q"]) for row in rows
    ]
    assert [gate.passed for gate in found.gates] == [True]
    assert (found.dataset, found.step) == ("few, many", STEPS)


@pytest.mark.usefixtures("whole")
def test_the_exported_tokenizer_has_the_template_that_was_trained(
    stages: Stages, mixed: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer

    exported = stages.run("Export", "whole", train_step=STEPS, **mixed).details
    assert isinstance(exported, ExportOutcome)
    folder = exported.artifacts[0].uri.removeprefix("file://")
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
