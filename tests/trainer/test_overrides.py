"""The table of engine settings: compared with the installed engine, and applied by the trainer."""

import json
import operator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from finetune_contract import ExitCode
from finetune_contract.engine import Setting, SettingClass, engine_settings, parse_value
from finetune_trainer import families
from finetune_trainer.engine import maxtext, overrides
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.training import settings
from finetune_trainer.training.engine_config import engine_settings as made_for
from finetune_trainer.training.engine_config import evaluation_config, settings_json, training_config
from tests.doubles.tiny_models import FamilyName
from tests.trainer.models import made, qwen3
from tests.trainer.requests import request

ALLOWED = [each for each in engine_settings().values() if each.kind is SettingClass.ALLOWED]
#: Settings that the trainer sets by default and a job may override.
DEFAULTS = {"allow_split_physical_axes", "attention", "logits_dot_in_fp32", "matmul_precision"}


def examples(setting: Setting) -> list[str]:
    """Returns texts of every form that the setting accepts: all choices, and numbers near its bounds."""
    if setting.type == "bool":
        return ["true", "false", "yes", "No", "on", "OFF"]
    if not setting.type.startswith(("int", "float")):
        return setting.type.split("|")
    texts = ["0", "1", "-1", "+1", "8", "1000", "0.5", "-0.5", "1e-8", "2.5e-3", "1E5", "1."]
    return [text for text in texts if parse_value(setting, text) is not None]


def test_every_setting_of_the_engine_has_a_class() -> None:
    from maxtext.configs.types import MaxTextConfig

    assert list(engine_settings()) == sorted(MaxTextConfig.model_fields)


@pytest.mark.parametrize("setting", ALLOWED, ids=lambda setting: setting.name)
def test_an_allowed_settings_type_is_the_engines(setting: Setting) -> None:
    """Booleans, integers and floats have the engine's own types.

    Choices are a subset of the engine's enumeration, or restrict a setting that is free text in the engine.
    """
    from maxtext.configs.types import MaxTextConfig

    field = MaxTextConfig.model_fields[setting.name]
    kinds = (
        set(get_args(field.annotation))
        if get_origin(field.annotation) in (Union, UnionType)
        else {field.annotation}
    )
    (kind,) = kinds - {type(None)}
    if setting.type == "bool":
        assert kind is bool
    elif setting.type.startswith("int"):
        assert kind is int
    elif setting.type.startswith("float"):
        assert kind is float
    elif kind is not str:
        assert issubclass(kind, Enum)
        assert {each.value for each in kind} == set(setting.type.split("|"))


@pytest.mark.parametrize("setting", ALLOWED, ids=lambda setting: setting.name)
def test_a_value_is_what_maxtexts_command_line_makes_of_it_and_takes(setting: Setting) -> None:
    from maxtext.configs.types import MaxTextConfig

    field = MaxTextConfig.model_fields[setting.name]
    kind: Any = field.annotation
    for bound in field.metadata:
        kind = Annotated[kind, bound]
    texts = examples(setting)
    assert texts
    for text in texts:
        value = overrides.parse({"remat_policy": "custom", setting.name: text})[setting.name]
        on_command_line = OmegaConf.to_container(OmegaConf.from_cli([f"{setting.name}={text}"]))
        assert on_command_line == {setting.name: value}
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("family", FamilyName.__args__)
def test_what_the_model_and_the_trainer_decide_is_no_jobs_to_set(family: str, tmp_path: Path) -> None:
    plan = families.read(made(tmp_path / family, family))
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    decided = {*plan.settings(), *maxtext._COMMON}  # part of every configuration
    for method in ({}, lora):
        wanted = request(tmp_path, "Train", method=method)
        decided |= settings.settings(wanted, plan, steps=9, platform="tpu", output="/x").keys()
    allowed = {each.name for each in ALLOWED}
    assert decided & allowed <= DEFAULTS


REFUSED = [
    ({"remat_polcy": "full"}, "UnknownEngineOverride", "Did you mean remat_policy?"),
    ({"no_such_thing_at_all": "1"}, "UnknownEngineOverride", "Remove it."),
    ({"steps": "5"}, "EngineOverrideNotAllowed", "set spec.hyperparameters.steps"),
    ({"lora.lora_rank": "5"}, "EngineOverrideNotAllowed", "set spec.method.lora"),
    ({"base_emb_dim": "5"}, "EngineOverrideNotAllowed", "set spec.model"),
    ({"jax_cache_dir": "gs://elsewhere"}, "EngineOverrideNotAllowed", "no profile can allow it"),
    ({"dump_hlo": "true"}, "EngineOverrideNotAllowed", "no profile can allow it"),
    ({"remat_policy": "[1, 2"}, "EngineOverrideInvalid", "expected one of full, minimal"),
    ({"remat_policy": "${oc.env:HOME}"}, "EngineOverrideInvalid", "expected one of full, minimal"),
    ({"num_vocab_tiling": "many"}, "EngineOverrideInvalid", "found many, expected an integer >= 1"),
]


