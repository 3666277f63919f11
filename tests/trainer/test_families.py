"""From config.json to MaxText's settings: what is mapped, what is refused, and that defaults are transformers' own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from devcluster.fixtures import tiny_qwen3
from finetune_contract import ExitCode
from finetune_contract.text_model import architectures
from finetune_trainer import families
from finetune_trainer.checkpoints.folder import write_config
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.errors import StageError
from finetune_trainer.families import Llama3Scaling, ModelPlan
from finetune_trainer.families.catalogue import require_family
from finetune_trainer.verification import tiny_model
from tests.doubles.tiny_models import ARCHITECTURES, TinyModelSpec, config_of, write_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

YARN = {
    "rope_type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}


PUBLISHED_CODE = {
    "AutoConfig": "configuration_deepseek.DeepseekV2Config",
    "AutoModel": "modeling_deepseek.DeepseekV2Model",
    "AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM",
}


#: config.json of published models, reduced to the keys that affect the weights or the function.
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


def plan_of(**spec: Any) -> ModelPlan:
    return families.resolve(config_of(TinyModelSpec(**spec)))


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_names_and_shapes_of_every_family_are_those_of_its_weights(family: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family=family, layers=4, shards=2))
    plan = families.read(folder)
    weights = open_weights(folder, plan)
    assert set(weights.text) == set(plan.tensors())
    assert plan.parameters == sum(weights.read(name).size for name in weights.text)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_both_spellings_of_config_json_give_the_same_plan(family: Any) -> None:
    assert plan_of(family=family, spelling="v4") == plan_of(family=family, spelling="v5")


@pytest.mark.parametrize(
    "family", [n for n in ARCHITECTURES if n not in ("gemma3-multimodal", "qwen3-moe", "deepseek2")]
)
def test_an_empty_config_means_what_transformers_takes_it_for(family: str) -> None:
    architecture, model_type = ARCHITECTURES[family]
    silent = families.resolve({"architectures": [architecture]})
    told = AutoConfig.for_model(model_type).to_dict() | {"architectures": [architecture]}
    told["rope_parameters"] = told["rope_parameters"] or None
    spoken = families.resolve(json.loads(json.dumps(told)))
    assert silent == spoken


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"family": "qwen3"}, {"logits_via_embedding": True, "normalize_embedding_logits": False, "use_qk_norm": True}),
        ({"family": "qwen3", "tied": False}, {"logits_via_embedding": False}),
        ({"family": "llama", "tied": True}, {"logits_via_embedding": True, "normalize_embedding_logits": False}),
        ({"family": "llama"},
         {"rope_use_scale": False, "rope_max_timescale": 500_000, "normalization_layer_epsilon": 1e-5}),
        ({"family": "llama", "config": {"rope_parameters": LLAMA3}}, {"rope_use_scale": True}),
        ({"family": "gemma2", "layers": 6}, {"base_num_decoder_layers": 3, "attn_logits_soft_cap": 50.0}),
        ({"family": "gemma2", "config": {"attn_logit_softcapping": None}}, {"attn_logits_soft_cap": 50.0}),
        ({"family": "gemma3", "layers": 7}, {"base_num_decoder_layers": 7, "local_rope_max_timescale": 10_000}),
        ({"family": "gemma3", "spelling": "v4", "config": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}},
         {"rope_linear_scaling_factor": 8.0, "rope_max_timescale": 1_000_000}),
        ({"family": "qwen3", "vocab": 509, "head_dim": 24, "kv_heads": 1},
         {"vocab_size": 509, "head_dim": 24, "base_num_kv_heads": 1}),
        ({"family": "deepseek2"}, {"rope_type": "yarn", "rope_factor": 1, "first_num_dense_layers": 1, "shared_experts": 2}),
        ({"family": "deepseek2", "spelling": "v4", "config": {"rope_scaling": YARN}},
         {"rope_factor": 40, "mscale": 0.707, "original_max_position_embeddings": 64}),
    ],
)  # fmt: skip
def test_settings_come_from_the_file(spec: dict[str, Any], expected: dict[str, object]) -> None:
    settings = plan_of(**spec).settings()
    assert {key: settings[key] for key in expected} == expected


@pytest.mark.parametrize(
    "stated",
    [
        {"attention_bias": True},
        {"attention_bias": False},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
        {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0},
        {"use_mrope": False},
    ],
)
def test_a_qwen2_has_its_biases_and_no_window_whatever_unread_keys_say(stated: dict[str, object]) -> None:
    """transformers always builds the biases, and uses windows only in layers beyond ``max_window_layers``."""
    plan = plan_of(family="qwen2", config=stated)
    assert plan == plan_of(family="qwen2")
    assert plan.tensors()["model.layers.1.self_attn.k_proj.bias"] == (32,)
    assert plan.settings()["attention_bias"] is True


def test_a_null_soft_cap_in_the_file_switches_it_off() -> None:
    config = config_of(TinyModelSpec(family="gemma2")) | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }
    settings = families.resolve(config).settings()
    assert (settings["attn_logits_soft_cap"], settings["final_logits_soft_cap"]) == (0.0, 0.0)


def test_llama3_scaling_keeps_its_own_factors() -> None:
    plan = plan_of(family="llama", config={"rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}})
    assert plan.llama3_scaling == Llama3Scaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"family": "llama", "config": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 512}}},
        {"family": "llama", "config": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}},
        {"family": "gemma2", "config": {"sliding_window": 8}},
        {"family": "gemma3-multimodal", "layers": 6, "config": {"sliding_window": 8}},
    ],
    ids=["llama3 scaling", "linear scaling", "sliding window", "text part of an image model"],
)  # fmt: skip
def test_the_limit_of_a_model_is_its_max_position_embeddings_whatever_else_it_says(
    spec: dict[str, Any],
) -> None:
    """As in transformers and serving engines: the value already includes scaling, and a sliding window does not limit
    it."""
    assert plan_of(context=4096, **spec).context_length == 4096


def test_head_dim_of_llama_follows_from_width_and_heads() -> None:
    assert plan_of(family="llama", hidden=96, heads=4, config={"head_dim": None}).head_dim == 24


@pytest.mark.parametrize(
    ("scalar", "name"), [(16, "gemma3-4b"), (24, "gemma3-27b")], ids=["head_dim", "width over heads"]
)
def test_query_scale_of_gemma3_selects_the_catalogue_entry(scalar: int, name: str) -> None:
    spec = TinyModelSpec(
        family="gemma3", hidden=96, heads=4, head_dim=16, config={"query_pre_attn_scalar": scalar}
    )
    assert families.resolve(config_of(spec)).model_name == name


@pytest.mark.parametrize(
    ("family", "change", "field"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type"),
        ("llama", {"rope_parameters": {"rope_theta": 10_000.5}}, "rope_theta"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ("llama", {"rope_parameters": {**LLAMA3, "factor": None}}, "factor"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"vocab_size": "32000"}, "vocab_size"),
        ("llama", {"vocab_size": 10**40}, "vocab_size"),
        ("gemma2", {"num_hidden_layers": 4.5e60}, "num_hidden_layers"),
        ("qwen3", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("mixtral", {"num_local_experts": 10**9}, "num_local_experts"),
        ("llama", {"head_dim": 15}, "head_dim"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "type"),
        ("qwen2", {"mlp_bias": True}, "mlp_bias"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ("qwen3", {"rope_parameters": LLAMA3}, "rope_type"),
        ("qwen3", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ("mixtral", {"sliding_window": 4096}, "sliding_window"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ("mixtral", {"num_local_experts": 1}, "num_local_experts"),
        ("mixtral", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}, "rope_type"),
        ("qwen3-moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3-moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ("qwen3-moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("deepseek2", {"auto_map": {**PUBLISHED_CODE, "AutoModel": "mine.DeepseekV2Model"}}, "auto_map"),
        ("deepseek2", {"auto_map": "modeling_deepseek.DeepseekV2Model"}, "auto_map"),
        ("qwen3", {"auto_map": PUBLISHED_CODE}, "auto_map"),
        ("deepseek2", {"q_lora_rank": 32}, "q_lora_rank"),
        ("deepseek2", {"topk_method": "group_limited_greedy"}, "topk_method"),
        ("deepseek2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek2", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("deepseek2", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek2", {"first_k_dense_replace": 0}, "first_k_dense_replace"),
        ("deepseek2", {"first_k_dense_replace": 2}, "first_k_dense_replace"),
        ("deepseek2", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("deepseek2", {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ("deepseek2", {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ("deepseek2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "type"),
        ("deepseek2", {"rope_scaling": {**YARN, "mscale": 1.0}}, "mscale"),
        ("deepseek2", {"rope_scaling": {**YARN, "factor": 2.5}}, "factor"),
        ("deepseek2", {"rope_scaling": {**YARN, "attention_factor": 1.0}}, "attention_factor"),
        ("deepseek2", {"rope_scaling": {**YARN, "original_max_position_embeddings": 2048}},
         "original_max_position_embeddings"),
        ("gemma2", {"num_hidden_layers": 3}, "num_hidden_layers"),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("gemma2", {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ("gemma2", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"sliding_window_pattern": 4}, "sliding_window_pattern"),
        ("gemma3", {"query_pre_attn_scalar": 100}, "query_pre_attn_scalar"),
        ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
        ("gemma3", {"final_logit_softcapping": -1}, "final_logit_softcapping"),
    ],
)  # fmt: skip
def test_what_would_change_the_function_is_refused_by_name(
    family: Any, change: dict[str, object], field: str
) -> None:
    config = config_of(TinyModelSpec(family=family)) | change
    with pytest.raises(StageError) as caught:
        families.resolve(config, where="gs://b/m/config.json")
    error = caught.value
    assert error.code is ExitCode.BAD_REQUEST
    assert error.where.startswith("gs://b/m/config.json: ")
    assert error.where.endswith(field)
    assert error.actual
    assert error.expected
    assert error.fix


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_are_read_as_they_were_published(name: str) -> None:
    """The number of weights is the published one (for image models: that of the text model)."""
    published = PUBLISHED[name]
    plan = families.resolve(published["config"])
    assert round(plan.parameters / 1e9, 3) == published["billions"]
    small = families.resolve(tiny_model.shrink_config(published["config"], plan))
    assert (small.family, small.vocab_size) == (plan.family, plan.vocab_size)
    assert small.parameters < 2e7


def test_deepseeks_own_code_is_named_in_its_models_and_not_needed(tmp_path: Path) -> None:
    """The published config.json refers to that code, but transformers and vLLM have the architecture built in."""
    config = config_of(TinyModelSpec(family="deepseek2"))
    assert families.resolve({**config, "auto_map": PUBLISHED_CODE}) == families.resolve(config)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/config.json").write_text(json.dumps({**config, "auto_map": PUBLISHED_CODE}))
    write_config(tmp_path, tmp_path / "source", "BF16")
    assert json.loads((tmp_path / "config.json").read_text()) == {**config, "dtype": "bfloat16"}


@pytest.mark.parametrize("architectures", [None, [], ["Qwen2MoeForCausalLM"], "LlamaForCausalLM", ["A", "B"]])
def test_another_architecture_is_refused_with_the_supported_ones(architectures: object) -> None:
    with pytest.raises(StageError) as caught:
        families.resolve({"architectures": architectures})
    assert caught.value.reason == "UnsupportedArchitecture"
    assert all(name in caught.value.expected for name in families.SUPPORTED)


def test_the_contracts_table_has_every_supported_architecture_and_no_other() -> None:
    assert set(architectures()) == set(families.SUPPORTED)


def test_keys_that_transformers_does_not_read_change_nothing() -> None:
    config = config_of(TinyModelSpec(family="llama"))
    assert families.resolve(config | {"unsloth_version": "1", "is_llama_config": True}) == families.resolve(
        config
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "NotAModelFolder"),
        ("{", "InvalidModelConfig"),
        ("[]", "InvalidModelConfig"),
        *(
            ('{"a":' + "[" * depth + "]" * depth + "}", "InvalidModelConfig")
            for depth in (50, 2_000, 200_000)
        ),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "InvalidModelConfig"),
    ],
    ids=["none", "no JSON", "no object", "50 levels", "2,000 levels", "200,000 levels", "200,000 objects"],
)
def test_a_folder_without_a_usable_config_is_named(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StageError) as caught:
        families.read(tmp_path, where="gs://models/mine")
    assert caught.value.reason == reason
    assert "gs://models/mine/config.json" in str(caught.value)


def test_lora_modules_are_chosen_by_hugging_face_names() -> None:
    plan = plan_of(family="gemma2")
    assert (
        plan.lora_module_path(["q_proj", "up_proj"])
        == "decoder/.*(self_attention[a-z_]*/(query)|mlp[a-z_]*/(wi_1))"
    )
    assert plan.lora_module_path(None).count("|") == 6
    with pytest.raises(StageError, match=r"found lm_head, expected some of q_proj"):
        plan.lora_module_path(["q_proj", "lm_head"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    family=st.sampled_from([name for name in ARCHITECTURES if name != "gemma3-multimodal"]),
    key=st.sampled_from(sorted({key for name in ARCHITECTURES for key in config_of(TinyModelSpec(family=name))}  # type: ignore[arg-type]
                               | {"rope_scaling", "layer_types", "sliding_window_pattern", "quantization_config"})),
    value=_JSON,
)  # fmt: skip
def test_any_value_anywhere_gives_a_plan_or_a_named_refusal(family: Any, key: str, value: object) -> None:
    plan, refusal = None, None
    try:
        plan = families.resolve(config_of(TinyModelSpec(family=family)) | {key: value})
    except StageError as error:
        refusal = error
    if plan is not None:
        assert plan.parameters > 0
        assert all("=" in argument for argument in plan.arguments())
    else:
        assert refusal is not None
        assert refusal.code is ExitCode.BAD_REQUEST
        assert refusal.where


@given(
    # DeepSeek 2's heads have sizes of another form
    family=st.sampled_from(
        [name for name in ARCHITECTURES if name not in ("gemma3-multimodal", "deepseek2")]
    ),
    layers=st.integers(1, 20).map(lambda n: 2 * n),
    groups=st.integers(1, 4),
    kv_heads=st.integers(1, 4),
    half=st.integers(1, 64),
    vocab=st.integers(300, 2000),
)
def test_any_size_is_carried_over(
    family: Any, layers: int, groups: int, kv_heads: int, half: int, vocab: int
) -> None:
    plan = plan_of(
        family=family,
        layers=layers,
        heads=groups * kv_heads,
        kv_heads=kv_heads,
        head_dim=2 * half,
        vocab=vocab,
    )
    settings = plan.settings()
    assert settings["base_num_query_heads"] == groups * kv_heads
    assert settings["head_dim"] == 2 * half
    assert settings["vocab_size"] == vocab
    assert settings["base_num_decoder_layers"] == (layers // 2 if family == "gemma2" else layers)


def test_a_mistral_with_a_sliding_window_is_tuned_within_it() -> None:
    assert plan_of(family="mistral").context_length == 2048
    assert plan_of(family="mistral", config={"sliding_window": 64}).context_length == 64
    assert plan_of(family="mistral", config={"sliding_window": 64}).context_field == "sliding_window"
    assert plan_of(family="mistral", config={"sliding_window": 8192}).context_length == 2048
    assert (
        plan_of(family="mistral", config={"sliding_window": 8192}).context_field == "max_position_embeddings"
    )


def test_of_a_mixture_of_experts_lora_adapts_attention() -> None:
    plan = plan_of(family="mixtral")
    assert plan.lora_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert "wo" not in plan.lora_module_path()
    with pytest.raises(StageError, match="mixture of experts"):
        plan.lora_module_path(["q_proj", "down_proj"])


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_what_the_user_says_the_model_is_must_be_of_its_family(family: str) -> None:
    plan = plan_of(family=family)
    require_family(plan.model_name, plan)
    for stated, told in (
        ("gpt-oss-20b", "belongs to another family"),
        ("no-such-model", "MaxText does not have this model"),
    ):
        with pytest.raises(StageError) as caught:
            require_family(stated, plan)
        assert (caught.value.reason, caught.value.code) == ("MaxTextModelMismatch", ExitCode.BAD_REQUEST)
        assert told in caught.value.what


def test_the_demos_model_is_the_one_of_the_tests_defaults(tmp_path: Path) -> None:
    subprocess.run([sys.executable, tiny_qwen3.__file__, tmp_path / "demo"], check=True)
    write_model(tmp_path / "tests", TinyModelSpec())
    written = {path.name: path.read_bytes() for path in (tmp_path / "tests").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "demo").iterdir()} == written
