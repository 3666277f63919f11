"""The contract's versions, read one against the other."""

from typing import Any

import jsonschema
import pytest

from finetune_contract import ContractVersion, StageRequest
from finetune_contract.versions import CONTRACT_VERSION, FIRST_VERSION
from tests.unit.contract import golden, samples, schemas

VERSIONS = golden.versions()
ROOTS = samples.roots()
COMMAND = "python -m tests.unit.contract.golden writes the files of a new version; see docs/development.md"

RECORDS = [
    pytest.param(version, *name.split("/")[1:], document, id=f"{version}-{name.split('/')[2]}")
    for version in VERSIONS
    for name, document in golden.read(version).items()
    if name.startswith("records/")
]


def test_the_files_of_the_current_version_are_what_the_code_says() -> None:
    assert VERSIONS[-1] == CONTRACT_VERSION, COMMAND
    committed, now = golden.read(CONTRACT_VERSION), golden.current()
    assert sorted(committed) == sorted(now), COMMAND
    different = [name for name in now if committed[name] != now[name]]
    assert different == [], f"raise CONTRACT_VERSION; {COMMAND}"


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_nothing_of_an_earlier_version_is_read_differently_now(version: ContractVersion) -> None:
    now = golden.current()
    for name, before in golden.read(version).items():
        if name.startswith("schemas/"):
            assert schemas.breaking(before, now[name], version) == [], name
        elif not name.startswith("records/"):
            assert {key: now[name].get(key) for key in before} == before, name


@pytest.mark.parametrize(("version", "root", "name", "document"), RECORDS)
def test_records_of_every_version_are_read_and_nothing_of_them_is_lost(
    version: ContractVersion, root: str, name: str, document: dict[str, Any]
) -> None:
    read = ROOTS[root].model_validate(document)
    assert read.model_dump(mode="json", exclude_defaults=True) == document


@pytest.mark.parametrize(("version", "root", "name", "document"), RECORDS)
def test_what_a_newer_writer_adds_is_ignored_at_every_level(
    version: ContractVersion, root: str, name: str, document: dict[str, Any]
) -> None:
    more = samples.with_unknown_keys(ROOTS[root], document)
    assert more != document
    assert ROOTS[root].model_validate(more) == ROOTS[root].model_validate(document)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_what_is_written_now_is_understood_by_readers_of_every_version(version: ContractVersion) -> None:
    """Of requests only those that say so: the others are refused by the operator."""
    checked = set()
    for name, (record, document) in samples.samples().items():
        if (
            record is StageRequest
            and ContractVersion.parse(document.get("requires", str(FIRST_VERSION))) > version
        ):
            continue
        schema = golden.read(version).get(f"schemas/{record.__name__}")
        if schema is not None:
            jsonschema.validate(document, schema)
            checked.add(name)
    assert {"request", "result-train", "progress"} <= checked


def test_the_samples_set_every_field_of_every_record() -> None:
    for name, root in ROOTS.items():
        schema = schemas.schema_of(root)
        documents = [document for record, document in samples.samples().values() if record is root]
        seen = {each for document in documents for each in schemas.fields_in(document, schema)}
        fields = {
            (record, field)
            for record, each in schema["$defs"].items()
            for field in each.get("properties", ())
        }
        # What holds for all records of this version, and is left out.
        fields -= {("StageRequest", "requires"), ("StageResult", "supports")}
        assert sorted(fields - seen) == [], f"{name}: add a record to tests/unit/contract/samples.py"


# --- what counts as a change that a minor version may make


def properties(**fields: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/R", "$defs": {"R": {"properties": fields, "required": ["a"]}}}


INTEGER, CHOICE = {"type": "integer"}, {"enum": ["A", "B"], "type": "string", "default": "A"}
BEFORE = properties(a=INTEGER, b=CHOICE)


@pytest.mark.parametrize(
    ("after", "wrong"),
    [
        (properties(a=INTEGER), ["R.b is gone"]),
        (properties(a={"type": "string"}, b=CHOICE), ["R.a has changed"]),
        (properties(a={**INTEGER, "maximum": 9}, b=CHOICE), ["R.a has changed"]),
        (properties(a=INTEGER, b={**CHOICE, "default": "B"}), ["R.b has changed"]),
        (properties(a=INTEGER, b={**CHOICE, "enum": ["A", "B", "C"]}), ["R.b has changed"]),
        (properties(a=INTEGER, b={**CHOICE, "enum": ["A"]}), ["R.b has changed"]),
        (
            properties(a=INTEGER, b={**CHOICE, "enum": ["A", "B", "C"], "x-values-since": {"C": "2.0"}}),
            ["R.b has changed"],
        ),
        (properties(a=INTEGER, b={**CHOICE, "enum": ["A", "B", "C"], "x-values-since": {"C": "2.1"}}), []),
        (properties(a=INTEGER, b=CHOICE, c={**INTEGER, "default": 1}), ["R.c is new and is not annotated"]),
        (properties(a=INTEGER, b=CHOICE, c={**INTEGER, "default": 1, "x-since": "2.0"}), ["R.c is new and is not"]),
        (properties(a=INTEGER, b=CHOICE, c={**INTEGER, "default": 1, "x-since": "2.1"}), []),
        (
            {"$defs": {"R": {"properties": BEFORE["$defs"]["R"]["properties"], "required": []}}},
            ["R.a is required in one version only"],
        ),
        (
            {
                "$defs": {
                    "R": {
                        "properties": {**BEFORE["$defs"]["R"]["properties"], "c": {"x-since": "2.1"}},
                        "required": ["a", "c"],
                    }
                }
            },
            ["R.c is new and has no default"],
        ),
        ({"$defs": {}}, ["R is gone"]),
    ],
)  # fmt: skip
def test_a_minor_version_only_adds_what_says_since_when(after: dict[str, Any], wrong: list[str]) -> None:
    found = schemas.breaking(BEFORE, after, ContractVersion(2, 0))
    assert len(found) == len(wrong)
    assert all(said.startswith(expected) for said, expected in zip(found, wrong, strict=True))


def findings(*kinds: str, **more: Any) -> dict[str, Any]:
    places = {kind: f"#/$defs/{kind}Outcome" for kind in kinds}
    union = {"oneOf": [{"$ref": place} for place in places.values()]}
    chosen = {"discriminator": {"mapping": places, "propertyName": "kind"}}
    return properties(details={"anyOf": [{**union, **chosen}, {"type": "null"}], "default": None, **more})


@pytest.mark.parametrize(("since", "wrong"), [({}, 1), ({"x-values-since": {"Distill": "2.1"}}, 0)])
def test_a_kind_of_findings_says_since_when(since: dict[str, Any], wrong: int) -> None:
    before, after = findings("Train", "Export"), findings("Train", "Export", "Distill", **since)
    assert len(schemas.breaking(before, after, ContractVersion(2, 0))) == wrong
    assert len(schemas.breaking(before, findings("Train"), ContractVersion(2, 0))) == 1