@pytest.mark.parametrize(
    ("given", "reason", "said"), REFUSED, ids=[r[1] + str(i) for i, r in enumerate(REFUSED)]
)
def test_the_trainer_refuses_what_the_operator_refuses(given: dict[str, str], reason: str, said: str) -> None:
    with pytest.raises(StageError) as caught:
        overrides.parse(given)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, reason)
    assert said in str(caught.value)
    assert caught.value.where.startswith("spec.engineOverrides.")


def test_a_job_overrides_what_preflight_chose(tmp_path: Path) -> None:
    wanted = request(
        tmp_path, "Train", tuning={"remat_policy": "full", "num_vocab_tiling": 8},
        engine_overrides={"remat_policy": "minimal", "adam_b2": "0.99", "use_iota_embed": "true"},
    )  # fmt: skip
    plan = families.read(qwen3(tmp_path))
    given = made_for(wanted, plan, steps=9, platform="tpu", output="/x")
    chosen = ("remat_policy", "num_vocab_tiling", "adam_b2", "use_iota_embed")
    assert operator.itemgetter(*chosen)(given) == ("minimal", 8, 0.99, True)


#: Settings that make MaxText's hooks and configuration access the outside: uploads, ports, dumps, reports, checkpoints.
OFF = {
    "dump_hlo": False, "dump_jaxpr": False, "jax_cache_dir": "", "gcs_metrics": False, "save_config_to_gcs": False,
    "metrics_file": "", "prometheus_port": 0, "enable_wandb": False, "use_vertex_tensorboard": False,
    "managed_mldiagnostics": False, "enable_goodput_recording": False, "monitor_goodput": False,
    "report_heartbeat_metric_for_gcp_monitoring": False, "report_performance_metric_for_gcp_monitoring": False,
    "enable_jax_profiler": False, "upload_all_profiler_results": False, "enable_checkpoint_cloud_logger": False,
    "load_full_state_path": "", "compiled_trainstep_file": "", "skip_jax_distributed_system": True,
}  # fmt: skip


def test_nothing_that_reaches_beyond_the_job_is_on(tmp_path: Path) -> None:
    """These features are off by default, and no override can turn them on, because none is an allowed setting."""
    plan = families.read(qwen3(tmp_path))
    most = {each.name: examples(each)[0] for each in ALLOWED} | {"remat_policy": "custom"}
    wanted = request(
        tmp_path, "Train", engine_overrides=dict(list(most.items())[:64]) | {"remat_policy": "custom"}
    )
    given = made_for(wanted, plan, steps=9, platform="cpu", output=str(tmp_path))
    config = maxtext.configure(plan, maxtext.SFT, **given)
    assert {name: getattr(config, name) or type(value)() for name, value in OFF.items()} == OFF
    assert {engine_settings()[name].kind for name in OFF} == {SettingClass.DANGEROUS}


def test_an_address_cannot_carry_the_environment_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    plan = families.read(qwen3(tmp_path))
    for leak in (
        {"load_parameters_path": "gs://elsewhere/${oc.env:HF_TOKEN}/items"},
        {"lora": {"lora_restore_path": "gs://elsewhere/${oc.env:HF_TOKEN}"}},
    ):
        with pytest.raises(StageError, match=r"contains \$\{") as caught:
            maxtext.configure(plan, maxtext.SFT, run_name="x", base_output_directory=str(tmp_path), **leak)
        assert caught.value.code == ExitCode.BAD_REQUEST
        assert "hf_secret" not in str(caught.value)


def test_every_setting_can_be_stored_and_credentials_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    plan = families.read(qwen3(tmp_path))
    given = made_for(
        request(tmp_path, "Train"), plan, steps=9, platform="cpu", output=f"{tmp_path}/hf_secret"
    )
    config = maxtext.configure(plan, maxtext.SFT, **given, hf_access_token="hf_other")
    text = settings_json(config)
    stored = json.loads(text)
    assert stored["steps"] == 9
    assert stored["base_output_directory"] == f"{tmp_path}/[redacted]"
    assert (stored["weight_dtype"], stored["decoder_block"]) == ("float32", "qwen3")
    assert config.get_keys().keys() - stored.keys() == {"hf_access_token"}
    assert "hf_other" not in text
    assert " at 0x" not in text


def test_evaluation_decodes_where_what_training_is_set_to_cannot(tmp_path: Path) -> None:
    """The flash kernel has no cache, and a model with a tiled vocabulary returns no logits."""
    wanted = request(tmp_path, "Evaluate", engine_overrides={"attention": "flash", "num_vocab_tiling": "8"})
    folder = f"file://{tmp_path}/run"
    plan = families.read(qwen3(tmp_path))
    training = training_config(wanted, plan, steps=9, folder=folder, parameters="/converted")
    row_capacity = DeviceRowCapacity.of(wanted, plan, memory=None)
    evaluation = evaluation_config(row_capacity, folder=folder, parameters="/converted")
    assert (training.attention, evaluation.attention) == ("flash", "autoselected")
    assert (training.num_vocab_tiling, evaluation.num_vocab_tiling) == (8, 1)
