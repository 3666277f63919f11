"""Sizes of published models by repository, so that they are known without the model's config.json.

``published_models.json`` is generated: ``tests/trainer/test_published_models.py`` derives it from published config.json
files and from MaxText.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from finetune_operator.planning.estimate.model_shape import ModelShape


def published_model(repository: str) -> ModelShape | None:
    """Returns the sizes of a repository of the Hugging Face Hub; None if the table lacks it.

    A revision with other sizes is not considered: Preflight reads the file itself.
    """
    config = _table().get(repository.lower())
    return None if config is None else ModelShape.of(config)


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = files(__package__).joinpath("published_models.json").read_text(encoding="utf-8")
    return {name.lower(): config for name, config in json.loads(text).items()}
