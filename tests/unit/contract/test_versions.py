"""Which version a record requires of its reader, and which readers refuse it."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from finetune_contract import (
    CONTRACT_VERSION,
    METHODS,
    ContractUnsupported,
    ContractVersion,
    StageRequest,
    StageResult,
)
from finetune_contract.base import Record
from finetune_contract.versions import FIRST_VERSION, Since, major_of, marked_fields, required_version
from tests.unit.contract.samples import samples
from tests.unit.contract.schemas import schema_of

REQUEST: StageRequest = StageRequest.model_validate(samples()["request"][1])


class Optimizer(Record):
    name: str
    beta: Annotated[float, Since("3.3")] = 0.9


class Imitation(Record):
    type: Literal["SFT"] = "SFT"


class Rollouts(Record):
    type: Literal["GRPO"] = "GRPO"
    group: int


class Work(Record):
    """A record that has grown over five versions."""

    steps: int = 1
    optimizer: Annotated[Optimizer | None, Since("3.1")] = None
    others: list[Optimizer] = []
    named: dict[str, Optimizer] = {}
    method: Annotated[Literal["SFT", "GRPO", "KTO"], Since("3.2", "GRPO"), Since("3.4", "KTO")] = "SFT"
    metrics: Annotated[list[Literal["Loss", "Chrf"]], Since("3.2", "Chrf")] = ["Loss"]
    objective: Annotated[Imitation | Rollouts, Field(discriminator="type"), Since("3.5", "GRPO")] = (
        Imitation()
    )


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, "3.0"),
        ({"steps": 7}, "3.0"),
        ({"optimizer": None, "method": "SFT", "metrics": ["Loss"]}, "3.0"),
        ({"optimizer": {"name": "adamw"}}, "3.1"),
        ({"optimizer": {"name": "adamw", "beta": 0.9}}, "3.1"),
        ({"optimizer": {"name": "adamw", "beta": 0.95}}, "3.3"),
        ({"others": [{"name": "adamw"}, {"name": "sgd", "beta": 0.95}]}, "3.3"),
        ({"named": {"warm": {"name": "sgd", "beta": 0.95}}}, "3.3"),
        ({"method": "GRPO"}, "3.2"),
        ({"method": "KTO", "optimizer": {"name": "adamw"}}, "3.4"),
        ({"metrics": ["Loss", "Chrf"]}, "3.2"),
        ({"objective": {"type": "SFT"}}, "3.0"),
        ({"objective": {"type": "GRPO", "group": 8}}, "3.5"),
    ],
)
def test_the_version_that_a_record_needs_is_that_of_the_newest_part_it_uses(
    fields: dict[str, Any], needed: str
) -> None:
    made = Work.model_validate(fields)
    assert str(required_version(made)) == needed
    assert Work.model_validate_json(made.to_json()) == made


def test_the_schema_says_since_when() -> None:
    fields = schema_of(Work)["$defs"]["Work"]["properties"]
    assert fields["optimizer"]["x-since"] == "3.1"
    assert fields["method"]["x-values-since"] == {"GRPO": "3.2", "KTO": "3.4"}
    assert "x-since" not in fields["method"]
    assert fields["objective"]["x-values-since"] == {"GRPO": "3.5"}


def test_what_is_at_its_default_is_not_written() -> None:
    assert (
        Work(steps=1, optimizer=Optimizer(name="adamw", beta=0.9)).to_json()
        == '{"optimizer":{"name":"adamw"}}'
    )


def test_what_a_record_is_stands_in_it_all_the_same() -> None:
    document = samples()["result-convert"][1]
    assert document["version"] == CONTRACT_VERSION.major
    assert document["details"]["kind"] == "Convert"
    assert document["details"]["manifest"]["version"] == CONTRACT_VERSION.major


def test_numbers_that_are_none_survive() -> None:
    written = Optimizer(name="sgd", beta=float("inf")).to_json()
    assert json.loads(written) == {"name": "sgd", "beta": "Infinity"}
    assert Optimizer.model_validate_json(written).beta == float("inf")


# --- requests


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[StageRequest]:
    """A request with a part that has come with 3.2."""
    monkeypatch.setattr(StageRequest.model_fields["engine_overrides"], "metadata", [Since("3.2")])
    marked_fields.cache_clear()
    yield REQUEST.model_copy(update={"engine_overrides": {"remat_policy": "full"}})
    monkeypatch.undo()
    marked_fields.cache_clear()


def test_a_request_says_what_it_requires(newer: StageRequest) -> None:
    assert REQUEST.for_trainer(ContractVersion(3, 0)).requires == "3.0"
    assert REQUEST.for_trainer(ContractVersion(3, 7)).requires == "3.0"
    assert newer.for_trainer(ContractVersion(3, 2)).requires == "3.2"


@pytest.mark.parametrize("by", ["3.0", "3.1"])
def test_a_request_is_not_made_for_those_who_do_not_understand_it(newer: StageRequest, by: str) -> None:
    with pytest.raises(
        ContractUnsupported, match=r"needs version 3\.2 .*\(engine_overrides\).* supports " + by
    ):
        newer.for_trainer(ContractVersion.parse(by))


@pytest.mark.parametrize("by", ["1.0", "1.9", "4.0"])
def test_no_request_is_made_for_another_major_version(by: str) -> None:
    with pytest.raises(ContractUnsupported, match=f"supports {by}"):
        REQUEST.for_trainer(ContractVersion.parse(by))


def environment(**changes: Any) -> dict[str, str]:
    return {"FINETUNE_REQUEST": json.dumps(json.loads(REQUEST.to_json()) | changes)}


@pytest.mark.parametrize(
    "changes",
    [{"requires": "3.999"}, {"requires": "4.0"}, {"version": 4}, {"version": 5, "requires": "5.1"}],
)
@pytest.mark.parametrize("unlike", [{}, {"method": {"type": "Newest"}}, {"job": None}])
def test_a_reader_refuses_what_is_newer_before_it_reads_the_rest(
    changes: dict[str, Any], unlike: dict[str, Any]
) -> None:
    with pytest.raises(ContractUnsupported, match=f"needs version {changes.get('requires', '4.0')}"):
        StageRequest.of_environment(environment(**changes, **unlike))


@pytest.mark.parametrize(
    ("changes", "needed"), [({"version": 1}, "1.0"), ({"version": 1, "requires": "1.4"}, "1.4")]
)
@pytest.mark.parametrize("unlike", [{}, {"method": {"type": "SFT", "lora_rank": 8}}])
def test_a_reader_refuses_an_earlier_major_version_before_it_reads_the_rest(
    changes: dict[str, Any], needed: str, unlike: dict[str, Any]
) -> None:
    with pytest.raises(ContractUnsupported, match=f"needs version {needed}"):
        StageRequest.of_environment(environment(**changes, **unlike))


@pytest.mark.parametrize("changes", [{}, {"requires": "3.0"}, {"unheard_of": {"deep": [1]}}])
def test_a_reader_takes_what_it_speaks(changes: dict[str, Any]) -> None:
    assert StageRequest.of_environment(environment(**changes)) == REQUEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '{"requires": 3}',
        '{"requires": "1"}',
        '{"version": "x"}',
        '{"version": 1e999}',
        "[" * 100_000,
    ],
)
def test_what_is_no_request_is_invalid(text: str) -> None:
    with pytest.raises(ValidationError):
        StageRequest.of_environment({"FINETUNE_REQUEST": text})


# --- records


@pytest.mark.parametrize(
    "details",
    [
        {"kind": "Distill", "students": 3},
        {**samples()["result-export-full"][1]["details"], "artifacts": [
            {"name": "m", "type": "Newest", "uri": "gs://b/m", "digest": "d", "size_bytes": 1}]},
    ],
)  # fmt: skip
def test_findings_that_only_a_newer_reader_understands_are_absent(details: dict[str, Any]) -> None:
    result = StageResult.model_validate({**samples()["result-export"][1], "details": details})
    assert result.details is None


@pytest.mark.parametrize(
    "details", [{}, [], "Train", {"kind": "Train"}, {"kind": "Train", "step": "x", "total_steps": 1}]
)
def test_findings_that_are_malformed_are_an_error(details: Any) -> None:
    with pytest.raises(ValidationError):
        StageResult.model_validate({**samples()["result-train"][1], "details": details})


@pytest.mark.parametrize(
    ("content", "major"),
    [
        (b'{"version": 1, "step": 3}', 1),
        (b'{"version": 2}', 2),
        (b'{"reason": "Broken"}', CONTRACT_VERSION.major),
        ('{"version": 17}', 17),
        (b'{"version": "3.0"}', None),
        (b'{"version": true}', None),
        (b'{"version": null}', None),
        (b"[]", None),
        (b"{", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_major_version_of_a_record_is_known_before_it_is_understood(
    content: bytes | str, major: int | None
) -> None:
    assert major_of(content) == major


#: Values that a request may leave out although they are no absence: neutral ones, which no user is given by default.
NEUTRAL = {
    "StageRequest": {"version": CONTRACT_VERSION.major, "requires": str(FIRST_VERSION)},
    "HubRef": {"revision": "main"},
    "DatasetSpec": {"split": "train", "format": "Auto"},
    "DataSpec": {"dedupe": "Off"},
    "MeshSpec": {"slices": 1, "data": 1, "tensor": 1, "controller": "McJAX"},
    "CheckpointPolicy": {"best_metric": "loss", "best_mode": "Min"},
    **{method.__name__: {"type": name} for name, method in METHODS.items()},
}


def test_a_request_has_no_defaults_of_the_product() -> None:
    """They stand in planning alone. What may be left out says that there is none of it."""
    definitions = schema_of(StageRequest)["$defs"]
    found = {
        name: values
        for name, record in definitions.items()
        if (
            values := {
                field: each["default"] for field, each in record["properties"].items() if each.get("default")
            }
        )
    }
    assert found == NEUTRAL
