"""docs/walkthrough.md names kinds, fields, conditions, stages, labels and files that exist."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from devcluster.layout import ROOT
from finetune_contract import Progress, RunFolder, Stage, StageRequest, StageResult
from finetune_operator.api import ConditionType, Phase, Reason
from finetune_operator.planning import stored_plan
from finetune_operator.rendering import labels
from tests.walkthrough.blocks import BLOCKS
from tests.walkthrough.page import BLOCK

PAGE = (ROOT / "docs" / "walkthrough.md").read_text()
CAPTURED = {match[1]: (match[2], match[3]) for match in BLOCK.finditer(PAGE)}
YAML = {name: yaml.safe_load(text) for name, (language, text) in CAPTURED.items() if language == "yaml"}
JSON = {name: json.loads(text) for name, (language, text) in CAPTURED.items() if language == "json"}
#: The job, or parts of its status.
JOBS = [
    name for name, value in YAML.items() if value.get("kind") == "FineTuneJob" or set(value) == {"status"}
]
RECORDS = {"request": StageRequest, "progress": Progress, "result": StageResult}
LABELS = {
    labels.JOB_LABEL, labels.UID_LABEL, labels.STAGE_LABEL, labels.ATTEMPT_LABEL, labels.PLAN_ANNOTATION,
    labels.SPEC_ANNOTATION,
}  # fmt: skip


def unknown(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the fields of ``value`` that the JSON schema does not define."""
    options = schemas(schema, root)
    if isinstance(value, list):
        items = [option["items"] for option in options if "items" in option]
        for each in value:
            yield from unknown({"anyOf": items}, each, root, f"{path}[]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            below = [found for option in options if (found := field(option, key)) is not None]
            if below:
                yield from unknown({"anyOf": below}, item, root, f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def schemas(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schema itself, or the alternatives that it consists of."""
    if "$ref" in schema:
        return schemas(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [each for option in alternatives for each in schemas(option, root)] or [schema]


def field(schema: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    found = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
    return found if isinstance(found, Mapping) else None


def conditions() -> list[Mapping[str, Any]]:
    return [each for name in JOBS for each in YAML[name].get("status", {}).get("conditions", ())]


def test_every_captured_block_is_shown_and_filled() -> None:
    assert list(CAPTURED) == list(re.findall(r"<!-- captured: ([\w-]+) -->", PAGE))
    assert sorted(CAPTURED) == sorted(BLOCKS)
    assert [name for name, (_, text) in CAPTURED.items() if not text.strip()] == []


@pytest.mark.parametrize("name", JOBS)
def test_fields_of_the_job_are_in_the_schema_of_its_crd(name: str) -> None:
    (path,) = (ROOT / "crds").glob("finetunejobs.*.yaml")
    schema = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    job = {key: value for key, value in YAML[name].items() if key != "metadata"}
    assert list(unknown(schema, job, schema)) == []


@pytest.mark.parametrize("name", JSON)
def test_fields_of_records_are_in_the_contract(name: str) -> None:
    schema = RECORDS[name.rpartition("-")[2]].model_json_schema()
    assert list(unknown(schema, JSON[name], schema)) == []


def test_an_unknown_field_is_found() -> None:
    schema = StageResult.model_json_schema()
    assert list(unknown(schema, {"stage": "Train", "details": {"stepp": 1}}, schema)) == [".details.stepp"]


def test_kinds_are_those_of_the_objects_that_the_operator_reads_and_writes() -> None:
    kinds = {value["kind"] for value in YAML.values() if "kind" in value}
    assert kinds == {"FineTuneJob", "ConfigMap", "JobSet", "EventList"}


def test_condition_types_reasons_phases_and_stages_exist() -> None:
    assert conditions()
    assert {each["type"] for each in conditions()} <= set(ConditionType)
    events = YAML["events"]["items"]
    assert {each["reason"] for each in [*conditions(), *events]} <= set(Reason)
    for name in JOBS:
        status = YAML[name].get("status", {})
        assert status.get("phase", Phase.PENDING) in set(Phase)
        assert {each["name"] for each in status.get("stages", ())} <= set(Stage)
    assert {record["stage"] for record in JSON.values() if "stage" in record} == set(Stage)


def test_labels_and_annotations_are_those_that_rendering_sets() -> None:
    metadata = [value["metadata"] for value in YAML.values() if "metadata" in value]
    shown = {key for each in metadata for key in (*each.get("labels", ()), *each.get("annotations", ()))}
    assert shown == LABELS


def test_the_stored_plan_has_the_keys_and_the_name_that_planning_gives_it() -> None:
    plan, job = YAML["plan"], YAML["job"]
    assert set(plan["data"]) <= stored_plan._KEYS
    assert plan["metadata"]["name"] == stored_plan.plan_name(job["metadata"]["uid"])
    assert plan["immutable"]


def test_jobsets_have_the_names_of_their_stages() -> None:
    names = [line.split()[0] for line in CAPTURED["jobsets"][1].splitlines()[1:]]
    assert names == [labels.jobset_name("quickstart", stage, 1) for stage in Stage]


def test_paths_of_records_in_the_text_are_in_the_layout() -> None:
    run = RunFolder("")
    results = {run.result(stage.short, 1) for stage in Stage}
    named = {f"/{path}" for path in re.findall(r"`((?:attempts|train|export)/[\w./-]+)`", PAGE)}
    assert results < named
    assert named - results == {
        run.request("prep", 1),
        run.progress,
        run.seal(120),
        f"{run.model}/manifest.json",
    }
