"""Models of specs with all defaults: what is required in them has a built-in default, and the reverse."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from finetune_operator.api import FineTuneJobSpec, Reason
from finetune_operator.api.paths import model_within
from finetune_operator.planning import Refused, admit, read_stored_plan, render_stored_plan, replan
from finetune_operator.planning.defaulted import DefaultedJobSpec, job_spec
from finetune_operator.planning.defaults import BUILT_IN
from finetune_operator.planning.merge import merge
from tests.unit.lifecycle.world import job, profile


def required(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yields the required fields of ``model`` and of the sections that are always there."""
    for field in model.model_fields.values():
        section = model_within(field.annotation)
        if field.is_required() and section:
            yield from required(section, f"{path}{field.alias}.")
        elif field.is_required():
            yield f"{path}{field.alias}"


def leaves(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_each_built_in_default_makes_its_field_required() -> None:
    of_the_job = {"datasets.train.uri"} | set(required(FineTuneJobSpec))
    assert set(required(DefaultedJobSpec)) - of_the_job == set(leaves(BUILT_IN)) - of_the_job


def test_a_spec_without_a_default_is_refused_with_path_and_fix() -> None:
    merged = merge(BUILT_IN, job()["spec"])
    del merged["resources"]["slices"]
    with pytest.raises(Refused, match=r"^spec\.resources\.slices: required.*create the job again") as caught:
        job_spec(merged)
    assert caught.value.reason is Reason.INVALID_SPEC


def test_an_unreadable_stored_profile_is_refused_with_path_and_fix() -> None:
    stored = admit(job(), [profile()]).stored
    flavors = [{**each, "capacity": "Borrowed"} for each in stored.profile["flavors"]]
    stored = replace(stored, profile={**stored.profile, "flavors": flavors})
    with pytest.raises(Refused, match=r"spec\.flavors\[0\]\.capacity: .*correct the field") as caught:
        replan(job(), read_stored_plan(render_stored_plan(stored)))
    assert caught.value.reason is Reason.PROFILE_INVALID


def test_a_stored_profile_of_an_older_schema_is_read() -> None:
    admission = admit(job(), [profile()])
    older = merge(admission.stored.profile, {"currency": "USD", "storage": {"shards": 4}})
    plan = replan(job(), replace(admission.stored, profile=older))
    assert plan.placement == admission.plan.placement
