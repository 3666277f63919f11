"""A decimal of a spec keeps its meaning from the manifest to the plan."""

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_contract import Stage
from finetune_operator.api import InvalidObject, canonical, exact, parse_job
from finetune_operator.cli.documents import read_documents
from finetune_operator.planning import admit
from finetune_operator.planning.plan_builder import stage_digests
from tests.unit.api.documents import job
from tests.unit.lifecycle.world import job as placed_job
from tests.unit.lifecycle.world import profile


def with_rate(rate: Any) -> dict[str, Any]:
    return job(hyperparameters={"learningRate": rate})


@pytest.mark.parametrize("rate", [2e-5, 1, 1.0, 1e-7, 5e-324, 1.7e308, 10**20, 0.1])
def test_integers_and_fractions_are_numbers(rate: float) -> None:
    hyperparameters = parse_job(with_rate(rate)).spec.hyperparameters
    assert hyperparameters is not None
    assert hyperparameters.learning_rate == rate


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ("2e-5", '"2e-5" is text; write 2e-5 without quotes'),
        (" 1 ", '" 1 " is text; write 1 without quotes'),
        ("fast", "must be a number"),
        ("nan", "must be a number"),
        ("1e400", "must be a number"),
        (True, "must be a number"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (10**400, "must be a number"),
        ([1], "must be a number"),
        (0, "must be above 0"),
        (-1e-9, "must be above 0"),
    ],
)
def test_nothing_else_is_a_number(rate: Any, said: str) -> None:
    with pytest.raises(InvalidObject, match=r"^spec\.hyperparameters\.learningRate: ") as caught:
        parse_job(with_rate(rate))
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("number", "meant"),
    [(1.10, "1.1"), (2.70, "2.7"), (1, "1"), (1.0, "1"), (1e-7, "0.0000001"), (0.1, "0.1"), (1e20, "1E+20")],
)
def test_a_price_is_exactly_the_decimal_that_was_written(number: float, meant: str) -> None:
    assert exact(number) == Decimal(meant)
    assert exact(number) * 256 == Decimal(meant) * 256


@pytest.mark.parametrize(
    "same",
    [
        (1, 1.0, 1e0),
        (0, -0.0, 0.0),
        (10**20, 1e20, 100000000000000000000),
        (123456789012345680000, 1.2345678901234568e20),
    ],
)
def test_one_meaning_has_one_form(same: tuple[float, ...]) -> None:
    assert len({json.dumps(canonical({"a": [each]})) for each in same}) == 1


def test_flags_and_texts_stay_what_they_are() -> None:
    document = {"flag": True, "text": "1.0", "none": None, "number": 1.5}
    assert json.dumps(canonical(document)) == json.dumps(document)


#: What people write: up to 15 significant digits.
_written = st.builds(
    lambda digits, exponent: Decimal(digits).scaleb(exponent),
    st.integers(1, 10**15 - 1),
    st.integers(-40, 40),
)


@given(decimal=_written, exponential=st.booleans())
@settings(max_examples=300)
def test_a_decimal_survives_yaml_json_and_the_model(decimal: Decimal, exponential: bool) -> None:
    text = f"{decimal:e}" if exponential else f"{decimal:f}"
    (document,) = read_documents(f"rate: {text}\n")
    stored = json.loads(json.dumps(document.content))["rate"]
    hyperparameters = parse_job(with_rate(stored)).spec.hyperparameters
    assert hyperparameters is not None
    assert hyperparameters.learning_rate is not None
    assert exact(stored) == exact(hyperparameters.learning_rate) == decimal


@given(rate=st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False))
@settings(max_examples=60, deadline=None)
def test_the_request_has_the_number_that_was_written(rate: float) -> None:
    made = admit(placed_job(hyperparameters={"learningRate": rate, "steps": 5}), [profile()]).plan
    assert made.hyperparameters.learning_rate == rate


def test_an_integer_and_a_whole_float_are_the_same_plan_and_ask_the_same_of_each_stage() -> None:
    def admitted(one: float, two: float) -> Any:
        flavors = [{**each, "chipHourPrice": two} for each in profile()["spec"]["flavors"]]
        document = placed_job(hyperparameters={"maxGradNorm": one, "steps": 5}, budget={"maxCost": two})
        return admit(document, [profile(flavors=flavors, currency="USD")])

    whole, fraction = admitted(1, 2), admitted(1.0, 2.0)
    assert whole.stored.data == fraction.stored.data
    assert whole.plan == fraction.plan
    assert (
        stage_digests({"evaluation": {"generation": {"temperature": 1}}}, {})[Stage.EVALUATE]
        == stage_digests({"evaluation": {"generation": {"temperature": 1.0}}}, {})[Stage.EVALUATE]
    )


def test_a_price_of_nothing_is_a_price() -> None:
    flavors = [{**each, "chipHourPrice": 0} for each in profile()["spec"]["flavors"]]
    made = admit(placed_job(budget={"maxCost": 1}), [profile(flavors=flavors, currency="USD")])
    assert made.plan.placement.chip_hour_price == 0
