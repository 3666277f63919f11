"""What counts as an edit: of one stage, and of the whole spec."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api.job import IDENTITY_FIELDS, FineTuneJobSpec
from finetune_operator.planning import Plan, admit, replan
from finetune_operator.planning.stages import STAGES
from tests.unit.lifecycle.world import job, profile

#: An edit of each section that can be edited.
EDITS: dict[str, Any] = {
    "cache": "Refresh",
    "huggingFaceTokenSecretRef": {"name": "hub"},
    "resources": {"tpu": "v6e-8"},
    "checkpointing": {"everySteps": 7},
    "preflight": {"exportProof": False},
    "evaluation": {"prompts": ["Where is my parcel?"]},
    "export": {"dtype": "FP32"},
    "profiling": {"startStep": 2},
    "engineOverrides": {"remat_policy": "full"},
    "activeDeadlineSeconds": 600,
    "preRunningDeadlineSeconds": 600,
    "childTTLSecondsAfterFinished": 600,
    "budget": {"maxChipHours": 5},
    "recovery": {"maxPreemptions": 7},
    "hangPolicy": {"noStepSeconds": 700},
}
#: Sections that only the operator reads: they do not change an attempt.
READ_BY_THE_OPERATOR = {
    *("suspend", "cancel", "planOnly", "retry", "activeDeadlineSeconds", "preRunningDeadlineSeconds"),
    *("childTTLSecondsAfterFinished", "budget", "recovery", "hangPolicy"),
}
#: They determine whether and when to run, not what.
SWITCHES: dict[str, Any] = {"suspend": True, "cancel": True, "planOnly": True, "retry": {"generation": 1}}


def edited(**spec: Any) -> tuple[Plan, Plan]:
    """The plan before and after an edit."""
    stored = admit(job(), [profile()]).stored
    return replan(job(), stored), replan(job(**spec), stored)


def test_every_section_of_a_spec_has_a_reader_or_is_immutable() -> None:
    sections = {field.alias or name for name, field in FineTuneJobSpec.model_fields.items()}
    read_by_stages = frozenset().union(*(info.reads for info in STAGES.values()))
    assert sections == read_by_stages | READ_BY_THE_OPERATOR | set(IDENTITY_FIELDS)
    assert sections - set(IDENTITY_FIELDS) == EDITS.keys() | SWITCHES.keys()


@pytest.mark.parametrize("section", EDITS)
def test_an_edit_concerns_the_stages_that_read_it(section: str) -> None:
    before, after = edited(**{section: EDITS[section]})
    concerned = {stage for stage in Stage if before.spec_digests[stage] != after.spec_digests[stage]}
    assert concerned == {stage for stage, info in STAGES.items() if section in info.reads}


@pytest.mark.parametrize("section", EDITS)
def test_the_hash_of_the_spec_changes_with_every_edit(section: str) -> None:
    before, after = edited(**{section: EDITS[section]})
    assert before.spec_hash != after.spec_hash


@pytest.mark.parametrize("section", SWITCHES)
def test_control_fields_do_not_change_the_hash_of_the_spec(section: str) -> None:
    before, after = edited(**{section: SWITCHES[section]})
    assert before.spec_hash == after.spec_hash
    assert before.spec_digests == after.spec_digests


def test_an_explicit_default_does_not_change_the_spec() -> None:
    before, after = edited(checkpointing={"everySteps": 100}, resources={"tpu": "v6e-4", "slices": 1})
    assert before.spec_hash == after.spec_hash


def test_jobs_with_the_same_spec_have_the_same_hash_under_any_name() -> None:
    other = job()
    other["metadata"] |= {"name": "other", "uid": "1" * 36}
    assert admit(job(), [profile()]).plan.spec_hash == admit(other, [profile()]).plan.spec_hash


@pytest.mark.parametrize("section", ["model", "datasets", "method", "hyperparameters"])
def test_the_hash_of_the_spec_changes_with_what_is_trained(section: str) -> None:
    others: dict[str, Any] = {
        "model": {"uri": "gs://models/other"},
        "datasets": {"train": [{"uri": "gs://data/other.jsonl"}]},
        "method": {"type": "SFT", "lora": {"rank": 8}},
        "hyperparameters": {"steps": 7},
    }
    one, other = (admit(each, [profile()]).plan for each in (job(), job(**{section: others[section]})))
    assert one.spec_hash != other.spec_hash
