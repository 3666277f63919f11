"""Budgets for what the API server decodes, validates, encodes and stores with each write of a status."""

import json
from typing import Any

import pytest

from finetune_operator.api.status_stages import StageProgressStatus
from tests.unit.lifecycle.states import STATES, UNSEEN, reach
from tools.crd import job_crd, profile_crd, root_schema

#: Bytes of JSON of the schema without descriptions, which the API server does not evaluate.
SCHEMA_BYTES = 55_000
#: Bytes of JSON of any status in the table of states, and of the first one of a job.
STATUS_BYTES, FIRST_STATUS_BYTES = 7_500, 4_200
#: Bytes of JSON of what one running stage reports.
STAGE_PROGRESS_BYTES = 350


def bare(schema: Any) -> Any:
    """Returns the schema without descriptions."""
    if isinstance(schema, dict):
        texts = isinstance(schema.get("description"), str)
        return {key: bare(part) for key, part in schema.items() if not (texts and key == "description")}
    return [bare(part) for part in schema] if isinstance(schema, list) else schema


def size(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))


def test_the_schema_of_jobs_is_within_its_budget() -> None:
    assert size(bare(root_schema(job_crd()))) <= SCHEMA_BYTES


@pytest.mark.parametrize("crd", [job_crd(), profile_crd()])
def test_the_ownership_of_a_status_is_tracked_as_a_whole(crd: dict[str, Any]) -> None:
    """Otherwise managedFields are as large as the status, and a third of the work of a write."""
    assert root_schema(crd)["properties"]["status"]["x-kubernetes-map-type"] == "atomic"


@pytest.mark.parametrize("state", [name for name, (_, row) in STATES.items() if row is not UNSEEN])
def test_a_status_is_within_its_budget(state: str) -> None:
    assert size(reach(state)["status"]) <= STATUS_BYTES


def test_the_progress_of_a_stage_is_within_its_budget() -> None:
    """With the longest texts and numbers that its record allows."""
    largest = StageProgressStatus.model_validate(
        {
            "doing": "d" * 80, "done": 2**53 - 1, "total": 2**53 - 1, "unit": "u" * 16, "doneBytes": 2**53 - 1,
            "totalBytes": 2**53 - 1, "since": "2026-11-25T12:00:00Z", "lastUpdateTime": "2026-11-25T12:00:00Z",
        }
    )  # fmt: skip
    assert size(largest.to_document()) <= STAGE_PROGRESS_BYTES


def test_the_first_status_is_within_its_budget() -> None:
    assert size(reach("admitted")["status"]) <= FIRST_STATUS_BYTES
