"""Each rule says the same in CEL, as the API server evaluates it, and in Python."""

from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, Method, Model, parse_job, parse_profile
from finetune_operator.api.common import ApiModel, distinct
from finetune_operator.api.profile import FineTuneProfileSpec
from finetune_operator.api.rules import ValidationRule, all_or_none, at_most_one, exactly_one, immutable
from tests.unit.api.documents import job
from tests.unit.api.schema_oracle import check_rules
from tests.unit.lifecycle.world import profile
from tools.structural_schema import structural_schema

ENVIRONMENT = celpy.Environment()


class Abc(ApiModel):
    """Three optional members."""

    one_member: int | None = None
    """First."""
    two: int | None = None
    """Second."""
    three: int | None = None
    """Third."""


def cel(rule: ValidationRule, value: Any, old: Any = None) -> bool:
    program = ENVIRONMENT.program(ENVIRONMENT.compile(rule.cel))
    return bool(program.evaluate({"self": json_to_cel(value), "oldSelf": json_to_cel(old)}))


SUBSETS = [
    {name: 1 for index, name in enumerate(("oneMember", "two", "three")) if bits >> index & 1}
    for bits in range(8)
]
COUNTS = [
    (exactly_one("oneMember", "two", "three"), lambda n: n == 1),
    (at_most_one("oneMember", "two", "three"), lambda n: n <= 1),
    (all_or_none("oneMember", "two", "three"), lambda n: n in (0, 3)),
]


@pytest.mark.parametrize("members", SUBSETS, ids=lambda members: "+".join(members) or "none")
@pytest.mark.parametrize(("rule", "expected"), COUNTS, ids=["exactly one", "at most one", "all or none"])
def test_unions_count_their_members(rule: ValidationRule, expected: Any, members: dict[str, int]) -> None:
    assert rule.holds is not None
    assert cel(rule, members) is expected(len(members))
    assert rule.holds(Abc.model_validate(members)) is expected(len(members))


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ({}, {}, True),
        ({"model": {"a": 1}}, {"model": {"a": 1}}, True),
        ({"model": {"a": 1}}, {"model": {"a": 2}}, False),
        ({"model": {"a": 1}}, {}, False),
        ({}, {"model": {"a": 1}}, False),
    ],
    ids=["absent", "same", "changed", "removed", "added"],
)
def test_an_identity_field_is_neither_changed_nor_added_nor_removed(
    old: Any, new: Any, allowed: bool
) -> None:
    assert cel(immutable("model"), new, old) is allowed


@given(st.lists(st.sampled_from("abc"), max_size=4))
def test_distinct_refuses_repetition(items: list[str]) -> None:
    (rule,) = distinct().func.rules
    assert rule.holds(items) is cel(rule, items) is (len(set(items)) == len(items))


MEMBER_CASES: list[tuple[type[ApiModel], dict[str, Any], bool]] = [
    (Model, {"uri": "gs://ab/c"}, True),
    (Model, {"uri": "gs://ab/c", "huggingFace": {"repo": "a/b"}}, False),
    (Model, {}, False),
    (Model, {"orbax": {"uri": "gs://ab/c"}}, False),
    (
        Model,
        {"orbax": {"uri": "gs://ab/0/items"}, "maxtextModel": "gemma2-2b", "tokenizer": {"uri": "gs://ab/t"}},
        True,
    ),
    (
        Model,
        {"orbax": {"uri": "gs://ab/0"}, "maxtextModel": "gemma2-2b", "tokenizer": {"uri": "gs://ab/t"}},
        False,
    ),
    (Model, {"fromJob": {"name": "a", "checkpoint": "Step", "step": 3}}, True),
    (Model, {"fromJob": {"name": "a", "checkpoint": "Step"}}, False),
    (Model, {"fromJob": {"name": "a", "step": 3}}, False),
    (Method, {"type": "SFT", "sft": {}}, True),
    (Method, {"type": "SFT", "dpo": {}}, False),
    (Method, {"type": "ORPO", "orpo": {"lambda": 0.1}}, True),
]


@pytest.mark.parametrize(("model", "value", "holds"), MEMBER_CASES)
def test_rules_on_unions(model: type[ApiModel], value: dict[str, Any], holds: bool) -> None:
    assert (not check_rules(value, structural_schema(model), sound=True)) is holds
    field = "model" if model is Model else "method"
    if holds:
        parse_job(job(**{field: value}))
    else:
        with pytest.raises(InvalidObject, match=rf"spec\.{field}"):
            parse_job(job(**{field: value}))


@pytest.mark.parametrize(
    ("accounts", "network", "holds"),
    [
        ({"tpu": "ft-train"}, True, False),
        ({"tpu": "ft-train"}, False, True),
        ({"cpu": "ft-cpu"}, True, True),
        (None, True, True),
    ],
)
def test_on_the_nodes_network_no_account_is_passed_over_in_silence(
    accounts: dict[str, str] | None, network: bool, holds: bool
) -> None:
    made = profile(pod={"hostNetwork": network}, serviceAccounts=accounts)
    if accounts is None:
        del made["spec"]["serviceAccounts"]
    assert (not check_rules(made["spec"], structural_schema(FineTuneProfileSpec), sound=True)) is holds
    if holds:
        parse_profile(made)
    else:
        with pytest.raises(InvalidObject, match=r"spec\.pod\.hostNetwork.*serviceAccounts\.tpu"):
            parse_profile(made)
