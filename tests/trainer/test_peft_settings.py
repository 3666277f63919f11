"""An adapter of PEFT is merged only if the product of its two halves is its complete effect."""

from typing import Any

import pytest

from finetune_contract import ExitCode
from finetune_trainer.conversion.peft_settings import require_plain
from finetune_trainer.errors import StageError

#: adapter_config.json as PEFT 0.21 writes it, with every setting at its default.
PLAIN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "acme/base", "bias": "none", "corda_config": None, "ensure_weight_tying": False,
    "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "kasa_config": None, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 32, "lora_bias": False, "lora_dropout": 0.05,
    "lora_ga_config": None, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None,
    "monteclora_config": None, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 16,
    "rank_pattern": {}, "revision": None, "target_modules": ["q_proj", "v_proj"], "target_parameters": None,
    "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_bdlora": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False, "velora_config": None,
}  # fmt: skip


def test_a_plain_adapter_is_taken_as_it_is() -> None:
    assert require_plain(PLAIN, "gs://b/a") == (16, 32.0)
    assert require_plain({"r": 4, "lora_alpha": 6.5}, "gs://b/a") == (4, 6.5)
    assert require_plain(PLAIN | {"init_lora_weights": "eva", "eva_config": {"rho": 1.0}}, "gs://b/a") == (
        16,
        32.0,
    )


@pytest.mark.parametrize("initial", [None, True, False, "gaussian", "orthogonal", "eva"])
def test_where_the_two_halves_began_does_not_matter_while_the_base_stays(initial: object) -> None:
    assert require_plain(PLAIN | {"init_lora_weights": initial}, "gs://b/a") == (16, 32.0)


@pytest.mark.parametrize(
    "other",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 8}},
        {"alpha_pattern": {"q_proj": 8}},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"modules_to_save": ["lm_head"]},
        {"fan_in_fan_out": True},
        *(
            {"init_lora_weights": initial}
            for initial in (
                "pissa",
                "pissa_niter_16",
                "olora",
                "corda",
                "loftq",
                "lora_ga",
                "mica",
                "another",
                3,
                ["pissa"],
            )
        ),
        {"alora_invocation_tokens": [151644, 77091]},
        {"layer_replication": [[0, 4], [2, 5]]},
        {"trainable_token_indices": [5, 6]},
        {"target_parameters": ["mlp.experts.gate_up_proj"]},
        {"use_qalora": True},
        {"use_bdlora": {"nblocks": 2, "match_strict": True}},
        {"arrow_config": {"top_k": 3}},
        {"kasa_config": {"beta": 1e-4, "gamma": 1e-3}},
        {"monteclora_config": {"num_samples": 8}},
        {"velora_config": {"num_groups": 64}},
        {"peft_type": "LOHA"},
    ],
    ids=lambda other: str(other).replace(" ", ""),
)
def test_another_kind_of_adapter_is_refused_by_the_setting_that_makes_it_one(other: dict[str, Any]) -> None:
    with pytest.raises(StageError) as error:
        require_plain(PLAIN | other, "gs://b/a")
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_REQUEST, "AdapterUnsupported")
    assert error.value.where == f"gs://b/a/adapter_config.json: {next(iter(other))}"


@pytest.mark.parametrize("broken", [{"r": 0}, {"lora_alpha": "many"}, {"lora_alpha": float("nan")}])
def test_a_rank_or_alpha_that_is_none_is_no_configuration(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"r 0|many|nan"):
        require_plain(PLAIN | broken, "gs://b/a")
