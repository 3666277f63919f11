"""Settings of a job for its data and for the length of its training, through the real stages."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.fixtures.chat_data import CAPITALS, write_data
from finetune_contract import EvaluateOutcome, ExportOutcome, PreflightOutcome, TrainOutcome
from tests.trainer.stages import Stages

ROWS, HELD_BACK = 48, 8
STEPS = 4


@pytest.fixture(scope="module")
def folder(stages: Stages) -> Path:
    """Returns a folder with the same questions in four formats."""
    root = stages.root / "formats"
    write_data(root / "pairs", train=ROWS, evaluation=HELD_BACK, form="prompt-completion")
    write_data(root / "messages", train=ROWS, evaluation=HELD_BACK)
    for name in ("train", "eval"):
        pairs = [json.loads(line) for line in (root / f"pairs/{name}.jsonl").read_text().splitlines()]
        _write(
            root / f"columns/{name}.jsonl",
            [
                {"question": row["prompt"], "answer": row["completion"], "id": i}
                for i, row in enumerate(pairs)
            ],
        )
        _write(
            root / f"roles/{name}.jsonl",
            [
                {
                    "chat": [
                        {"role": "human", "content": row["prompt"]},
                        {"role": "gpt", "content": row["completion"]},
                    ]
                }
                for row in pairs
            ],
        )
    return root


def _write(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def asked(folder: Path, spelling: str, converted: str, **changes: Any) -> dict[str, Any]:
    how: dict[str, Any] = {
        "columns": {"columns": {"prompt": "question", "completion": "answer"}},
        "roles": {"columns": {"messages": "chat"}, "role_map": {"human": "user", "gpt": "assistant"}},
    }.get(spelling, {})
    data = changes.pop("data", {})
    return {
        "converted": converted,
        "data": {
            part: [
                {
                    "path": f"spec.datasets.{part}[0]",
                    "name": part,
                    "uri": f"file://{folder}/{spelling}/{name}.jsonl",
                    **how,
                }
            ]
            for part, name in (("train", "train"), ("validation", "eval"))
        }
        | {"shuffle": False, **data},
        "hyperparameters": {"steps": STEPS, **changes.pop("hyperparameters", {})},
        "evaluation": {"prompts": [], "baseline": False},
        **changes,
    }


def preflight(stages: Stages, run: str, changes: dict[str, Any]) -> PreflightOutcome:
    result = stages.run("Preflight", run, **changes)
    assert isinstance(result.details, PreflightOutcome), result.failure
    return result.details


def train(stages: Stages, run: str, changes: dict[str, Any]) -> TrainOutcome:
    result = stages.run("Train", run, **changes)
    assert isinstance(result.details, TrainOutcome), result.failure
    return result.details


def tokens(stages: Stages, run: str) -> list[int]:
    """Returns the number of trained tokens in each step."""
    lines = (stages.root / run / "train/metrics.jsonl").read_text().splitlines()
    return [row["tokens"] for row in map(json.loads, lines) if "loss" in row]


def test_prompt_and_completion_go_through_the_whole_chain(
    stages: Stages, converted: str, folder: Path
) -> None:
    changes = asked(folder, "columns", converted)
    found = preflight(stages, "pairs", changes)
    assert (found.train[0].format, found.train[0].rows, len(found.validation) == 1) == (
        "PromptCompletion",
        ROWS,
        True,
    )
    trained = train(stages, "pairs", changes)
    evaluated = stages.run("Evaluate", "pairs", train_step=STEPS, **changes).details
    exported = stages.run("Export", "pairs", train_step=STEPS, **changes).details
    assert isinstance(evaluated, EvaluateOutcome)
    assert isinstance(exported, ExportOutcome)
    assert evaluated.tuned is not None
    assert evaluated.tuned.loss == trained.evaluation_loss
    assert trained.first_loss is not None
    assert trained.last_loss is not None
    assert trained.last_loss < trained.first_loss
    assert Path(exported.artifacts[0].uri.removeprefix("file://")).is_dir()
    samples = (stages.root / "pairs/preflight/samples.jsonl").read_text()
    assert any(f"⟦The capital of {country} is {capital}." in samples for country, capital in CAPITALS.items())


def test_the_loss_is_of_completions_only_unless_prompts_are_asked_for(
    stages: Stages, converted: str, folder: Path
) -> None:
    changes = asked(folder, "pairs", converted, hyperparameters={"steps": 2})
    completions = preflight(stages, "completions", changes)
    train(stages, "completions", changes)
    changes["method"] = {"train_on_prompt": True}
    everything = preflight(stages, "everything", changes)
    train(stages, "everything", changes)
    assert completions.train[0].tokens == everything.train[0].tokens
    assert completions.train[0].trained_tokens < everything.train[0].trained_tokens
    # all tokens of a row but the first are predicted
    assert everything.train[0].trained_tokens == everything.train[0].tokens - ROWS
    assert all(
        less < more
        for less, more in zip(tokens(stages, "completions"), tokens(stages, "everything"), strict=True)
    )


def test_other_names_of_columns_and_roles_make_the_same_training(
    stages: Stages, converted: str, folder: Path
) -> None:
    one = {"hyperparameters": {"steps": 2}}
    for spelling in ("pairs", "columns", "messages", "roles"):
        train(stages, f"same-{spelling}", asked(folder, spelling, converted, **one))
    losses = stages.losses("same-pairs")
    assert len(losses) == 2
    for spelling in (
        "columns",
        "messages",
        "roles",
    ):  # with a chat template, a pair is a chat of two turns
        assert stages.losses(f"same-{spelling}") == losses


def test_packing_puts_all_rows_into_fewer_sequences(stages: Stages, converted: str, folder: Path) -> None:
    """One epoch has the same tokens in fewer steps, and the nearly unchanged model has the same validation loss."""
    lengths = {}
    for packing in (False, True):
        run = f"packing-{packing}"
        changes = asked(
            folder, "messages", converted, data={"packing": packing, "max_seq_length": 128},
            hyperparameters={"steps": None, "epochs": 1.0, "global_batch_size": 2, "learning_rate": 1e-12},
        )  # fmt: skip
        found, trained = preflight(stages, run, changes), train(stages, run, changes)
        assert trained.total_steps == trained.step == found.steps == len(tokens(stages, run))
        lengths[packing] = (found, trained)
    (plain, unpacked), (packed, dense) = lengths[False], lengths[True]
    assert plain.steps == ROWS // 2
    assert packed.steps < plain.steps / 2
    assert (
        packed.train[0].trained_tokens
        == plain.train[0].trained_tokens
        == sum(tokens(stages, "packing-False"))
    )
    # rows of the next epoch fill the last step
    assert (
        0
        <= sum(tokens(stages, "packing-True")) - packed.train[0].trained_tokens
        < max(tokens(stages, "packing-True"))
    )
    assert dense.evaluation_loss == pytest.approx(unpacked.evaluation_loss, rel=1e-5)


@pytest.mark.parametrize(
    ("epochs", "batch", "steps"),
    [(1.0, 8, 6), (1.5, 16, 5), (0.1, 8, 1)],
    ids=["one", "one and a half", "a tenth"],
)
def test_epochs_become_steps_and_all_of_them_are_trained(
    stages: Stages, converted: str, folder: Path, epochs: float, batch: int, steps: int
) -> None:
    length = {"steps": None, "epochs": epochs, "global_batch_size": batch}
    changes = asked(folder, "pairs", converted, hyperparameters=length)
    run = f"epochs-{epochs}"
    assert preflight(stages, run, changes).steps == steps
    if epochs > 1:
        trained = train(stages, run, changes)
        assert (trained.step, trained.total_steps) == (steps, steps)
