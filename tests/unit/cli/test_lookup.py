"""``finetune profiles`` and ``explain``."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import Reason, WaitingReason
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.explain import explained, explanations
from finetune_operator.cli.profiles import profile_lines, serves

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
        "Read      gs://my-project-models/team-a/*, ",
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


@pytest.mark.parametrize(
    ("namespaces", "mode", "served"),
    [
        (["team-a"], "Strict", True),
        (["team-b"], "Open", False),
        (["*"], "Strict", True),
        (None, "Strict", False),
        ([], None, False),
        (None, "Open", True),
    ],
)
def test_the_namespaces_that_a_profile_serves(namespaces: object, mode: str | None, served: bool) -> None:
    spec: dict[str, Any] = {"namespaces": namespaces, "constraints": {"mode": mode} if mode else None}
    assert (
        serves(
            {"metadata": {"name": "p"}, "spec": {k: v for k, v in spec.items() if v is not None}}, "team-a"
        )
        is served
    )


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
    ]
    assert "  PolicyViolation" in lines
