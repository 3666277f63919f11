"""The engine settings that a job may override, by admission, ``finetune validate`` and ``finetune plan``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import Reason
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests.checks import check_files
from finetune_operator.planning import Refused, admit, replan
from tests.plan_pages import plan_page
from tests.unit.lifecycle.world import job, profile

#: Settings with effects beyond the job, each with a word of its refusal.
REACHING = {
    "jax_cache_dir": "gs://elsewhere/cache",
    "dump_hlo": "true",
    "dump_hlo_gcs_dir": "gs://elsewhere/x",
    "dump_hlo_local_dir": "/etc",
    "dump_jaxpr": "true",
    "load_full_state_path": "gs://elsewhere/run",
    "wandb_project_name": "x",
    "enable_wandb": "true",
    "use_vertex_tensorboard": "true",
    "enable_jax_profiler": "true",
    "metrics_file": "/tmp/x",
    "save_quantized_params_path": "gs://elsewhere/q",
    "hf_lora_adapter_path": "x/y",
    "hf_access_token": "x",
    "chat_template_path": "/proc/self/environ",
    "gcs_metrics": "true",
    "managed_mldiagnostics": "true",
    "enable_checkpointing": "false",
    "lora_input_adapters_path": "gs://x",
    "monitor_goodput": "true",
    "formatting_func_path": "os.system",
    "checkpoint_conversion_fn": "os.system",
    "base_config": "/tmp/x.yml",
    "compiled_trainstep_file": "/tmp/pickle",
    "compile_xla_flags": "--xla_dump_to=/x",
    "dcn_bandwidth_interface": "eth0; reboot",
    "student_overrides.jax_cache_dir": "gs://elsewhere",
}
DECIDED = {
    "steps": "spec.hyperparameters.steps",
    "learning_rate": "spec.hyperparameters.learningRate",
    "lora.lora_rank": "spec.method.lora",
    "dpo.dpo_beta": "spec.method.dpo",
    "ici_fsdp_parallelism": "spec.resources.parallelism",
    "dcn_data_parallelism": "spec.resources.slices",
    "profiler": "spec.profiling",
    "base_emb_dim": "spec.model",
    "quantization": "spec.method.lora.quantization",
}
WRONG: list[tuple[dict[str, str], str]] = [
    ({"remat_polcy": "full"}, "spec.engineOverrides.remat_polcy: MaxText has no such setting."),
    ({"remat_polcy": "full"}, "MaxText has no such setting. Did you mean remat_policy?"),
    ({"learningRate": "1"}, "Did you mean learning_rate?"),
    ({"no_such_thing_at_all": "1"}, "no_such_thing_at_all: MaxText has no such setting. Remove it."),
    ({"num_vocab_tiling": "many"}, "MaxText does not accept this value: found many, expected an integer >= 1."),
    ({"use_iota_embed": "3"}, "found 3, expected true or false."),
    ({"remat_policy": "ful"}, "Did you mean full?"),
    ({"remat_policy": "[1, 2"}, "found [1, 2, expected one of full, minimal"),
    ({"remat_policy": "gs://elsewhere/x"}, "found gs://elsewhere/x, expected one of full"),
    ({"remat_policy": ""}, "found '', expected one of"),
    ({"remat_policy.x": "full"}, "remat_policy has no settings of its own"),
    ({"remat_polcy": "full", "stepz": "1"}, "Did you mean steps?"),
]  # fmt: skip


def refusal(overrides: dict[str, str], *profiles: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(job(engineOverrides=overrides), profiles or [profile()])
    return caught.value


@pytest.mark.parametrize(("key", "value"), REACHING.items())
def test_settings_with_effects_beyond_the_job_are_always_refused(key: str, value: str) -> None:
    for mode in (profile(), profile(constraints={"engineOverrides": {"allow": ["remat_policy"]}})):
        refused = refusal({key: value}, mode)
        assert refused.reason == Reason.INVALID_SPEC
        assert f"spec.engineOverrides.{key}: a job may not set it" in refused.message


@pytest.mark.parametrize(("key", "field"), DECIDED.items())
def test_a_setting_that_a_field_decides_is_refused_with_the_field(key: str, field: str) -> None:
    refused = refusal({key: "1"})
    assert refused.reason == Reason.INVALID_SPEC
    assert f"spec.engineOverrides.{key}: {field} decides it. Remove it and set {field}." in refused.message


@pytest.mark.parametrize(("overrides", "expected"), WRONG)
def test_admission_validate_and_plan_refuse_a_wrong_key_or_value_alike(
    overrides: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert expected in refusal(overrides).message
    files = {"job.yaml": job(engineOverrides=overrides), "profile.yaml": profile()}
    for name, document in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(document))
    ((problem,),) = check_files([tmp_path / "job.yaml"]).problems.values()
    assert expected in problem
    with pytest.raises(CliError) as caught:
        plan_page(tmp_path / "job.yaml", tmp_path / "profile.yaml")
    assert expected in str(caught.value)


def test_every_wrong_key_is_named_at_once() -> None:
    message = refusal({"stepz": "1", "jax_cache_dir": "x", "remat_policy": "no"}).message
    assert all(
        f"spec.engineOverrides.{key}: " in message for key in ("stepz", "jax_cache_dir", "remat_policy")
    )


def test_an_allowed_setting_reaches_the_plan() -> None:
    given = {"remat_policy": "custom", "context": "offload", "adam_b2": "0.99", "sa_block_q": "128"}
    assert admit(job(engineOverrides=given), [profile()]).plan.engine_overrides == given


def test_a_profile_narrows_what_is_allowed() -> None:
    narrow = profile(constraints={"engineOverrides": {"allow": ["remat_policy"]}})
    admit(job(engineOverrides={"remat_policy": "full"}), [narrow])
    refused = refusal({"remat_policy": "full", "adam_b2": "0.99"}, narrow)
    assert refused.reason == Reason.POLICY_VIOLATION
    assert "allow is remat_policy, which does not cover spec.engineOverrides.adam_b2" in refused.message


@pytest.mark.parametrize("key", ["jax_cache_dir", "steps", "lora.lora_rank", "remat_policy.x"])
def test_a_profile_that_allows_another_class_is_invalid(key: str) -> None:
    refused = refusal({}, profile(constraints={"engineOverrides": {"allow": ["remat_policy", key]}}))
    assert refused.reason == Reason.PROFILE_INVALID
    assert f"spec.constraints.engineOverrides.allow[1]: {key}: " in refused.message


def test_an_edit_of_an_admitted_job_is_checked_like_a_new_job() -> None:
    stored = admit(job(), [profile()]).stored
    with pytest.raises(Refused) as caught:
        replan(job(engineOverrides={"dump_hlo": "true"}), stored)
    assert caught.value.reason == Reason.INVALID_SPEC
