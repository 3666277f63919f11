"""Faults of MaxText, Tunix, Qwix and transformers that the trainer works around, each in a minimal example.

docs/upstream.md lists them. A test fails when a new release behaves differently, which shows that the workaround can be
removed.
"""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
import yaml
from flax import nnx
from maxtext.checkpoint_conversion.utils.param_mapping import HOOK_FNS
from maxtext.common.common_types import ShardMode
from maxtext.configs import pyconfig
from maxtext.trainers.post_train.sft import train_sft
from maxtext.utils import maxtext_utils
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer

from finetune_trainer.engine.maxtext import BASE
from tests.doubles.tiny_models import TinyModelSpec, write_model


def as_released(name: str) -> ModuleType:
    """Returns a fresh copy of the module, without our corrections."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def embeddings() -> ModuleType:
    return as_released("maxtext.layers.embeddings")


def test_maxtext_rounds_a_shared_output_table_to_bfloat16_whatever_the_precision(
    embeddings: ModuleType,
) -> None:
    table = jnp.full((1, 1), 1.001, jnp.float32)
    config = SimpleNamespace(shard_mode=ShardMode.AUTO, parameter_memory_host_offload=False)
    logits = embeddings.attend_on_embedding(jnp.ones((1, 1), jnp.float32), table, jnp.float32, config)
    assert float(logits[0, 0]) == 1.0


def test_maxtext_has_one_rotary_scaling_for_every_llama_3(embeddings: ModuleType) -> None:
    """The factor of Llama 3.2 is 32, but 8 is used."""
    long_wave = jnp.float32(1e-5)
    scaled = embeddings.LLaMARotaryEmbedding._apply_scaling_factor(None, long_wave)
    assert float(scaled) == pytest.approx(1e-5 / 8)


def test_maxtext_divides_the_logits_of_tied_embeddings_by_the_root_of_the_width_unless_configured() -> None:
    assert yaml.safe_load(BASE.read_text())["normalize_embedding_logits"] is True


def test_maxtext_loses_a_step_of_warm_up_to_rounding() -> None:
    """For 15/22 of 22 steps, 14.999 is truncated to 14."""
    config = pyconfig._initialize_pydantic(
        ["", str(BASE)],
        run_name="x",
        skip_jax_distributed_system=True,
        lr_schedule_type="wsd",
        learning_rate=1.0,
        steps=22,
        learning_rate_schedule_steps=22,
        warmup_steps_fraction=15 / 22,
        wsd_decay_steps_fraction=0.0,
    )
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    assert float(schedule(14)) == 1.0


def test_maxtexts_hook_for_mixtrals_attention_takes_the_heads_to_be_as_wide_as_the_model() -> None:
    config = SimpleNamespace(head_dim=8)
    hooks = HOOK_FNS["mixtral-8x7b"](
        {"hidden_size": 8, "num_hidden_layers": 1}, config, True, saving_to_hf=True
    )
    heads_by_width = np.zeros((2, 8, 8))
    found = hooks["params-decoder-layers-self_attention-out-kernel"](heads_by_width, (8, 16))
    assert found.shape == (16, 8)


def test_maxtexts_hook_for_gemma_3_rounds_the_scale_of_embeddings_to_bfloat16() -> None:
    view = {
        "text_config": {"hidden_size": 640, "num_hidden_layers": 1},
        "vision_config": {"num_hidden_layers": 0},
    }
    hooks = HOOK_FNS["gemma3-4b"](view, SimpleNamespace(head_dim=8, vocab_size=1), True, saving_to_hf=False)
    scaled = hooks["params-token_embedder-embedding"](np.ones((1, 640), np.float32), (1, 640))
    assert float(scaled[0, 0]) == 25.25
    assert math.sqrt(640) == pytest.approx(25.298, abs=1e-3)


def test_maxtexts_cache_for_latent_attention_keeps_values_as_wide_as_keys() -> None:
    """DeepSeek's keys have an additional rotary part: 192 numbers, compared with 128 for values."""
    attention = SimpleNamespace(
        max_prefill_predict_length=4, max_target_length=8, num_kv_heads=2, head_dim=24, v_head_dim=16,
        dtype=jnp.float32, kv_quant=None, prefill_cache_axis_order=(1, 2, 0, 3), ar_cache_axis_order=(1, 2, 0, 3),
        config=SimpleNamespace(use_chunked_prefill=False), model_mode="autoregressive", rngs=nnx.Rngs(0),
    )  # fmt: skip
    released = as_released("maxtext.layers.attention_mla").MLA
    assert released.init_kv_caches(attention, (1, 1, 1)).value_head_size == 24


