"""Broken inputs from users, in whole stages: each ends with the contract's exit code and a message with place and fix.

test_datasets covers broken rows and files of datasets, and test_families the contents of config.json; these tests cover
one example of each other kind of input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from finetune_contract import (
    ConversionCacheUse,
    ConvertOutcome,
    ExitCode,
    Failure,
    Outcome,
    PreflightOutcome,
    StageResult,
)
from tests.trainer.requests import request
from tests.trainer.stages import Stages

type Break = Callable[[Path], None]


def unlink(name: str) -> Break:
    return lambda model: (model / name).unlink()


def text(name: str, content: str) -> Break:
    def act(model: Path) -> None:
        (model / name).write_text(content)

    return act


def edit(name: str, **changes: Any) -> Break:
    def act(model: Path) -> None:
        found = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(found | changes))

    return act


def weights(change: Callable[[dict[str, Any]], Any]) -> Break:
    def act(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors")

    return act


def truncated(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def adapter(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text("{}")


def of_torch(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


NORM = "model.norm.weight"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a2146' * 8}\nsize 988097824\n"
MODELS: dict[str, tuple[str, Break, ExitCode, str, str]] = {
    "no config.json": ("Preflight", unlink("config.json"), ExitCode.INPUT_MISSING, "ConfigMissing", "config.json"),
    "an adapter": ("Preflight", adapter, ExitCode.INPUT_MISSING, "ConfigMissing", "This is a LoRA adapter"),
    "config.json that is no JSON": ("Preflight", text("config.json", "{"), ExitCode.BAD_REQUEST, "InvalidModelConfig",
     "config.json"),
    "config.json without end": ("Preflight", text("config.json", "[" * 200_000), ExitCode.BAD_REQUEST,
     "InvalidModelConfig", "config.json"),
    "settings of the tokenizer without end": ("Preflight", text("tokenizer_config.json", '{"a":' + "[" * 200_000),
     ExitCode.INPUT_MISSING, "TokenizerMissing", "tokenizer"),
    "a tokenizer without end": ("Preflight", text("tokenizer.json", '{"a":' + "[" * 200_000),
     ExitCode.INPUT_MISSING, "TokenizerMissing", "tokenizer"),
    "an architecture of nobody": ("Preflight", edit("config.json", architectures=["BertForMaskedLM"]),
     ExitCode.BAD_REQUEST, "UnsupportedArchitecture", "BertForMaskedLM"),
    "a config that is not of these weights": ("Convert", edit("config.json", intermediate_size=64),
     ExitCode.BAD_REQUEST, "WeightsMismatch", "the shape differs from config.json"),
    "weights cut short": ("Preflight", truncated, ExitCode.BAD_DATA, "UnexpectedContent", "the file is incomplete"),
    "weights cut short later": ("Convert", truncated, ExitCode.BAD_REQUEST, "WeightsMismatch", "the file is incomplete"),
    "weights that are a pointer later": ("Convert", text("model.safetensors", POINTER), ExitCode.BAD_DATA,
     "GitLfsPointer", "model.safetensors: the file is a Git LFS pointer"),
    "weights of a smaller model": ("Preflight", edit("config.json", num_hidden_layers=9), ExitCode.BAD_REQUEST,
     "WeightsMismatch", "smaller than config.json says"),
    **{f"{name} is a Git LFS pointer": ("Preflight", text(name, POINTER), ExitCode.BAD_DATA, "GitLfsPointer",
        f"{name}: the file is a Git LFS pointer, and its content is missing (found a pointer to 988,097,824 bytes")
       for name in ("model.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json",
                    "tokenizer_config.json", "generation_config.json", "chat_template.jinja")},
    **{f"{name} is {page[:9]!r}": ("Preflight", text(name, page), ExitCode.BAD_DATA, "UnexpectedContent", f"{name}: ")
       for name, page in (("model.safetensors", "<!DOCTYPE html><html><title>Sign in</title>"),
                          ("model.safetensors", "Entry not found"), ("model.safetensors", ""),
                          ("model.safetensors", "<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>"),
                          ("config.json", "\n<html>"), ("tokenizer.json", "\ufeff<!doctype html>"))},
    "weights of torch": ("Convert", of_torch, ExitCode.INPUT_MISSING, "WeightsMissing", "pytorch_model.bin"),
    "an index that is no JSON": ("Convert", text("model.safetensors.index.json", "{"), ExitCode.BAD_REQUEST,
     "WeightsMismatch", "the index cannot be read"),
    "a shard that is missing": ("Convert", text("model.safetensors.index.json",
     json.dumps({"weight_map": {NORM: "model-2.safetensors", "x": "model.safetensors"}})), ExitCode.INPUT_MISSING,
     "WeightsMissing", "model-2.safetensors"),
    "an index of older shards": ("Preflight", text("model.safetensors.index.json",
     json.dumps({"weight_map": {NORM: "model-2.safetensors"}})), ExitCode.BAD_REQUEST, "WeightsAmbiguous",
     "the folder has two sets of weights"),
    "a tensor that is missing": ("Convert", weights(lambda found: found.pop(NORM)), ExitCode.BAD_REQUEST,
     "WeightsMismatch", f"no {NORM}"),
    "a tensor too many": ("Convert", weights(lambda found: found.update(extra=np.zeros(2, np.float32))),
     ExitCode.BAD_REQUEST, "WeightsMismatch", "extra"),
    "integers as weights": ("Convert", weights(lambda found: found.update({NORM: np.zeros(64, np.int8)})),
     ExitCode.BAD_REQUEST, "WeightsMismatch", "I8"),
    "weights that are no numbers": ("Convert", weights(lambda found: found.update({NORM: np.full(64, np.nan, np.float32)})),
     ExitCode.BAD_REQUEST, "WeightsNotFinite", NORM),
    "no tokenizer": ("Preflight", unlink("tokenizer.json"), ExitCode.INPUT_MISSING, "TokenizerMissing", "tokenizer"),
    "a tokenizer that is no JSON": ("Preflight", text("tokenizer.json", "{"), ExitCode.INPUT_MISSING,
     "TokenizerMissing", "tokenizer"),
    "a tokenizer of a larger model": ("Preflight", edit("config.json", vocab_size=100), ExitCode.BAD_REQUEST,
     "TokenizerTooLarge", "at most 100"),
    "a template that fails": ("Preflight", text("chat_template.jinja", "{{ raise_exception('only one turn') }}"),
     ExitCode.BAD_DATA, "DatasetSchemaMismatch", "only one turn"),
}  # fmt: skip


def failure_of(result: StageResult) -> Failure:
    assert result.failure is not None
    assert result.exit_code == result.failure.code
    assert result.failure.fix, result.failure
    return result.failure


@pytest.mark.parametrize(("stage", "broken", "code", "reason", "told"), MODELS.values(), ids=MODELS)
def test_a_broken_model_folder_is_reported(
    stages: Stages, tmp_path: Path, stage: str, broken: Break, code: ExitCode, reason: str, told: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(stages.root / "models/qwen3", model)
    broken(model)
    run = f"broken/{tmp_path.name}"
    failure = failure_of(stages.run(stage, run, model={"uri": f"file://{model}"}))
    assert (failure.code, failure.reason) == (code, reason), failure.message
    assert told in failure.message


def test_a_conversion_of_files_that_were_written_again_meanwhile_is_in_no_cache(
    stages: Stages, tmp_path: Path
) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(stages.root / "models/qwen3", model)
    place = "finetune_trainer.conversion.streaming:convert"
    failure = failure_of(
        stages.run(
            "Convert", f"broken/{tmp_path.name}", model={"uri": f"file://{model}"}, cache=f"file://{cache}",
            export_proof=False, fault=("written_again_at", place, str(model / "model.safetensors")),
        )
    )  # fmt: skip
    assert (failure.code, failure.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert "model.safetensors" in failure.message
    assert not list(cache.rglob("manifest.json"))


REQUESTS: dict[str, tuple[dict[str, Any], ExitCode, str, str]] = {
    "an override nobody knows": ({"engine_overrides": {"remat_polcy": "full"}}, ExitCode.BAD_REQUEST,
     "UnknownEngineOverride", "remat_policy"),
    "an override of the wrong type": ({"engine_overrides": {"num_vocab_tiling": "many"}}, ExitCode.BAD_REQUEST,
     "EngineOverrideInvalid", "num_vocab_tiling"),
    "an override of what a field decides": ({"engine_overrides": {"gradient_clipping_threshold": "1"}},
     ExitCode.BAD_REQUEST, "EngineOverrideNotAllowed", "hyperparameters.maxGradNorm"),
    "a batch that does not divide": ({"hyperparameters": {"global_batch_size": 3},
     "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4}}, ExitCode.BAD_REQUEST, "BatchNotDivisible", "Use 4"),
    "modules that LoRA does not know": ({"method": {"lora": {"rank": 4, "alpha": 8.0, "target_modules": ["qq_proj"]}}},
     ExitCode.BAD_REQUEST, "UnknownLoraModule", "q_proj"),
    "data that is not there": ({"data": {"train": [{"path": "spec.datasets.train[0]", "name": "train-0",
     "uri": "file:///nowhere/train.jsonl"}]}}, ExitCode.INPUT_MISSING, "DatasetMissing", "/nowhere/train.jsonl"),
    "a model that is not there": ({"model": {"uri": "file:///nowhere/model"}}, ExitCode.INPUT_MISSING, "ModelMissing",
     "/nowhere/model"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "reason", "told"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_cannot_be_is_reported_in_preflight(
    stages: Stages, tmp_path: Path, changes: dict[str, Any], code: ExitCode, reason: str, told: str
) -> None:
    failure = failure_of(stages.run("Preflight", f"broken/{tmp_path.name}", **changes))
    assert (failure.code, failure.reason) == (code, reason), failure.message
    assert told in failure.message


def test_a_conversion_that_is_gone_or_damaged_is_reported(
    stages: Stages, converted: str, tmp_path: Path
) -> None:
    gone = failure_of(stages.run("Train", "broken/gone", converted=f"file://{tmp_path}/nowhere/items"))
    assert (gone.code, gone.reason) == (ExitCode.INPUT_MISSING, "ConvertedModelUnreadable"), gone.message
    items = tmp_path / "items"
    shutil.copytree(converted.removeprefix("file://"), items)
    for file in items.rglob("d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    damaged = failure_of(stages.run("Train", "broken/damaged", converted=f"file://{items}"))
    assert (damaged.code, damaged.reason) == (ExitCode.INPUT_MISSING, "ConvertedModelUnreadable"), (
        damaged.message
    )
    assert str(items) in damaged.message


def flipped(path: Path) -> None:
    """Flips one bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_cached_conversion_is_compared_by_preflight_and_by_training_and_made_anew(
    stages: Stages, tmp_path: Path
) -> None:
    """One bit of the weights changes in a conversion that real stages have made."""
    cache = f"file://{tmp_path}/cache"

    def preflight(run: str) -> ConversionCacheUse:
        details = stages.run("Preflight", f"poisoned/{run}", cache=cache).details
        assert isinstance(details, PreflightOutcome)
        assert details.conversion is not None
        return details.conversion

    def convert(run: str) -> ConvertOutcome:
        details = stages.run("Convert", f"poisoned/{run}", cache=cache).details
        assert isinstance(details, ConvertOutcome)
        return details

    assert preflight("first").result == "Miss"
    made = convert("first")
    manifest = made.manifest
    hit = preflight("second")
    assert (hit.result, hit.uri, hit.files_digest) == ("Hit", manifest.items, manifest.files_digest)
    told = {
        "cache": cache, "fingerprint": manifest.fingerprint, "converted": manifest.items,
        "converted_files_digest": manifest.files_digest, "hyperparameters": {"steps": 1},
    }  # fmt: skip
    assert stages.run("Train", "poisoned/train", **told).outcome is Outcome.SUCCEEDED
    assert preflight("after training").result == "Hit"  # a stage that loads a model never writes to its entry
    assert convert("third") == ConvertOutcome(manifest=manifest, reused=True)

    tokens = next(Path(f"{tmp_path}/cache/data").rglob("tokens.bin"))
    flipped(tokens)
    assert stages.run("Train", "poisoned/other-rows", **told).outcome is Outcome.SUCCEEDED
    assert stages.losses("poisoned/other-rows") == stages.losses("poisoned/train")

    largest = max(
        Path(manifest.items.removeprefix("file://")).rglob("d/*"), key=lambda path: path.stat().st_size
    )
    flipped(largest)
    failure = failure_of(stages.run("Train", "poisoned/damaged", **told))
    assert (failure.code, failure.reason) == (ExitCode.UNAVAILABLE, "ConvertedModelDamaged"), failure.message
    assert (failure.where, largest.name in failure.actual) == (manifest.items, True)
    missed = preflight("fourth")
    assert missed.result == "Miss"
    assert largest.name in missed.miss_because[0]
    again = convert("fourth")
    assert (again.reused, again.manifest.items != manifest.items) == (False, True)
    assert preflight("fifth").uri == again.manifest.items


def test_a_checkpoint_that_is_gone_is_reported(stages: Stages, converted: str) -> None:
    failure = failure_of(stages.run("Evaluate", "broken/never-trained", converted=converted, train_step=7))
    assert (failure.code, failure.reason) == (ExitCode.INPUT_MISSING, "CheckpointMissing")
    assert "checkpoints/7" in failure.message


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        ("Preflight", "finetune_trainer.stages.context:prepare"),
        ("Convert", "finetune_trainer.conversion.streaming:convert"),
    ],
)
def test_a_disk_that_is_full_is_reported(stages: Stages, stage: str, place: str) -> None:
    made = request(stages.root, stage, f"broken/full-{stage}")
    full = ("disk_full_at", place)
    failure = failure_of(stages.run(stage, f"broken/full-{stage}", fault=full, use_cache="Off"))
    assert (failure.code, failure.reason) == (ExitCode.OUT_OF_MEMORY, "DiskFull"), (failure.message, made)
    assert "/scratch/file" in failure.message
