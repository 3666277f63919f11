"""Sizes of published models by name."""

import json
import re
from pathlib import Path

import pytest

from finetune_operator.planning.estimate import published_models
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.estimate.published_models import published_model

TABLE = json.loads(Path(published_models.__file__).with_suffix(".json").read_text())
PUBLISHED = json.loads((Path(__file__).parents[2] / "trainer" / "published.json").read_text())


@pytest.mark.parametrize("name", TABLE)
def test_parameters_are_about_those_that_the_name_says(name: str) -> None:
    """Names round, some up to the half, and some leave out the embeddings."""
    shape = published_model(name.upper())
    assert shape is not None
    said = re.search(r"-(8x)?(\d+(?:\.\d+)?)([bm])(?![a-z])", name.lower())
    if said and not said[1]:
        billions = float(said[2]) / (1000 if said[3] == "m" else 1)
        assert 0.85 < shape.parameters / 1e9 / billions < 1.35


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "gemma-3-4b-it", "Qwen3-30B-A3B", "DeepSeek-V2-Lite"])
def test_a_name_gives_what_the_file_gives(name: str) -> None:
    (repository,) = [each for each in TABLE if each.endswith(f"/{name}")]
    assert published_model(repository) == ModelShape.of(PUBLISHED[name]["config"])


def test_other_names_give_nothing() -> None:
    assert published_model("meta-llama/Llama-9-1T") is None
