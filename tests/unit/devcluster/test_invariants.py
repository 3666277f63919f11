"""The judge of integration tests: finds what was there twice at any moment."""

from collections.abc import Sequence
from typing import Any

import pytest

from devcluster.kube import WatchEvent
from tests.integration.invariants import assert_one_live


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": f"pod-{uid}"}, "status": {"phase": phase}}


def lives(found: dict[str, Any]) -> bool:
    return bool(found["status"]["phase"] == "Running")


OLD, NEW = WatchEvent("ADDED", [pod("old")]), WatchEvent("ADDED", [pod("new")])


@pytest.mark.parametrize(
    ("told", "doubled"),
    [
        ([OLD, WatchEvent("MODIFIED", [pod("old", "Failed")]), NEW], False),
        ([OLD, WatchEvent("DELETED", [pod("old")]), NEW], False),
        ([OLD, WatchEvent("SYNCED", []), NEW], False),
        ([OLD, NEW, WatchEvent("DELETED", [pod("old")])], True),
        ([WatchEvent("SYNCED", [pod("old"), pod("new")])], True),
    ],
)
def test_two_that_live_at_once_are_found(told: Sequence[WatchEvent], doubled: bool) -> None:
    if doubled:
        with pytest.raises(AssertionError, match=r"pod-old.*pod-new"):
            assert_one_live(told, which=lambda _: "host 0", live=lives)
    else:
        assert_one_live(told, which=lambda _: "host 0", live=lives)
