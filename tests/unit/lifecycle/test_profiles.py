from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from finetune_operator.api import FineTuneProfileStatus
from finetune_operator.lifecycle.profiles import profile_status
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


FLAVOR = profile()["spec"]["flavors"][0]


def test_a_profile_that_jobs_can_run_under_is_valid() -> None:
    status = profile_status(stored(), used_by=2, now=NOW)
    assert conditions(status) == {"Valid": "True", "Stalled": "False"}
    assert (status["observedGeneration"], status["usedBy"]) == (1, 2)


@pytest.mark.parametrize(
    ("spec", "said"),
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
def test_what_is_valid_and_may_not_be_meant_is_remarked(spec: dict[str, Any], said: str) -> None:
    status = profile_status(stored(**spec), used_by=0, now=NOW)
    assert conditions(status) == {"Valid": "True", "Stalled": "False"}
    assert said in status["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
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
    ids=["path", "later", "rule", "schema", "many"],
)
def test_what_is_wrong_with_a_profile_is_said_with_its_path(
    spec: dict[str, Any], reason: str, said: str
) -> None:
    status = profile_status(stored(**spec), used_by=0, now=NOW)
    assert conditions(status) == {"Valid": "False", "Stalled": "True"}
    valid = status["conditions"][0]
    assert valid["reason"] == reason
    assert said in valid["message"]


def test_a_second_look_says_the_same_and_a_mended_profile_tells_since_when() -> None:
    first = profile_status(stored(constraints={"locked": ["x"]}), used_by=0, now=NOW)
    later = NOW + timedelta(hours=1)
    again = profile_status(stored(status=first, constraints={"locked": ["x"]}), used_by=0, now=later)
    assert again == first
    mended = profile_status(stored(2, status=first), used_by=0, now=later)
    assert {each["lastTransitionTime"] for each in mended["conditions"]} == {"2026-11-21T13:00:00Z"}
    assert mended["observedGeneration"] == 2


def test_who_does_not_know_all_jobs_does_not_count_them() -> None:
    assert "usedBy" not in profile_status(stored(), used_by=None, now=NOW)
