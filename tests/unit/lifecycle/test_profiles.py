from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from finetune_operator.api import FineTuneProfileStatus
from finetune_operator.lifecycle.status.profile import profile_status
from tests.unit.lifecycle.world import profile

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def stored(generation: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = profile(**spec)
    made["metadata"]["generation"] = generation
    return made | {"status": status or {"observedGeneration": -1}}


def conditions(status: dict[str, Any]) -> dict[str, str]:
    FineTuneProfileStatus.model_validate(status, by_alias=True, by_name=False)
    assert {each["observedGeneration"] for each in status["conditions"]} == {status["observedGeneration"]}
    return {each["type"]: each["status"] for each in status["conditions"]}


def status_of(stored: dict[str, Any], *, used_by: int | None, now: datetime) -> dict[str, Any]:
    return profile_status(stored, used_by=used_by, now=now).to_document()


FLAVOR = profile()["spec"]["flavors"][0]


def test_a_usable_profile_is_valid() -> None:
    status = status_of(stored(), used_by=2, now=NOW)
    assert conditions(status) == {"Valid": "True", "Stalled": "False"}
    assert (status["observedGeneration"], status["usedBy"]) == (1, 2)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"constraints": {"mode": "Strict"}}, "spec.namespaces lists none, so no job can run under it"),
        (
            {"constraints": {"uris": {"read": ["gs://a/*", "gs://team-a-chats"]}}},
            "spec.constraints.uris.read[1]: gs://team-a-chats covers a folder that is the whole bucket, and no file",
        ),
        (
            {"pod": {"env": [{"name": "JAX_COMPILATION_CACHE_DIR", "value": "gs://all/programs"}]}},
            "spec.pod.env: JAX_COMPILATION_CACHE_DIR takes the place of each namespace's own folder",
        ),
        (
            {"flavors": [FLAVOR | {"xlaFlags": ["--xla_dump_to=/tmp", "--xla_tpu_a=1"]}]},
            "spec.flavors[0].xlaFlags: --xla_tpu_a=1 is a flag of libtpu's: move it to libtpuInitArgs",
        ),
    ],
)
def test_a_valid_setting_that_may_be_unintended_gives_a_warning(spec: dict[str, Any], expected: str) -> None:
    status = status_of(stored(**spec), used_by=0, now=NOW)
    assert conditions(status) == {"Valid": "True", "Stalled": "False"}
    assert expected in status["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "expected"),
    [
        (
            {"constraints": {"locked": ["resources.contoller"]}},
            "ProfileInvalid",
            "spec.constraints.locked[0]: resources.contoller",
        ),
        (
            {"storage": {"artifacts": "gs://artifacts", "optimizerStateTTLSeconds": 1}},
            "NotYetSupported",
            "TTL",
        ),
        ({"pod": {"hostNetwork": True}}, "ProfileInvalid", "never that of serviceAccounts.tpu"),
        ({"flavors": []}, "ProfileInvalid", "spec.flavors"),
        (
            {"constraints": {"limits": [{"path": f"no.path{n}", "max": 1} for n in range(64)]}},
            "ProfileInvalid",
            "spec.constraints.limits[0].path",
        ),
    ],
    ids=["path", "not yet supported", "rule", "schema", "many"],
)
def test_errors_of_a_profile_are_reported_with_their_path(
    spec: dict[str, Any], reason: str, expected: str
) -> None:
    status = status_of(stored(**spec), used_by=0, now=NOW)
    assert conditions(status) == {"Valid": "False", "Stalled": "True"}
    valid = status["conditions"][0]
    assert valid["reason"] == reason
    assert expected in valid["message"]


def test_transition_times_change_only_when_the_profile_is_fixed() -> None:
    first = status_of(stored(constraints={"locked": ["x"]}), used_by=0, now=NOW)
    later = NOW + timedelta(hours=1)
    again = status_of(stored(status=first, constraints={"locked": ["x"]}), used_by=0, now=later)
    assert again == first
    fixed = status_of(stored(2, status=first), used_by=0, now=later)
    assert {each["lastTransitionTime"] for each in fixed["conditions"]} == {"2026-11-21T13:00:00Z"}
    assert fixed["observedGeneration"] == 2


def test_jobs_are_not_counted_if_not_all_are_known() -> None:
    assert "usedBy" not in status_of(stored(), used_by=None, now=NOW)
