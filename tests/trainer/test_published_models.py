"""The table of published models, by which ``finetune plan`` knows a model's sizes without its config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext.checkpoint_conversion.utils.hf_model_configs import HF_MODEL_CONFIGS
from maxtext.utils.globals import HF_IDS

from finetune_trainer import families
from tests.snapshots import check

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "operator" / "finetune_operator" / "planning" / "estimate" / "published_models.json"
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
#: Repositories with the config.json of that name in published.json, apart from settings that change no size.
REPOSITORIES: Mapping[str, tuple[str, ...]] = {
    "Llama-3.2-1B-Instruct": ("meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
    "TinyLlama": ("TinyLlama/TinyLlama-1.1B-Chat-v1.0",),
    "Llama-2-7b": ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"),
    "Mistral-7B-v0.1": ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"),
    "Mistral-7B-v0.3": ("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    "Mistral-Nemo": ("mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
    "Mixtral-8x7B-v0.1": ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "Qwen3-0.6B": ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-Base"),
    "Qwen3-4B-2507": (
        "Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Base", "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B-Thinking-2507",
    ),
    "Qwen3-30B-A3B": ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
    "gemma-2-2b-it": ("google/gemma-2-2b-it", "google/gemma-2-2b"),
    "gemma-2-27b": ("google/gemma-2-27b", "google/gemma-2-27b-it"),
    "gemma-3-1b-it": ("google/gemma-3-1b-it", "google/gemma-3-1b-pt"),
    "gemma-3-4b-it": ("google/gemma-3-4b-it", "google/gemma-3-4b-pt"),
    "gemma-3-27b-it": ("google/gemma-3-27b-it", "google/gemma-3-27b-pt"),
    "SmolLM2-135M-Instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M"),
    "DeepSeek-V2-Lite": ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite-Chat"),
    "Qwen2.5-0.5B-Instruct": ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B"),
    "Qwen2.5-Math-1.5B": ("Qwen/Qwen2.5-Math-1.5B",),
    "Qwen2.5-7B-Instruct": ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
    "Qwen2.5-72B-Instruct": ("Qwen/Qwen2.5-72B-Instruct",),
    "QwQ-32B": ("Qwen/QwQ-32B",),
    "DeepSeek-R1-Distill-Qwen-1.5B": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",),
    "gemma-3-270m": ("google/gemma-3-270m", "google/gemma-3-270m-it"),
}  # fmt: skip
#: Repositories with the sizes of another one.
SAME_SIZES: Mapping[str, tuple[str, ...]] = {
    "meta-llama/Llama-3.1-8B": ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"),
    "meta-llama/Llama-3.1-70B": ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
    "google/gemma-2-9b": ("google/gemma-2-9b-it",),
    "google/gemma-3-12b-it": ("google/gemma-3-12b-pt",),
    "Qwen/Qwen3-8B": ("Qwen/Qwen3-8B-Base",),
    "Qwen/Qwen3-14B": ("Qwen/Qwen3-14B-Base",),
    "Qwen/Qwen2.5-1.5B-Instruct": ("Qwen/Qwen2.5-1.5B",),
}
#: What MaxText names without a repository, and names with other sizes.
MORE_IDS = {"qwen3-1.7b": "Qwen/Qwen3-1.7B", "qwen3-1.7b-base": "Qwen/Qwen3-1.7B-Base"}
WRONG_IDS = {"qwen3-480b-a35b"}
#: Architectures of transformers' configurations in MaxText, which mostly do not name them.
ARCHITECTURES = {
    "LlamaConfig": "LlamaForCausalLM",
    "MistralConfig": "MistralForCausalLM",
    "MixtralConfig": "MixtralForCausalLM",
    "Qwen2Config": "Qwen2ForCausalLM",
    "Qwen3Config": "Qwen3ForCausalLM",
    "Qwen3MoeConfig": "Qwen3MoeForCausalLM",
    "DeepseekV2Config": "DeepseekV2ForCausalLM",
    "Gemma2Config": "Gemma2ForCausalLM",
    "Gemma3Config": "Gemma3ForConditionalGeneration",
}
#: What the sizes follow from (planning/estimate/model_shape.py).
KEYS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "tie_word_embeddings", "dtype", "torch_dtype", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
    "first_k_dense_replace", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
#: Rows that MaxText keeps of the embedding of a Gemma 3 with images. The published file names no number, and
#: transformers' default is larger.
GEMMA3_TOKENS = 262_144


def test_the_table_contains_the_published_sizes() -> None:
    """``UPDATE_SNAPSHOTS=1`` writes the table, which is part of the ``finetune`` command."""
    table = dict(of_maxtext())
    for name, repositories in REPOSITORIES.items():
        sizes = reduced(PUBLISHED[name]["config"])
        for repository in repositories:
            other = flat(table.get(repository, {}))
            assert {key: value for key, value in flat(sizes).items() if other.get(key, value) != value} == {}
            table[repository] = sizes
    for name, repositories in SAME_SIZES.items():
        table |= dict.fromkeys(repositories, table[name])
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table, key=str.lower)]
    check(TABLE, "{\n" + ",\n".join(lines) + "\n}\n")


def of_maxtext() -> dict[str, dict[str, Any]]:
    """Returns the sizes of the models whose configuration MaxText contains, by repository."""
    found = {}
    for name, repository in (HF_IDS | MORE_IDS).items():
        config = None if name in WRONG_IDS else HF_MODEL_CONFIGS.get(name)
        architecture = ARCHITECTURES.get(type(config).__name__)
        if config is not None and architecture in families.SUPPORTED:
            found[repository] = reduced({**config.to_dict(), "architectures": [architecture]})
    return found


def reduced(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config.json that the sizes follow from."""
    found: dict[str, Any] = {"architectures": config["architectures"]}
    found |= {key: config[key] for key in KEYS if config.get(key) is not None}
    if "text_config" in config:
        text = config["text_config"]
        found["text_config"] = {key: text[key] for key in KEYS if text.get(key) is not None}
        for key in set(found) & set(KEYS):
            del found[key]
        if text.get("vocab_size") == GEMMA3_TOKENS:
            del found["text_config"]["vocab_size"]
    return found


def flat(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all sizes of an image-and-text model's text part, or of a text model."""
    return {key: value for key, value in sizes.items() if key != "text_config"} | sizes.get("text_config", {})
