"""Sizes from config.json: those of published models as the trainer computes them, and files that have none."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finetune_contract import LoraSpec
from finetune_operator.planning.estimate.model_shape import ModelShape, UnknownModelShape

TRAINER = Path(__file__).parents[2] / "trainer"
PUBLISHED = json.loads((TRAINER / "published.json").read_text())
#: Written by the trainer (tests/trainer/test_sizes.py).
SIZES = json.loads((TRAINER / "golden" / "model_sizes.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_models_are_the_trainers(name: str) -> None:
    shape = ModelShape.of(PUBLISHED[name]["config"])
    found = shape.sizes().model_dump(exclude={"weights_bytes"})
    assert {"parameters": shape.parameters, **found, "matrices": shape.matrices} == SIZES[name]


def test_weights_have_the_bytes_of_their_type_where_it_is_known() -> None:
    llama = PUBLISHED["Llama-3.2-1B-Instruct"]["config"]
    assert ModelShape.of(llama).weights_bytes == 2 * SIZES["Llama-3.2-1B-Instruct"]["parameters"]
    for other in ({"torch_dtype": "float8"}, {"torch_dtype": None}, {"torch_dtype": ["float32"]}):
        assert ModelShape.of(llama | other).dtype_bytes is None
    vision = PUBLISHED["gemma-3-4b-it"]["config"]
    assert ModelShape.of(vision | {"torch_dtype": "bfloat16"}).dtype_bytes is None


def test_an_adapter_of_some_modules_is_narrower() -> None:
    shape = ModelShape.of(PUBLISHED["Qwen3-0.6B"]["config"])
    one = LoraSpec(rank=1, alpha=1, target_modules=["q_proj"])
    assert shape.lora_width(one) == 28 * (1024 + 16 * 128)
    assert shape.lora_width(one) < shape.lora_width(None) == SIZES["Qwen3-0.6B"]["lora_width"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures: ['GPT2LMHeadModel'] is not supported"),
        ({"architectures": None}, "architectures: None is not supported"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not supported"),
        ({"hidden_size": "4096"}, "hidden_size: 4096, expected an integer"),
        ({"hidden_size": 0}, "hidden_size: 0, expected an integer from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000, expected an integer from 1 to 1000"),
        ({"vocab_size": float("nan")}, "vocab_size: nan, expected an integer"),
        ({"vocab_size": 10**400}, "vocab_size: 1000000000"),
        ({"vocab_size": True}, "vocab_size: True, expected an integer"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config: expected an object"),
    ],
)
def test_a_file_without_usable_sizes_is_refused_with_the_key(changed: dict[str, Any], said: str) -> None:
    config = PUBLISHED["Llama-3.2-1B-Instruct"]["config"] | changed
    with pytest.raises(UnknownModelShape) as refused:
        ModelShape.of(config)
    assert said in str(refused.value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    name=st.sampled_from(sorted(PUBLISHED)),
    changed=st.dictionaries(
        st.sampled_from(sorted({key for each in PUBLISHED.values() for key in each["config"]})),
        SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
        max_size=4,
    ),
)
@example(name="DeepSeek-R1-Distill-Qwen-1.5B", changed={"hidden_size": 156872, "num_key_value_heads": 156872})
def test_any_file_has_positive_sizes_or_is_refused(name: str, changed: dict[str, Any]) -> None:
    try:
        shape = ModelShape.of(PUBLISHED[name]["config"] | changed)
    except UnknownModelShape:
        return
    sizes = shape.sizes()
    assert 0 < sizes.largest_piece <= shape.parameters
    assert 0 < sizes.largest_stack <= shape.parameters
    assert 0 < sizes.largest_block <= shape.parameters