def test_tunix_averages_microbatches_whatever_they_hold() -> None:
    """One microbatch has a gradient of 1 for three tokens, another one of 3 for one token: the mean over four tokens is
    1.5."""
    multi = optax.MultiSteps(optax.sgd(1.0), 2)
    state = multi.init(jnp.zeros(()))
    _, state = multi.update(jnp.asarray(1.0), state)
    update, _ = multi.update(jnp.asarray(3.0), state)
    assert float(update) == -2.0
    trainer = peft_trainer.PeftTrainer(
        nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
        optax.sgd(1.0),
        peft_trainer.TrainingConfig(eval_every_n_steps=1, gradient_accumulation_steps=2),
    )
    assert isinstance(trainer.optimizer.tx, optax.MultiSteps)


def test_the_pinned_tunix_has_no_accumulator_that_the_pinned_maxtext_asks_for() -> None:
    trainer = train_sft.MaxTextPeftTrainer(
        nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
        optax.sgd(1.0),
        peft_trainer.TrainingConfig(eval_every_n_steps=1, gradient_accumulation_steps=2),
    )

    def loss(model: Any, x: jax.Array) -> jax.Array:
        return model(x).sum()

    step = trainer.with_loss_fn(loss).with_gen_model_input_fn(lambda x: x).create_train_step_fn()
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'add'"):
        step(trainer.model, trainer.optimizer, {"x": jnp.ones((1, 1))})


def test_tunixs_orpo_takes_the_odds_of_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tokens have log-probability -1 in one answer and -1.1 in the other.

    By the paper the odds hardly differ, and there is a loss.
    """
    monkeypatch.setattr(
        dpo_trainer, "compute_logps", lambda *_, **__: (jnp.asarray([-10.0]), jnp.asarray([-11.0]))
    )
    example = SimpleNamespace(
        input_ids=None, positions=None, attention_mask=None, logits_to_keep=None, images=None,
        completion_mask=jnp.ones((2, 10)),
    )  # fmt: skip
    _, told = dpo_trainer.dpo_loss_fn(None, example, algorithm="orpo")
    assert float(told["or_loss"]) == pytest.approx(math.log1p(math.exp(-1.0)), abs=1e-4)
    by_token = [-1.0, -1.1]
    odds = (by_token[0] - by_token[1]) - (
        math.log1p(-math.exp(by_token[0])) - math.log1p(-math.exp(by_token[1]))
    )
    assert math.log1p(math.exp(-odds)) == pytest.approx(0.62, abs=0.01)


def test_qwix_gives_an_adapter_the_precision_of_its_base() -> None:
    base = nnx.Linear(4, 4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    provider = qwix.LoraProvider(module_path=".*", rank=2, alpha=2.0)
    adapted = qwix.apply_lora_to_model(base, provider, jnp.ones((1, 4), jnp.bfloat16), rngs=nnx.Rngs(0))
    adapters = jax.tree.leaves(nnx.state(adapted, nnx.LoRAParam))
    assert adapters
    assert {leaf.dtype for leaf in adapters} == {jnp.dtype(jnp.bfloat16)}


def test_maxtexts_qlora_quantizes_the_adapted_modules_alone() -> None:
    lora_utils = as_released("maxtext.utils.lora_utils")
    lora = SimpleNamespace(
        lora_rank=2, lora_alpha=2.0, lora_weight_qtype="nf4", lora_tile_size=16, lora_module_path=".*/query"
    )
    provider = lora_utils._build_lora_provider(SimpleNamespace(lora=lora, model_name="qwen3-0.6b"))
    assert [rule.module_path for rule in provider._rules] == [".*/query"]


def test_transformers_ignores_the_pre_tokenizer_of_tokenizer_json_for_llamas_class(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, LlamaTokenizer

    write_model(tmp_path, TinyModelSpec(family="llama"))
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "LlamaTokenizerFast"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is LlamaTokenizer
    assert loaded.decode(loaded("the capital\nof")["input_ids"]) != "the capital\nof"
