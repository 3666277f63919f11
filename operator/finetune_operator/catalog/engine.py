"""What the pinned MaxText can be told: the keys of its configuration (``engine_keys.txt``).

The file is the sorted list of ``maxtext.configs.types.MaxTextConfig.model_fields``; the trainer's tests hold it to the
engine that the trainer runs.
"""

from functools import cache
from importlib.resources import files


@cache
def engine_keys() -> frozenset[str]:
    """Every top-level key; what stands behind a dot is inside one of them."""
    text = files("finetune_operator.catalog").joinpath("engine_keys.txt").read_text(encoding="utf-8")
    return frozenset(text.split())
