"""Which profile a job gets that names none."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.api import Reason
from finetune_operator.planning import Refused, admit, choose_profile, serves
from tests.unit.lifecycle.world import job, profile

A, B, X = "own", "shared", "of-others"


def choice(*profiles: Any) -> str:
    return str(choose_profile(job(), profiles)["metadata"]["name"])


def strict(name: str, *namespaces: str, default: bool = False) -> Any:
    return profile(name, default=default, namespaces=list(namespaces), constraints={"mode": "Strict"})


@pytest.mark.parametrize(
    ("profiles", "chosen"),
    [
        ([strict(A, "team-a")], A),
        ([strict(A, "team-a"), strict(X, "team-b")], A),
        ([strict(A, "team-a"), strict(X, "team-b", default=True)], A),
        ([strict(A, "team-a"), strict(X, default=True)], A),
        ([strict(A, "team-a"), strict(B, "*", default=True)], B),
        ([strict(A, "team-a", default=True), strict(B, "*")], A),
        ([strict(A, "team-a", default=True), strict(X, "team-b", default=True)], A),
        ([profile(A, default=False), strict(X, "team-b")], A),
    ],
)
def test_the_default_or_the_only_one_of_those_that_serve_the_namespace(
    profiles: Sequence[Any], chosen: str
) -> None:
    assert choice(*profiles) == choice(*reversed(profiles)) == chosen


@pytest.mark.parametrize(
    ("profiles", "reason", "words"),
    [
        (
            [strict(B, "*"), strict(A, "team-a"), strict(X, "team-b", default=True)],
            Reason.NO_DEFAULT_PROFILE,
            (
                "2 FineTuneProfiles serve namespace team-a (own, shared)",
                "Set spec.profileRef.name",
                "annotate one",
            ),
        ),
        (
            [strict(B, "*", default=True), strict(A, "team-a", default=True)],
            Reason.AMBIGUOUS_DEFAULT_PROFILE,
            ("2 FineTuneProfiles that serve namespace team-a", "own, shared", "from all but one"),
        ),
        (
            [strict(X, "team-b", default=True)],
            Reason.NO_DEFAULT_PROFILE,
            (
                "no FineTuneProfile serves namespace team-a: add team-a to spec.namespaces",
                "Existing: of-others.",
            ),
        ),
        ([], Reason.NO_DEFAULT_PROFILE, ("no FineTuneProfile serves namespace team-a", "Existing: none.")),
    ],
)
def test_a_refusal_names_the_candidates_and_the_fix(
    profiles: Sequence[Any], reason: Reason, words: Sequence[str]
) -> None:
    with pytest.raises(Refused) as caught:
        choice(*profiles)
    assert caught.value.reason is reason
    for each in words:
        assert each in caught.value.message


@pytest.mark.parametrize("default", [True, False])
def test_a_job_that_has_lost_its_plan_keeps_the_profile_of_its_status(default: bool) -> None:
    admitted = job()
    admitted["status"]["resolved"] = {"profile": {"name": A}}
    profiles = [strict(A, "team-a", default=default), strict(B, "*", default=True)]
    assert choose_profile(admitted, profiles) is profiles[0]
    # The policy of the profile then says which namespaces it serves.
    profiles[0] = strict(A, "team-b", default=default)
    with pytest.raises(Refused, match='profile "own" serves the namespaces team-b, not team-a') as caught:
        admit(admitted, profiles)
    assert caught.value.reason is Reason.PROFILE_NOT_ALLOWED


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


_PROFILES = st.lists(
    st.builds(
        lambda namespaces, default, mode: (namespaces, default, mode),
        st.lists(st.sampled_from(["team-a", "team-b", "*"]), unique=True),
        st.booleans(),
        st.sampled_from(["Strict", "Open"]),
    ),
    max_size=4,
)


@given(_PROFILES)
def test_a_job_never_gets_a_profile_that_does_not_serve_its_namespace(drawn: list[Any]) -> None:
    profiles = [
        profile(f"p{number}", default=default, namespaces=namespaces, constraints={"mode": mode})
        for number, (namespaces, default, mode) in enumerate(drawn)
    ]
    try:
        chosen = choose_profile(job(), profiles)
    except Refused:
        serving = [each for each in profiles if serves(each, "team-a")]
        assert len(serving) != 1
    else:
        assert serves(chosen, "team-a")
