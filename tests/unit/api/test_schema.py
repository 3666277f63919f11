"""The schemas are structural, closed, bounded and described, whatever is added to the models."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.wording import FORMS, form
from tools.crd import job_crd, profile_crd, root_schema
from tools.structural_schema import UnsupportedSchemaError, structural_schema

type Schema = dict[str, Any]

CRDS = pytest.mark.parametrize("crd", [job_crd(), profile_crd()], ids=["FineTuneJob", "FineTuneProfile"])

#: What apiextensions.k8s.io/v1 knows of JSON Schema, as far as we use it.
KNOWN = {
    "additionalProperties",
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
}


def places(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from places(field, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if below in schema:
            yield from places(schema[below], f"{path}[]")


@CRDS
def test_schemas_are_structural(crd: dict[str, Any]) -> None:
    for path, schema in places(root_schema(crd)):
        assert schema.keys() <= KNOWN, path
        assert isinstance(schema["type"], str), path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert set(schema.get("required", ())) <= schema.get("properties", {}).keys(), path
        assert "items" in schema or schema["type"] != "array", path
        keys = schema.get("x-kubernetes-list-map-keys", ())
        assert set(keys) <= set(schema.get("items", {}).get("required", ())), path


@CRDS
def test_every_string_list_map_and_number_has_a_bound(crd: dict[str, Any]) -> None:
    for path, schema in places(root_schema(crd)):
        match schema["type"]:
            case "string" if "enum" not in schema and schema.get("format") not in ("date", "date-time"):
                assert "maxLength" in schema or path in (".apiVersion", ".kind"), path
            case "array":
                assert "maxItems" in schema, path
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, path
            case "integer":
                assert {"minimum", "maximum", "format"} <= schema.keys(), path


@CRDS
def test_every_field_is_described(crd: dict[str, Any]) -> None:
    for path, schema in places(root_schema(crd)):
        for name, field in schema.get("properties", {}).items():
            if not path.startswith(".metadata") and name != "metadata":
                text = field.get("description", "")
                assert text.endswith((".", "…")), f"{path}.{name}: {text!r}"
                assert "\n" not in text.partition("\nPossible values:\n")[0]


def test_defaults_stand_only_where_a_profile_has_no_say() -> None:
    found = {
        path: schema["default"]
        for crd in (job_crd(), profile_crd())
        for path, schema in places(root_schema(crd))
        if "default" in schema
    }
    switches = {".spec.suspend": False, ".spec.cancel": False, ".spec.planOnly": False}
    assert found == {**switches, ".status": {"observedGeneration": -1}}


@CRDS
def test_rules_say_what_to_do(crd: dict[str, Any]) -> None:
    for path, schema in places(root_schema(crd)):
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            assert "\n" not in rule["message"] + rule["rule"], path


def test_identity_fields_are_immutable() -> None:
    spec = root_schema(job_crd())["properties"]["spec"]
    rules = [rule["rule"] for rule in spec["x-kubernetes-validations"]]
    for name in ("profileRef", "resumeFrom", "model", "datasets", "method", "hyperparameters"):
        assert (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            in rules
        )


def test_columns_people_look_for() -> None:
    columns = job_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert narrow == ["Phase", "Stage", "Step", "Loss", "ETA", "Attempts", "Age"]
    assert wide == ["Model", "TPU", "Cost", "Gate", "Curve"]


class Color(StrEnum):
    """A color."""

    RED = "Red"
    """The color
    of blood."""
    BLUE = "Blue"


class Colored(BaseModel):
    one: Color = Field(description="One color.")
    several: Annotated[tuple[Color, ...], Field(description="A few.", max_length=2)]


def test_the_docstrings_below_an_enums_members_become_part_of_the_fields_description() -> None:
    one, several = structural_schema(Colored)["properties"].values()
    assert one["description"] == "One color.\nPossible values:\n- Red: The color of blood."
    assert several["description"] == "A few.\nPossible values:\n- Red: The color of blood."
    assert several["items"] == {"type": "string", "enum": ["Red", "Blue"]}


class TwoTypes(BaseModel):
    both: int | str


class OpenMap(BaseModel):
    labels: dict[str, str]


class Anything(BaseModel):
    value: Any


class Multiples(BaseModel):
    value: Annotated[int, Field(multiple_of=2)]


@pytest.mark.parametrize("model", [TwoTypes, OpenMap, Anything, Multiples])
def test_what_a_structural_schema_cannot_say_is_refused_with_its_place(model: type[BaseModel]) -> None:
    (name,) = model.model_fields
    with pytest.raises(UnsupportedSchemaError, match=rf"{model.__name__}\.{name}"):
        structural_schema(model)


@CRDS
def test_every_pattern_of_a_spec_is_described_in_words(crd: Schema) -> None:
    found = set(_patterns(root_schema(crd)["properties"]["spec"]))
    assert found
    assert found - set(FORMS) == set()
    assert not [pattern for pattern in found if pattern in form(pattern)]


def _patterns(value: Any) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "pattern" and isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            yield from _patterns(item)


def test_a_copy_with_a_name_that_is_not_a_field_is_refused() -> None:
    status = FineTuneJobStatus(observed_generation=1)
    assert status.model_copy(update={"observed_generation": 2}).observed_generation == 2
    with pytest.raises(TypeError, match="FineTuneJobStatus has no field observedGeneration"):
        status.model_copy(update={"observedGeneration": 2})
