"""The starting points of real stages: a MaxText checkpoint, another job's model, or another job's run folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import ExitCode, StageResult
from tests.trainer.models import made
from tests.trainer.stages import Stages

LORA = {"lora": {"rank": 4, "alpha": 8.0}}


@pytest.fixture(scope="module")
def given(stages: Stages, converted: str) -> dict[str, Any]:
    """Returns the ``model`` field of a request whose checkpoint is the converted Qwen3."""
    tokenizer = {"uri": f"file://{stages.root}/models/qwen3"}
    return {"uri": None, "orbax": converted, "maxtext_model": "qwen3-8b", "tokenizer": tokenizer}


def details(result: StageResult) -> Any:
    assert result.details is not None, result.failure
    return result.details


@pytest.mark.parametrize("method", [{}, LORA], ids=["full", "lora"])
def test_a_given_checkpoint_is_trained_and_exported_like_the_model_that_it_was_made_of(
    stages: Stages, converted: str, given: dict[str, Any], method: dict[str, Any]
) -> None:
    run, same = f"given-{len(method)}", f"same-{len(method)}"
    found = details(stages.run("Preflight", run, model=given, method=method))
    pinned = {**given, "digest": found.model.revision}
    trained = details(stages.run("Train", run, model=pinned, method=method, converted=converted))
    stages.run("Train", same, method=method, converted=converted)
    assert stages.losses(run) == stages.losses(same)
    exported = details(stages.run("Export", run, model=pinned, method=method, train_step=20))
    measured = stages.evaluate(exported.artifacts[0].uri)
    assert measured["loss"] == pytest.approx(trained.evaluation_loss, rel=1e-3)


def test_a_model_that_a_job_has_exported_is_converted_and_proven_like_any(
    stages: Stages, converted: str
) -> None:
    stages.run("Train", "first", converted=converted)
    exported = details(stages.run("Export", "first", train_step=20))
    assert exported.step == 20
    manifest = details(
        stages.run("Convert", "second", model={"uri": exported.artifacts[0].uri}, use_cache="Off")
    ).manifest
    assert manifest.export_proven


def broken(root: Path, given: dict[str, Any], case: str) -> dict[str, Any]:
    tokenizer: dict[str, Any] = given["tokenizer"]
    if case == "another model":
        other = root / "models" / "other"
        if not other.exists():
            made(other, "llama")
        return {**given, "maxtext_model": "llama3.1-8b", "tokenizer": {"uri": f"file://{other}"}}
    if case == "another size":
        other = root / "models" / "wider"
        if not other.exists():
            made(other, "qwen3")
            config = json.loads((other / "config.json").read_text())
            config["intermediate_size"] *= 2
            (other / "config.json").write_text(json.dumps(config))
        return {**given, "tokenizer": {"uri": f"file://{other}"}}
    if case == "no config":
        alone = root / "models" / "tokenizer-alone"
        alone.mkdir(exist_ok=True)
        source = Path(tokenizer["uri"].removeprefix("file://")) / "tokenizer.json"
        (alone / "tokenizer.json").write_bytes(source.read_bytes())
        return {**given, "tokenizer": {"uri": f"file://{alone}"}}
    return (
        given
        | {
            "nothing there": {"orbax": f"file://{root}/nowhere/0/items"},
            "no checkpoint": {"orbax": f"file://{root}/data"},
            "changed": {"digest": "of another content"},
            "another family": {"maxtext_model": "gemma2-2b"},
            "no such model": {"maxtext_model": "qwen3-8c"},
        }[case]
    )


@pytest.mark.parametrize(
    ("case", "code", "reason", "told"),
    [
        ("nothing there", ExitCode.INPUT_MISSING, "CheckpointMissing", "nowhere"),
        ("no checkpoint", ExitCode.INPUT_MISSING, "CheckpointUnreadable", "items folder"),
        ("no config", ExitCode.INPUT_MISSING, "ConfigMissing", "config.json"),
        ("changed", ExitCode.BAD_DATA, "InputChanged", "orbax"),
        ("another model", ExitCode.BAD_REQUEST, "CheckpointIncompatible", "self_attention-key_norm-scale"),
        (
            "another size",
            ExitCode.BAD_REQUEST,
            "CheckpointIncompatible",
            "differs in size from config.json",
        ),
        ("another family", ExitCode.BAD_REQUEST, "MaxTextModelMismatch", "gemma2-2b (gemma2)"),
        ("no such model", ExitCode.BAD_REQUEST, "MaxTextModelMismatch", "qwen3-8b"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_known_before_anything_is_spent(
    stages: Stages, given: dict[str, Any], case: str, code: ExitCode, reason: str, told: str
) -> None:
    made_of = broken(stages.root, given, case)
    result = stages.run("Preflight", f"broken-{case.replace(' ', '-')}", model=made_of)
    assert result.failure is not None
    assert (result.exit_code, result.failure.reason) == (code, reason)
    assert told in result.failure.message
    assert result.failure.fix


def test_a_checkpoint_in_one_database_is_refused_under_pathways(
    stages: Stages, given: dict[str, Any]
) -> None:
    result = stages.run("Preflight", "in-one-database", model=given, mesh={"controller": "Pathways"})
    assert result.failure is not None
    assert (result.exit_code, result.failure.reason) == (ExitCode.BAD_REQUEST, "CheckpointIncompatible")
    assert "checkpoint_storage_use_ocdbt=False" in result.failure.message


ANOTHER = {"job": {"uid": "fedcba9876543210", "name": "another"}, "attempt": 2}


def test_another_job_continues_in_the_run_folder_as_if_nothing_had_happened(
    stages: Stages, converted: str
) -> None:
    long = {"converted": converted, "hyperparameters": {"steps": 60}, "checkpointing": {"every_steps": 30}}
    stages.run("Train", "at-once", **long)
    stages.run("Preflight", "begun", hyperparameters={"steps": 60})
    first = details(stages.run("Train", "begun", stop_at=20, **long))
    details(stages.run("Preflight", "begun", hyperparameters={"steps": 60}, **ANOTHER))
    second = details(stages.run("Train", "begun", **long, **ANOTHER))
    assert 0 < first.step == second.start_step
    assert stages.losses("begun") == stages.losses("at-once")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hyperparameters": {"learning_rate": 1e-3}}, "hyperparameters.learning_rate (0.01, now 0.001)"),
        ({"method": LORA}, "method ("),
        ({"data": {"max_seq_length": 32}}, "datasets.maxSeqLength (64, now 32)"),
        ({"data": {"shuffle": False}}, "datasets.shuffle (True, now False)"),
    ],
)
def test_another_training_does_not_go_on_there(stages: Stages, changes: dict[str, Any], told: str) -> None:
    run = "of-another"
    if not (stages.root / run).exists():
        details(stages.run("Preflight", run))
    result = stages.run("Preflight", run, **changes, **ANOTHER)
    assert result.failure is not None
    assert (result.exit_code, result.failure.reason) == (ExitCode.BAD_REQUEST, "ResumeMismatch")
    assert told in result.failure.message


def test_a_longer_training_may_go_on_there_and_content_that_changed_may_not(stages: Stages) -> None:
    rows = stages.root / "data" / "growing.jsonl"
    rows.write_text((stages.root / "data" / "eval.jsonl").read_text())
    train = [{"path": "spec.datasets.train[0]", "name": "train-0", "uri": f"file://{rows}"}]
    details(stages.run("Preflight", "growing", data={"train": train}))
    details(
        stages.run("Preflight", "growing", data={"train": train}, hyperparameters={"steps": 40}, **ANOTHER)
    )
    rows.write_text(rows.read_text() * 2)
    third = {"job": {"uid": "00000000aaaaaaaa"}, "attempt": 3}
    result = stages.run("Preflight", "growing", data={"train": train}, **third)
    assert result.failure is not None
    assert "the content of spec.datasets.train[0]" in result.failure.message
