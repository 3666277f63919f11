"""The one-page story, for a job in every phase."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import FineTuneJobStatus, Phase
from finetune_operator.cli import job_status
from finetune_operator.cli.jobs import status_view
from tests import snapshots

HERE = Path(__file__).parent
JOBS = sorted((HERE / "jobs").glob("*.yaml"))
NOW = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)


def job(phase: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((HERE / "jobs" / f"{phase}.yaml").read_text())
    return loaded


def page(manifest: dict[str, Any]) -> str:
    return "".join(f"{line.plain}\n" for line in status_view.status_lines(manifest, NOW))


def test_there_is_a_job_for_every_phase() -> None:
    assert {path.stem for path in JOBS} == {phase.value.lower() for phase in Phase}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_have_a_status_as_the_api_defines_it(path: Path) -> None:
    FineTuneJobStatus.model_validate(yaml.safe_load(path.read_text())["status"])


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_page(path: Path) -> None:
    snapshots.check(HERE / "pages" / f"{path.stem}.txt", page(yaml.safe_load(path.read_text())))


def test_a_job_without_any_status_has_not_been_observed() -> None:
    fresh = job("pending")
    del fresh["status"]
    assert "has not observed this job yet" in page(fresh)


def test_an_error_before_the_first_observation_is_shown() -> None:
    fresh = job("pending")
    fresh["status"] = {"observedGeneration": -1, "summary": "POST /apis: 403 no. Retried every minute."}
    assert "POST /apis: 403 no." in page(fresh)
    assert "has not observed" not in page(fresh)


def test_an_edit_that_was_not_observed_is_reported() -> None:
    edited = job("succeeded")
    edited["metadata"]["generation"] = 2
    assert not job_status.is_current(edited)
    del edited["status"]["summary"]
    assert "has not observed the edit yet" in page(edited)


def test_a_cache_miss_names_the_inputs_that_differ() -> None:
    missed = job("running")
    missed["status"]["stages"][1]["cache"] = {
        "result": "Miss",
        "missBecause": ["engine: 1 -> 2", "layout: a -> b"],
    }
    assert "cache miss: engine: 1 -> 2; layout: a -> b" in page(missed)


def test_unknown_fields_and_phases_of_a_newer_operator_do_not_break_the_page() -> None:
    newer = job("running")
    newer["status"]["stages"][2]["phase"] = "Paused"
    newer["status"]["novelty"] = {"a": 1}
    assert "? Train" in page(newer)


def test_scores_and_gates_are_reported() -> None:
    measured = job("succeeded")
    measured["status"]["evaluation"] = {
        "baseline": {"loss": "2.0", "faq/exact_match": "0.1"},
        "result": {"loss": "1.0", "faq/exact_match": "0.7"},
        "gates": [
            {"metric": "faq/exact_match", "op": "GreaterOrEqual", "value": "0.7", "threshold": "0.62", "passed": True},
            {"metric": "loss", "op": "LessOrEqual", "value": "1.0", "threshold": "0.5", "passed": False},
        ],
    }  # fmt: skip
    told = page(measured)
    assert "faq/exact_match  0.100 → 0.700" in told
    assert "faq/exact_match ≥ 0.620: met" in told
    assert "loss ≤ 0.500: not met" in told


def test_cost_and_the_origin_of_the_model_are_reported() -> None:
    spent = job("running")
    spent["status"] |= {
        "cost": {"chipHours": "1.5", "amount": "4.05", "currency": "USD", "budgetRemaining": "5.95"},
        "goodput": {"percent": "81.2", "seconds": {}},
    }
    spent["status"]["resolved"]["model"]["fromJob"] = {"name": "sft", "uid": "1", "base": "Qwen/Qwen3-0.6B"}
    spent["status"]["stages"][1] |= {"phase": "Skipped", "reason": "ProvidedCheckpoint", "cache": None}
    told = page(spent)
    assert "1.500 chip hours, 4.05 USD, 5.950 of the budget left, goodput 81.2 %" in told
    assert "(produced by sft from Qwen/Qwen3-0.6B)" in told
    assert "given as a MaxText checkpoint" in told


def test_a_refused_spec_leads_to_a_copy_and_another_cause_to_a_retry() -> None:
    told = page(job("failed"))
    assert "finetune init --from quickstart --output FILE" in told
    assert "finetune retry quickstart" in told
    waiting = job("validating")
    waiting["status"]["waiting"] = {
        "reason": "WaitingForInput",
        "message": "no file",
        "since": "2026-11-21T12:00:00Z",
    }
    assert "finetune init --from quickstart" in page(waiting)
    assert "it continues by itself" in page(waiting)


@pytest.mark.parametrize("reason", ["Cancelled", "GateNotMet", "BudgetExhausted"])
def test_an_end_that_no_other_spec_would_prevent_leads_to_no_copy(reason: str) -> None:
    ended = job("failed")
    ended["status"]["failure"]["reason"] = reason
    assert "init --from" not in page(ended)


def test_of_a_split_source_the_rows_that_are_held_back_are_named() -> None:
    split = job("running")
    split["spec"] = {"datasets": {"splitFromTrain": {"fraction": "0.05"}}}
    split["status"]["resolved"]["datasets"] = [
        {"name": "train-0", "rows": 95, "tokens": 950},
        {"name": "train-0", "rows": 5, "tokens": 50},
    ]
    told = page(split)
    assert "Data        train-0  95 rows" in told
    assert "Data        train-0, held back  5 rows" in told


def at_work(progress: dict[str, Any], phase: str = "Running") -> list[str]:
    """Returns the page's lines about Convert."""
    working = job("running")
    working["status"]["stages"][1] = {
        "name": "Convert", "phase": phase, "attempt": 1, "startTime": "2026-11-21T12:03:00Z", "progress": progress,
    }  # fmt: skip
    lines = page(working).splitlines()
    at = next(number for number, line in enumerate(lines) if "Convert" in line)
    return lines[at : at + 2]


