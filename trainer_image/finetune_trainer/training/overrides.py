"""The user's ``engineOverrides``, read as MaxText reads its command line and checked against its real keys."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, TypeAdapter, ValidationError

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError

#: Keys that the request decides, each with the field that does. An override would make the record untrue.
OWNED: Mapping[str, str] = {
    "steps": "hyperparameters.steps",
    "learning_rate": "hyperparameters.learningRate",
    "learning_rate_schedule_steps": "hyperparameters.steps",
    "lr_schedule_type": "hyperparameters.schedule",
    "warmup_steps_fraction": "hyperparameters.warmupRatio",
    "wsd_decay_steps_fraction": "hyperparameters.schedule",
    "per_device_batch_size": "hyperparameters.globalBatchSize",
    "gradient_accumulation_steps": "hyperparameters.gradientAccumulationSteps",
    "gradient_clipping_threshold": "hyperparameters.maxGradNorm",
    "adam_weight_decay": "hyperparameters.weightDecay",
    "opt_type": "hyperparameters.optimizer",
    "init_weights_seed": "hyperparameters.seed",
    "data_shuffle_seed": "hyperparameters.seed",
    "dtype": "hyperparameters.computePrecision",
    "weight_dtype": "hyperparameters.weightPrecision",
    "max_target_length": "datasets.maxSeqLength",
    "packing": "datasets.packing",
    "lora": "method.lora",
    "model_name": "model.maxtextModel",
    "override_model_config": "model",
    "load_parameters_path": "model",
    "tokenizer_path": "model.tokenizer",
    "hf_access_token": "huggingFaceTokenSecretRef",
    "checkpoint_period": "checkpointing.everySteps",
    "max_num_checkpoints_to_keep": "checkpointing.keep.last",
    "eval_interval": "evaluation.everySteps",
    "run_name": "the operator",
    "base_output_directory": "the operator",
    "hardware": "the operator",
    "skip_jax_distributed_system": "the operator",
    "scan_layers": "the conversion",
    "param_scan_axis": "the conversion",
    "checkpoint_storage_use_ocdbt": "resources.controller",
    "checkpoint_storage_use_zarr3": "resources.controller",
    "enable_single_controller": "resources.controller",
    "ici_data_parallelism": "resources.parallelism",
    "ici_fsdp_parallelism": "resources.parallelism",
    "ici_tensor_parallelism": "resources.parallelism",
    "dcn_data_parallelism": "resources.slices",
}


def parse(overrides: Mapping[str, str], owned: Mapping[str, Any], known: type[BaseModel]) -> dict[str, Any]:
    """Typed values for MaxText. ``owned`` are settings that are made already (the model's own among them), ``known`` is
    MaxText's configuration class. Raises ``StageError`` 64 for a key that is not MaxText's or not the user's to set."""
    for key in overrides:
        root = key.partition(".")[0]
        _check(key, root, owned, known)
    try:
        parsed = OmegaConf.from_cli([f"{key}={value}" for key, value in overrides.items()])
        values = OmegaConf.to_container(parsed, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "EngineOverrideInvalid",
            "a value cannot be read",
            where="engineOverrides",
            saw=str(error)[:300],
            expected="values as on MaxText's command line",
            fix="Quote or correct the value.",
        ) from error
    assert isinstance(values, dict)
    for key, value in values.items():
        _fits(str(key), value, known)
    return {str(key): value for key, value in values.items()}


def _fits(key: str, value: Any, known: type[BaseModel]) -> None:
    """What MaxText itself would refuse when the stage starts on its slice."""
    field = known.model_fields[key]
    kind: Any = field.annotation
    for bound in field.metadata:
        kind = Annotated[kind, bound]
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise StageError(
            ExitCode.BAD_REQUEST,
            "EngineOverrideInvalid",
            "MaxText does not take this value",
            where=f"engineOverrides.{key}",
            saw=str(value)[:100],
            expected=first["msg"],
            fix="Correct the value.",
        ) from None


def _check(key: str, root: str, owned: Mapping[str, Any], known: type[BaseModel]) -> None:
    where = f"engineOverrides.{key}"
    if root not in known.model_fields:
        close = difflib.get_close_matches(root, list(known.model_fields), n=1, cutoff=0.6)
        raise StageError(
            ExitCode.BAD_REQUEST,
            "UnknownEngineOverride",
            "MaxText has no such setting",
            where=where,
            saw=root,
            expected="a key of MaxText's configuration",
            fix=f"Did you mean {close[0]}?" if close else "Remove it.",
        )
    if root in OWNED or root in owned:
        field = OWNED.get(root, "the model's config.json")
        raise StageError(
            ExitCode.BAD_REQUEST,
            "EngineOverrideNotAllowed",
            "this setting follows from another field",
            where=where,
            saw=root,
            expected=f"only {field} to decide it",
            fix=f"Remove it here; change {field}.",
        )
