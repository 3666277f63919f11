"""The judge of integration tests: finds what was there twice at any moment."""

from collections.abc import Sequence
from typing import Any

import pytest

from devcluster.kube import Event
from tests.integration.invariants import judge


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": f"pod-{uid}"}, "status": {"phase": phase}}


def lives(found: dict[str, Any]) -> bool:
    return bool(found["status"]["phase"] == "Running")


OLD, NEW = Event("ADDED", [pod("old")]), Event("ADDED", [pod("new")])


@pytest.mark.parametrize(
    ("told", "doubled"),
    [
        ([OLD, Event("MODIFIED", [pod("old", "Failed")]), NEW], False),
        ([OLD, Event("DELETED", [pod("old")]), NEW], False),
        ([OLD, Event("SYNCED", []), NEW], False),
        ([OLD, NEW, Event("DELETED", [pod("old")])], True),
        ([Event("SYNCED", [pod("old"), pod("new")])], True),
    ],
)
def test_two_that_live_at_once_are_found(told: Sequence[Event], doubled: bool) -> None:
    if doubled:
        with pytest.raises(AssertionError, match=r"pod-old.*pod-new"):
            judge(told, which=lambda _: "host 0", live=lives)
    else:
        judge(told, which=lambda _: "host 0", live=lives)
