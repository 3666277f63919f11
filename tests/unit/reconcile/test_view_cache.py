"""When a run folder is read again, and what is kept of it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import AttemptFiles, ReadFailure, RunFolderView, pace
from finetune_operator.reconcile.view_cache import (
    LISTING_SECONDS,
    VIEW_BYTES,
    ClusterState,
    Due,
    Reading,
    ViewCache,
    due,
)
from tests.unit.reconcile.fakes import NOW, child, job

TRAIN, CONVERT = AttemptKey(Stage.TRAIN, 1), AttemptKey(Stage.CONVERT, 1)
JOB = job()


def jobset(name: str = "demo-train-1", **changes: Any) -> JobSet:
    return replace(JobSet.parse(child("JobSet", name)), uid=f"uid-of-{name}", **changes)


def pod(name: str = "demo-train-1-slice-0-0-abcde", **status: Any) -> Pod:
    return Pod.parse({**child("Pod", name), "status": {"phase": "Running", **status}})


def container(**status: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "trainer", "restartCount": 0, "state": {}, **status}]}


def state(*children: JobSet | Pod, generation: int = 1) -> ClusterState:
    made = {**JOB, "metadata": {**JOB["metadata"], "generation": generation}}
    jobsets = [each for each in children if isinstance(each, JobSet)]
    pods = [each for each in children if isinstance(each, Pod)]
    return ClusterState.of(Job.parse(made), jobsets, pods)


def reading(at: ClusterState, *, started: bool = True, size: int = 0, **faults: Any) -> Reading:
    faults.setdefault("attempts", dict.fromkeys((TRAIN, CONVERT), AttemptFiles()) if started else {})
    view = RunFolderView(**faults)
    return Reading(view=view, state=at, listed=0.0, progress_read=0.0, json_bytes=size)


ENDED = JobSet.parse(
    {**child("JobSet", "demo-train-1"), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
).conditions
RUNNING = state(jobset(), pod())


@pytest.mark.parametrize(
    ("now", "continues"),
    [
        (state(jobset(), pod()), True),
        (state(jobset(), pod(), pod("demo-train-1-slice-0-1-fghij")), True),
        (state(jobset(), pod(startTime="2026-11-21T12:00:00Z", **container(ready=True))), True),
        (state(jobset(), pod(**container(state={"terminated": {"exitCode": 0}}))), False),
        (state(jobset(), pod(**container(restartCount=1))), False),
        (state(jobset(), pod(phase="Succeeded")), False),
        (state(jobset(), pod(phase="Failed")), False),
        (state(jobset()), False),
        (state(pod()), False),
        (state(jobset(), pod("demo-train-1-slice-0-0-zzzzz")), False),
        (state(jobset(conditions=ENDED), pod()), False),
        (state(jobset(restarts=1), pod()), False),
        (state(jobset(suspended=True), pod()), False),
        (state(jobset(deletion_timestamp=NOW), pod()), False),
        (state(replace(jobset(), uid="another"), pod()), False),
        (state(jobset(), pod(), jobset("demo-conv-1", conditions=ENDED)), False),
        (state(jobset(), pod(), generation=2), False),
    ],
)
def test_everything_is_read_if_something_has_ended_restarted_vanished_or_the_spec_was_edited(
    now: ClusterState, *, continues: bool
) -> None:
    assert now.continues(RUNNING) is continues
    assert (due(reading(RUNNING), now, now=0.0, pace=10.0) is not Due.EVERYTHING) is continues


WAITING, QUEUED, CONVERTING = state(jobset()), state(jobset(suspended=True)), state(jobset("demo-conv-1"))
RESTARTED = state(jobset("demo-conv-1", restarts=1))


@pytest.mark.parametrize(
    ("at", "started", "age", "jobs_pace", "expected"),
    [
        (RUNNING, True, 9.9, 10.0, Due.NOTHING),
        (RUNNING, True, 10.0, 10.0, Due.PROGRESS),
        (RUNNING, True, 50.0, 10.0, Due.PROGRESS),
        (RUNNING, True, 50.1, 10.0, Due.EVERYTHING),
        (RUNNING, True, 31.0, 31.0, Due.EVERYTHING),
        (RUNNING, True, 249.0, 250.0, Due.NOTHING),
        (RUNNING, True, 250.0, 250.0, Due.EVERYTHING),
        # Only a listing shows that a trainer has started.
        (WAITING, False, 9.9, 10.0, Due.NOTHING),
        (WAITING, False, 10.0, 10.0, Due.EVERYTHING),
        # What is suspended reports no progress.
        (QUEUED, False, 59.9, 10.0, Due.NOTHING),
        (QUEUED, False, 60.0, 10.0, Due.EVERYTHING),
        (QUEUED, False, 99.0, 100.0, Due.NOTHING),
        (CONVERTING, False, 9.9, 10.0, Due.NOTHING),
        (CONVERTING, False, 10.0, 10.0, Due.EVERYTHING),
        (CONVERTING, True, 10.0, 10.0, Due.PROGRESS),
        (CONVERTING, True, 59.9, 10.0, Due.PROGRESS),
        (CONVERTING, True, 60.0, 10.0, Due.EVERYTHING),
        (CONVERTING, True, 99.0, 100.0, Due.NOTHING),
        (CONVERTING, True, 199.0, 100.0, Due.PROGRESS),
        (CONVERTING, True, 200.0, 100.0, Due.EVERYTHING),
        # JobSet has started the stage again, and its trainer has not begun yet.
        (RESTARTED, True, 10.0, 10.0, Due.EVERYTHING),
    ],
)
def test_progress_is_read_at_the_pace_and_the_rest_each_minute(
    at: ClusterState, started: bool, age: float, jobs_pace: float, expected: Due
) -> None:
    assert due(reading(at, started=started), at, now=age, pace=jobs_pace) is expected


#: Requests of a reading: the progress alone, and everything, which includes a manifest in the cache during Convert.
TRAINING, STARTING = {Due.PROGRESS: 1, Due.EVERYTHING: 2}, {Due.PROGRESS: 2, Due.EVERYTHING: 2}
CONVERSION = {Due.PROGRESS: 1, Due.EVERYTHING: 3}


def requests(
    at: ClusterState, times: Iterator[float], jobs_pace: float, cost: Mapping[Due, int] = TRAINING
) -> tuple[int, float]:
    """Returns the requests of an undisturbed stage that is reconciled at these times, and the oldest view used."""
    last, made, oldest = reading(at), 0, 0.0
    for now in times:
        what = due(last, at, now=now, pace=jobs_pace)
        made += cost.get(what, 0)
        if what is not Due.NOTHING:
            listed = now if what is Due.EVERYTHING else last.listed
            last = replace(last, listed=listed, progress_read=now)
        oldest = max(oldest, now - last.listed)
    return made, oldest


@pytest.mark.parametrize(
    ("at", "cost"),
    [(RUNNING, TRAINING), (RUNNING, STARTING), (CONVERTING, CONVERSION)],
    ids=["training", "before the first step", "converting"],
)
@given(jobs=st.integers(1, 10_000))
def test_the_progress_of_all_jobs_costs_at_most_fifty_requests_per_second(
    at: ClusterState, cost: Mapping[Due, int], jobs: int
) -> None:
    seconds, each = 20_000, pace(jobs)
    times = (number * each for number in range(1, int(seconds / each)))
    made, _ = requests(at, times, each, cost)
    assert jobs * made / seconds <= 50


@given(jobs=st.integers(1, 20_000), gaps=st.lists(st.floats(0.0, 30.0), min_size=200, max_size=200))
def test_events_cost_nothing_and_no_view_is_older_than_a_minute_or_the_pace(
    jobs: int, gaps: list[float]
) -> None:
    each, now = pace(jobs), 0.0
    times = [now := now + gap for gap in gaps]
    made, oldest = requests(RUNNING, iter(times), each)
    assert made <= 2 * (now / each)
    assert oldest < max(LISTING_SECONDS, each)


FAULT = ReadFailure(reason=Reason.STORE_UNAVAILABLE, message="away")


@pytest.mark.parametrize(
    "fault",
    [
        {"unreadable": FAULT},
        {"progress_unknown": FAULT},
        {"warnings": ("a malformed failure record",)},
        {"convert_manifest_fault": "it is too large"},
        {"attempts": {TRAIN: AttemptFiles(malformed="it is no JSON")}},
        {"attempts": {TRAIN: AttemptFiles(newer="it has version 3.0")}},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_view_with_a_fault_is_not_reused(fault: dict[str, Any]) -> None:
    views = ViewCache()
    views.keep("team", "demo", reading(RUNNING))
    views.keep("team", "demo", replace(reading(RUNNING), view=RunFolderView(**fault)))
    assert views.get("demo") is None
    assert views.size == 0


def test_views_are_bounded_in_total_and_each() -> None:
    small = reading(RUNNING, size=1000)
    views = ViewCache(limit_bytes=2 * small.size)
    for name in "abc":
        views.keep("team", name, small)
    assert [views.get(name) is not None for name in "abc"] == [True, True, False]
    views.forget("a")
    views.keep("team", "c", small)
    assert views.get("c") == small
    views.keep("team", "c", reading(RUNNING, size=VIEW_BYTES))
    assert views.get("c") is None
    assert views.size == small.size


def test_foreign_attempts_count() -> None:
    """A tenant may create thousands of folders beside those of the job."""
    many = frozenset(AttemptKey(Stage.EVALUATE, number) for number in range(1000))
    views = ViewCache()
    views.keep("team", "demo", replace(reading(RUNNING), view=RunFolderView(foreign_attempts=many)))
    assert views.get("demo") is None


def test_the_tenant_that_has_most_gives_way_to_others_down_to_their_share() -> None:
    small = reading(RUNNING, size=1000)
    views = ViewCache(limit_bytes=6 * small.size)
    for number in range(8):
        views.keep("large", f"large-{number}", small)
    for number in range(8):
        views.keep("small", f"small-{number}", small)
    kept = [job for job in ("large", "small") for number in range(8) if views.get(f"{job}-{number}")]
    assert kept == 3 * ["large"] + 3 * ["small"]
    views.keep("large", "large-7", small)
    assert views.get("large-7") is None


JOBS_OF_TENANTS = st.sampled_from([("t", "a"), ("t", "b"), ("u", "c"), ("v", "d")])


@given(st.lists(st.tuples(JOBS_OF_TENANTS, st.integers(0, 400), st.booleans()), max_size=40))
def test_the_size_is_that_of_what_is_kept(steps: list[tuple[tuple[str, str], int, bool]]) -> None:
    views = ViewCache(limit_bytes=10_000)
    for (tenant, name), size, keep in steps:
        if keep:
            views.keep(tenant, name, reading(RUNNING, size=size))
        else:
            views.forget(name)
        kept = [found.size for each in "abcd" if (found := views.get(each))]
        assert views.size == sum(kept) <= 10_000
