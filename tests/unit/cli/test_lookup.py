"""``finetune profiles`` and ``explain``."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import Reason, WaitingReason
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.explain import explained, explanations
from finetune_operator.cli.jobs.profiles import profile_lines
from finetune_operator.cli.monthly_budget import budget_text, known_text, newest_budgets

ROOT = Path(__file__).parents[3]


def profile(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "profiles" / f"{name}.yaml").read_text())
    return loaded


def test_a_profile_says_what_a_job_may_use_and_whom_to_ask() -> None:
    page = "\n".join(profile_lines([profile("gke-v6e")], "team-a"))
    for part in (
        "gke-v6e (default) TPU v6e, up to 8 chips",
        "tpu-v6e-slice 2x4; OnDemand; 2.7 USD per chip hour (flavor two-hosts)",
        "Models    Qwen/Qwen3-*, ",
        "Read      gs://my-project-finetune-artifacts/team-a/; beside it: gs://my-project-models/team-a/*, ",
        "Write     gs://my-project-finetune-artifacts/team-a/exports/; beside it: ",
        "hyperparameters.epochs ≤ 5",
        "Contact   ml-platform, #ml-platform",
    ):
        assert part in page


def test_profiles_of_other_namespaces_are_named_only() -> None:
    lines = list(profile_lines([profile("gke-v6e"), profile("gke-many")], "team-z"))
    assert lines == [
        "No profile serves namespace team-z.",
        "Not for namespace team-z: gke-v6e, gke-many",
    ]
    assert list(profile_lines([], "team-z")) == ["No profile serves namespace team-z."]


def test_a_profile_with_a_fault_says_which() -> None:
    faulty = profile("gke-v6e")
    condition = {"type": "Valid", "status": "False", "reason": "InvalidSpec", "message": "no such topology"}
    faulty["status"] = {"observedGeneration": 1, "conditions": [condition]}
    assert "  Not valid InvalidSpec: no such topology" in profile_lines([faulty], "team-a")


def test_the_profile_of_jobs_that_name_none_is_shown() -> None:
    one, other = profile("gke-v6e"), profile("gke-many")
    assert "gke-v6e (default) TPU v6e, up to 8 chips" in profile_lines([one, other], "team-a")
    del one["metadata"]["annotations"]
    assert not any("(default)" in line for line in profile_lines([one, other], "team-a"))
    one["spec"]["namespaces"] = ["team-z"]
    assert "gke-many (default) v5e and v6e, Spot first" in profile_lines([one, other], "team-a")


def test_every_reason_that_the_documentation_names_is_explained() -> None:
    names = {name for row in explanations() for name in row.names}
    assert len(names) > 120
    assert set(WaitingReason) <= names
    assert {
        Reason.INVALID_SPEC,
        Reason.POLICY_VIOLATION,
        "MemoryExceeded",
        "Preempted",
        "SuspendedByUser",
        "Cancelled",
        "TooSlow",
    } <= names


def test_a_reason_is_found_in_any_case_and_in_each_place_where_it_occurs() -> None:
    lines = list(explained("budgetexhausted"))
    assert [
        line.split("  ")[0] for line in lines if "(" in line and not line.startswith(("Meaning", "Remedy"))
    ] == [
        "WithinBudget False, BudgetExhausted",
        "BudgetTooSmall, BudgetExhausted",
    ]
    assert sum(line.startswith("Remedy ") for line in lines) == 2
    assert not any("](" in line or "`" in line for line in explained("SuspendedByUser"))


def test_an_unknown_reason_leads_to_similar_ones() -> None:
    with pytest.raises(CliError) as error:
        list(explained("MemoryExeeded"))
    assert "MemoryExceeded" in error.value.fix


def test_without_a_reason_all_are_listed_by_place() -> None:
    lines = list(explained(None))
    assert [line for line in lines if not line.startswith(" ")] == [
        "the condition Valid:",
        "status.waiting:",
        "a condition:",
        "status.failure:",
        "metrics of the operator:",
    ]
    assert "  PolicyViolation" in lines


NOVEMBER = datetime(2026, 11, 21, 12, tzinfo=UTC)


def budget(**values: str) -> dict[str, str]:
    return {
        "month": "2026-11",
        "chipHours": "500",
        "used": "123.4",
        "asOf": "2026-11-21T11:00:00Z",
        "resetTime": "2026-12-01T00:00:00Z",
    } | values


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (
            budget(),
            "123.40 of 500 chip hours of the namespace used in 2026-11, 376.60 left until 2026-12-01",
        ),
        (
            budget(used="501"),
            "501 of 500 chip hours of the namespace used in 2026-11, 0 left until 2026-12-01",
        ),
        (budget(resetTime="2026-11-01T00:00:00Z"), ""),
        (budget(resetTime="soon"), ""),
        ({}, ""),
        (
            {key: value for key, value in budget().items() if key != "used"},
            "500 chip hours in 2026-11 for all jobs of the namespace; what is used is not known yet",
        ),
    ],
)
def test_a_budget_is_shown_while_its_month_lasts(found: dict[str, str], shown: str) -> None:
    assert budget_text(found, NOVEMBER) == shown


async def test_the_newest_status_of_a_profile_shows_its_budget() -> None:
    def under(name: str, found: object) -> dict[str, Any]:
        return {"status": {"resolved": {"profile": {"name": name}}, "monthlyBudget": found}}

    async def jobs() -> AsyncIterator[dict[str, Any]]:
        yield {}
        yield {"status": {"monthlyBudget": budget()}}
        yield under("a", budget(used="2", asOf="2026-11-21T10:00:00Z"))
        yield under("a", budget(used="3"))
        yield under("a", budget(used="1", asOf="2026-11-20T10:00:00Z"))
        yield under("a", budget(used="9", asOf="never"))
        yield under("b", budget(used="4"))

    found = await newest_budgets(jobs())
    assert {name: each["used"] for name, each in found.items()} == {"a": "3", "b": "4"}


def test_a_profile_shows_its_present_limit_and_what_is_left() -> None:
    made = profile("gke-v6e")
    made["spec"].setdefault("constraints", {})["chipHoursPerMonth"] = 600
    known = known_text(made, budget(), NOVEMBER)
    assert known.startswith("123.40 of 600 chip hours")
    assert "476.60 left" in known
    for unknown in (None, budget(resetTime="2026-11-01T00:00:00Z")):
        text = known_text(made, unknown, NOVEMBER)
        assert text == "600 chip hours in 2026-11; no job of the namespace shows yet what is used"
    lines = list(profile_lines([made], "team-a", {"gke-v6e": known}))
    assert f"  Budget    {known}" in lines
    assert any("600 chip hours per namespace and month" in each for each in lines)
    assert known_text(profile("gke-v6e"), budget(), NOVEMBER) == ""
