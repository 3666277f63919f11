"""Names of places in a spec, as users write them: ``hyperparameters.epochs``."""

from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from finetune_operator.api.parsing import model_within


@cache
def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """Every place that ``model`` knows, objects and leaves, list items without their index
    (``datasets.train.weight``): what a profile's ``limits`` and ``locked`` may name."""
    return frozenset(_field_paths(model, ""))


def _field_paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        yield path
        inner = model_within(field.annotation)
        if inner:
            yield from _field_paths(inner, f"{path}.")