WRITING = {
    "doing": "converting the weights", "done": 12, "total": 37, "unit": "tensors", "doneBytes": 2040109465,
    "totalBytes": 6657199309, "since": "2026-11-21T12:03:00Z", "lastUpdateTime": "2026-11-21T12:04:40Z",
}  # fmt: skip


def test_a_running_stage_shows_its_counts_and_below_them_what_it_does() -> None:
    assert at_work(WRITING) == [
        "▶ Convert     2 min 00 s  12/37 tensors  1.9 of 6.2 GiB",
        "  converting the weights, about 3 min 26 s left",
    ]


def test_the_counts_of_a_stage_fit_40_columns() -> None:
    first, _ = at_work({**WRITING, "totalBytes": None, "doneBytes": None})
    assert len(first) <= 40


@pytest.mark.parametrize(
    ("changes", "counts", "words"),
    [
        ({"total": None, "totalBytes": None}, "12 tensors", "converting the weights"),
        ({"unit": None, "totalBytes": None}, "", "converting the weights"),
        ({"totalBytes": None}, "12/37 tensors", "converting the weights"),
        # Too little is done to estimate the rest.
        ({"doneBytes": 2**20}, "12/37 tensors  0.0 of 6.2 GiB", "converting the weights"),
        ({"since": "2026-11-21T12:04:30Z"}, "12/37 tensors  1.9 of 6.2 GiB", "converting the weights"),
        (
            {"lastUpdateTime": "2026-11-21T12:01:00Z"},
            "12/37 tensors  1.9 of 6.2 GiB",
            "converting the weights, as of 4 min 00 s ago",
        ),
        ({"doing": "a\x1b[31mb\n\u202ec", "totalBytes": None, "unit": "\x07"}, "", "ab c"),
    ],
)
def test_what_is_unknown_about_an_activity_is_left_out(
    changes: dict[str, Any], counts: str, words: str
) -> None:
    stage, activity = at_work(
        {name: value for name, value in (WRITING | changes).items() if value is not None}
    )
    assert stage.removeprefix("▶ Convert     2 min 00 s").strip() == counts
    assert activity == f"  {words}"


def test_a_stage_that_has_ended_shows_no_activity() -> None:
    stage, following = at_work(WRITING, phase="Failed")
    assert "tensors" not in stage
    assert "converting" not in following
