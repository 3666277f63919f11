"""Descriptions name the defaults that planning fills in."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from finetune_contract import METHODS
from finetune_operator.api import MethodType
from finetune_operator.api.method import member
from finetune_operator.planning import defaults
from tools.crd import job_crd, root_schema

#: Defaults that depend on something else, by the section that they are members of.
DEPENDENT: Mapping[str, Mapping[str, Any]] = {
    "method.lora": defaults.LORA,
    "hyperparameters": {**defaults.HYPERPARAMETERS, "globalBatchSize": defaults.GLOBAL_BATCH},
    "model.huggingFace": defaults.HUB,
    "evaluation.generation": defaults.GENERATION,
    "profiling": defaults.PROFILING,
    "preflight.smoke": defaults.SMOKE,
    "export": defaults.EXPORT,
    **{f"method.{member(method)}": defaults.METHODS[method].options for method in MethodType},
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def as_written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case [single]:
            return str(single)
        case _:
            return str(value)


def description(path: str) -> str:
    schema = root_schema(job_crd())["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    text: str = schema["description"]
    return text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        leaf
        for leaf in (*leaves(defaults.BUILT_IN), *leaves(DEPENDENT))
        if leaf[0] != "method.type"  # a job that names no method has no section that could be described
    ],
)
def test_the_description_names_the_default(path: str, value: Any) -> None:
    assert f"Default: {as_written(value)}" in description(path)


def test_every_method_has_defaults_and_the_learning_rates_are_described() -> None:
    assert list(defaults.METHODS) == list(MethodType) == list(METHODS)
    text = description("hyperparameters.learningRate")
    rates = [
        rate for each in defaults.METHODS.values() for rate in (each.learning_rate, each.lora_learning_rate)
    ]
    assert [float(number) for number in re.findall(r"\de-\d", text)] == rates


def test_no_description_names_a_default_that_planning_does_not_have() -> None:
    """A number or a word after "Default:" stands in planning's tables; what is worked out is a phrase."""
    known = {path for path, _ in (*leaves(defaults.BUILT_IN), *leaves(DEPENDENT))}
    for section in ("method", "hyperparameters"):
        schema = root_schema(job_crd())["properties"]["spec"]["properties"][section]
        for path, text in described(schema, section):
            if re.search(r"Default: \S+\.$", text, re.MULTILINE):
                assert path in known, path


def described(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field["description"]
        yield from described(field, f"{path}.{name}")
