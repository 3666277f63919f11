import asyncio
import json
from typing import Any

import pytest

from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, WORKLOADS, WatchStream
from finetune_operator.reconcile import watch_entries, watch_streams
from finetune_operator.reconcile.watch_cache import ReadJob, WatchCache
from finetune_operator.reconcile.watch_entries import ChildVersion
from tests.unit.reconcile.fakes import child, job, workload
from tests.unit.reconcile.watched import Watched, at

PROCESSED = {"observedGeneration": 1, "conditions": []}
FINISHED = {"observedGeneration": 1, "conditions": [{"type": "Finished", "status": "True"}]}
JOBSET = "demo-prep-1"
POD = "demo-prep-1-cpu-0-0-abcde"


def demo(version: int = 50, status: dict[str, Any] | None = None, uid: str = "uid-of-demo") -> dict[str, Any]:
    return at(version, {**job(), "status": status or {"observedGeneration": -1}}, uid) | {
        "metadata": {**job()["metadata"], "uid": uid, "resourceVersion": str(version)}
    }


def jobset(version: int, name: str = JOBSET, **more: Any) -> dict[str, Any]:
    return at(version, child("JobSet", name)) | more


def pod(version: int, phase: str = "Running", name: str = POD) -> dict[str, Any]:
    return at(version, child("Pod", name)) | {"status": {"phase": phase}}


async def cached(watched: Watched, namespace: str = "team", name: str = "demo") -> ReadJob | None:
    return await watched.cache.job(namespace, name)


async def names(watched: Watched) -> tuple[list[str], list[str]] | None:
    """Returns the names of the cached job's JobSets and pods; None if they must be read live."""
    found = await cached(watched)
    return found and (
        [each.name for each in found.jobsets],
        [each.name for each in found.pods],
    )


def complete(watched: Watched, jobsets: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
    """Takes these children of the job as all that were listed live."""
    found = {JOBSETS: jobsets, PODS: pods}
    children = {kind: [ChildVersion.of(kind, each) for each in objects] for kind, objects in found.items()}
    watched.cache.complete("uid-of-demo", children)


@pytest.fixture
def watched() -> Watched:
    """Has a job with one JobSet and one pod."""
    made = Watched()
    made.listed(JOBS, demo(status=PROCESSED))
    made.listed(JOBSETS, jobset(60))
    made.listed(PODS, pod(61))
    made.listed(PROFILES)
    return made


async def test_a_listed_job_has_its_listed_children(watched: Watched) -> None:
    assert await names(watched) == ([JOBSET], [POD])


async def test_events_change_what_is_cached(watched: Watched) -> None:
    assert watched.event(JOBSETS, "ADDED", jobset(101, "demo-conv-1"))
    assert watched.event(PODS, "MODIFIED", pod(102, "Succeeded"))
    assert watched.event(JOBSETS, "DELETED", jobset(103))
    found = await cached(watched)
    assert found is not None
    assert [each.name for each in found.jobsets] == ["demo-conv-1"]
    assert [each.phase for each in found.pods] == ["Succeeded"]


def test_the_jobs_of_a_namespace_are_those_that_were_written_last(watched: Watched) -> None:
    written = demo(101, {**PROCESSED, "phase": "Running"})
    watched.cache.wrote(JOBS, written)
    assert [found["status"]["phase"] for found in watched.cache.jobs_in("team")] == ["Running"]
    assert list(watched.cache.jobs_in("other")) == []


async def test_only_what_decisions_read_is_kept() -> None:
    watched = Watched()
    watched.all_listed()
    large = demo(101)
    large["metadata"]["managedFields"] = [{"fieldsV1": {"f:x": {}}}]
    watched.event(JOBS, "ADDED", large)
    found = await cached(watched)
    assert found is not None
    assert "managedFields" not in found.job.document["metadata"]
    assert found.job.document["spec"] == job()["spec"]


@pytest.mark.parametrize("missing", [JOBS, JOBSETS, PODS])
async def test_nothing_is_cached_before_each_kind_is_listed(missing: Any) -> None:
    watched = Watched()
    for kind in (JOBS, JOBSETS, PODS):
        if kind != missing:
            watched.listed(kind, *([demo()] if kind == JOBS else []))
    watched.now = watch_streams.LISTING_SECONDS + 1
    assert await names(watched) is None


async def test_a_reader_waits_for_the_first_listing() -> None:
    watched = Watched()
    watched.listed(JOBS, demo())
    watched.listed(JOBSETS)
    waiting = asyncio.create_task(names(watched))
    await asyncio.sleep(0)
    watched.listed(PODS)
    assert await waiting == ([], [])


async def test_a_namespace_that_is_not_watched_is_read_live() -> None:
    watched = Watched(("team",))
    watched.listed(JOBS, demo(), namespace="team")
    watched.listed(JOBSETS, namespace="team")
    watched.listed(PODS, namespace="team")
    assert await names(watched) == ([], [])
    assert await cached(watched, "elsewhere") is None
    assert await WatchCache().job("team", "demo") is None


async def test_what_was_deleted_during_a_gap_is_dropped_by_the_next_listing(watched: Watched) -> None:
    watched.listed(PODS, version=200)
    assert await names(watched) == ([JOBSET], [])
    watched.listed(JOBS, version=201)
    assert await names(watched) is None


async def test_what_the_operator_has_created_after_a_listing_survives_it(watched: Watched) -> None:
    watched.cache.wrote(JOBSETS, jobset(300, "demo-conv-1"))
    watched.listed(JOBSETS, jobset(60), version=200)
    assert await names(watched) == ([JOBSET, "demo-conv-1"], [POD])


async def test_between_two_pages_of_a_later_listing_objects_are_read_live(watched: Watched) -> None:
    watched.listed(PODS, pod(61), pod(62, name=f"{POD}2"), version=200, pages=2)
    assert await names(watched) == ([JOBSET], [POD, f"{POD}2"])
    page = b'{"metadata": {"resourceVersion": "210", "continue": "token"}, "items": []}'
    watched.cache.page("/api/v1/pods", page, first=True)
    watched.now += watch_streams.LISTING_SECONDS + 1
    assert await names(watched) is None


async def test_an_error_of_a_watch_has_objects_read_live_until_the_next_listing(watched: Watched) -> None:
    assert watched.cache.line(
        "/api/v1/pods", b'{"type": "ERROR", "object": {"code": 410, "status": "Failure"}}'
    )
    watched.now += watch_streams.LISTING_SECONDS + 1
    assert await names(watched) is None
    watched.listed(PODS, pod(61), version=200)
    assert await names(watched) == ([JOBSET], [POD])


async def test_an_event_that_is_older_than_the_operators_own_write_changes_nothing(watched: Watched) -> None:
    deleting = jobset(120)
    deleting["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    watched.cache.wrote(JOBSETS, deleting)
    watched.cache.wrote(JOBS, demo(121, {**PROCESSED, "phase": "Running"}))
    watched.event(JOBSETS, "MODIFIED", jobset(110))
    watched.event(JOBS, "MODIFIED", demo(111, PROCESSED))
    found = await cached(watched)
    assert found is not None
    assert found.jobsets[0].deleting
    assert found.job.document["status"]["phase"] == "Running"


async def test_a_decreasing_resource_version_in_a_watch_asks_for_a_listing(watched: Watched) -> None:
    assert watched.bookmark(PODS, 500)
    assert not watched.event(PODS, "MODIFIED", pod(400))
    watched.now += watch_streams.LISTING_SECONDS + 1
    assert await names(watched) is None


async def test_a_listing_of_an_older_version_replaces_everything_after_a_restored_backup(
    watched: Watched,
) -> None:
    watched.bookmark(JOBSETS, 500)
    watched.cache.wrote(JOBSETS, jobset(501, "demo-conv-1"))
    watched.listed(JOBSETS, jobset(40), version=90)
    # Which children exist is known after the next live read.
    assert await names(watched) is None
    watched.cache.adopt(demo(status=PROCESSED))
    complete(watched, [jobset(40)], [pod(61)])
    assert await names(watched) == ([JOBSET], [POD])


async def test_without_a_sign_of_a_watch_its_objects_are_read_live(watched: Watched) -> None:
    watched.now = watch_streams.OLDEST_SECONDS + 1
    for kind in (JOBS, JOBSETS):
        watched.bookmark(kind, 200)
    assert await names(watched) is None
    watched.bookmark(PODS, 200)
    assert await names(watched) is not None


async def test_a_finished_job_and_its_children_are_not_kept(watched: Watched) -> None:
    watched.event(JOBS, "MODIFIED", demo(110, FINISHED))
    assert await names(watched) is None
    watched.event(PODS, "MODIFIED", pod(111))
    # A retry: nothing is known of the children until they are read live.
    watched.event(JOBS, "MODIFIED", demo(112, PROCESSED))
    assert await names(watched) is None
    assert watched.bytes_of("team") == watched.bytes_of()


async def test_nothing_of_a_namespace_is_counted_once_its_jobs_have_finished(watched: Watched) -> None:
    watched.event(JOBS, "MODIFIED", demo(110, FINISHED))
    assert watched.bytes_of() == 0


async def test_a_new_job_has_no_children_until_their_events_arrive() -> None:
    watched = Watched()
    watched.all_listed()
    watched.event(JOBS, "ADDED", demo(101))
    assert await names(watched) == ([], [])
    watched.cache.wrote(JOBSETS, jobset(102))
    assert await names(watched) == ([JOBSET], [])


async def test_a_job_that_others_have_processed_is_read_live_once() -> None:
    watched = Watched()
    watched.all_listed()
    watched.event(JOBS, "ADDED", demo(101, PROCESSED))
    assert await names(watched) is None
    watched.cache.adopt(demo(101, PROCESSED))
    # An event between the live listing and its end.
    watched.event(PODS, "DELETED", pod(103))
    watched.event(PODS, "ADDED", pod(104, name=f"{POD}2"))
    complete(watched, [jobset(60)], [pod(61)])
    assert await names(watched) == ([JOBSET], [f"{POD}2"])


async def test_a_distrusted_job_is_read_live_once(watched: Watched) -> None:
    watched.cache.distrust("uid-of-demo")
    assert await names(watched) is None
    watched.cache.adopt(demo(status=PROCESSED))
    complete(watched, [], [])
    assert await names(watched) == ([], [])


async def test_a_job_that_was_deleted_and_created_again_has_its_own_children(watched: Watched) -> None:
    watched.event(JOBS, "DELETED", demo(109))
    watched.event(JOBS, "ADDED", demo(110, uid="uid-of-another"))
    assert await names(watched) == ([], [])
    watched.event(JOBS, "DELETED", demo(111, uid="uid-of-another"))
    assert await names(watched) is None


@pytest.mark.parametrize("flaw", ["no owner", "another job's label", "another name"])
async def test_objects_that_cannot_be_the_jobs_are_not_kept(flaw: str, watched: Watched) -> None:
    forged = jobset(110, "demo-conv-1")
    if flaw == "no owner":
        forged["metadata"]["ownerReferences"] = []
    elif flaw == "another job's label":
        forged["metadata"]["labels"]["tpu-finetune.dev/job-uid"] = "uid-of-nothing"
    else:
        forged["metadata"]["name"] = "anything"
    watched.event(JOBSETS, "ADDED", forged)
    assert await names(watched) == ([JOBSET], [POD])


async def test_a_namespace_with_too_much_is_read_live_and_others_are_not(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = demo(101, uid="uid-of-other")
    other["metadata"]["namespace"] = "other"
    watched.event(JOBS, "ADDED", other)
    monkeypatch.setattr(watch_entries, "TOTAL_BYTES", watched.bytes_of() + 10)
    theirs = jobset(102)
    theirs["metadata"] |= {"namespace": "other", "uid": "uid-of-theirs"}
    theirs["metadata"]["labels"] |= {"tpu-finetune.dev/job-uid": "uid-of-other"}
    theirs["metadata"]["ownerReferences"][0] |= {"uid": "uid-of-other"}
    watched.event(JOBSETS, "ADDED", theirs)
    assert await names(watched) is None
    found = await cached(watched, "other")
    assert found is not None
    assert len(found.jobsets) == 1


async def test_profiles_are_parsed_whole_and_not_cached(watched: Watched) -> None:
    profile = {"metadata": {"name": "local", "uid": "uid-p", "resourceVersion": "9"}, "spec": {"any": [1]}}
    before = watched.bytes_of()
    watched.listed(PROFILES, profile)
    event = {"type": "MODIFIED", "object": at(101, profile)}
    line = watched.cache.line(WatchStream(PROFILES, None).path, json.dumps(event).encode())
    assert line is not None
    assert line.object == event["object"]
    assert watched.bytes_of() == before


async def test_an_event_that_cannot_be_parsed_asks_for_a_listing(watched: Watched) -> None:
    assert not watched.cache.line("/api/v1/pods", b'{"type": "ADDED", "object": {"metadata": {}}}')
    watched.now += watch_streams.LISTING_SECONDS + 1
    assert await names(watched) is None


@pytest.mark.parametrize("kind", [JOBSETS, PODS])
async def test_an_object_of_another_namespace_is_no_child(kind: Any, watched: Watched) -> None:
    """Another tenant's, with the label, the owner and the name of a child."""
    forged = jobset(110, "demo-conv-1") if kind == JOBSETS else pod(110, name=f"{POD}2")
    forged["metadata"]["namespace"] = "elsewhere"
    watched.event(kind, "ADDED", forged)
    assert await names(watched) == ([JOBSET], [POD])
    assert watched.cache.owner_of(kind, forged) is None


@pytest.mark.parametrize("change", ["owner", "label"])
async def test_an_object_that_no_longer_belongs_to_the_job_is_dropped(change: str, watched: Watched) -> None:
    changed = jobset(110)
    if change == "owner":
        changed["metadata"]["ownerReferences"] = []
    else:
        changed["metadata"]["labels"].pop("tpu-finetune.dev/stage")
    watched.event(JOBSETS, "MODIFIED", changed)
    assert await names(watched) == ([], [POD])


@pytest.mark.parametrize("uid", ["uid-of-nothing", "uid-of-other"])
async def test_an_object_that_names_another_job_is_dropped_from_the_first(uid: str, watched: Watched) -> None:
    other = demo(109, uid="uid-of-other")
    other["metadata"] |= {"name": "other"}
    watched.event(JOBS, "ADDED", other)
    changed = pod(110)
    changed["metadata"]["labels"]["tpu-finetune.dev/job-uid"] = uid
    watched.event(PODS, "MODIFIED", changed)
    assert await names(watched) == ([JOBSET], [])


async def test_a_response_that_is_older_than_a_deletion_brings_nothing_back(watched: Watched) -> None:
    created, written = jobset(110, "demo-conv-1"), demo(112, PROCESSED)
    watched.event(JOBSETS, "ADDED", created)
    watched.event(JOBSETS, "DELETED", at(111, created))
    watched.cache.wrote(JOBSETS, created)
    assert await names(watched) == ([JOBSET], [POD])
    watched.event(JOBS, "MODIFIED", written)
    watched.event(JOBS, "DELETED", demo(113, PROCESSED))
    watched.cache.wrote(JOBS, written)
    watched.cache.adopt(written)
    complete(watched, [jobset(60)], [])
    assert await names(watched) is None
    assert watched.bytes_of() == 0


async def test_what_was_read_before_a_listing_does_not_complete_a_job(watched: Watched) -> None:
    """The pod is deleted after it was read, and the listing, which lacks it, ends before the answer is used."""
    watched.cache.distrust("uid-of-demo")
    watched.cache.adopt(demo(status=PROCESSED))
    watched.listed(PODS, version=200)
    complete(watched, [jobset(60)], [pod(61)])
    assert await names(watched) is None
    watched.cache.adopt(demo(status=PROCESSED))
    complete(watched, [jobset(60)], [])
    assert await names(watched) == ([JOBSET], [])


async def test_children_that_are_read_between_two_pages_survive_the_end_of_the_listing(
    watched: Watched,
) -> None:
    watched.event(JOBS, "MODIFIED", demo(110, FINISHED))
    page = {"metadata": {"resourceVersion": "120"}, "items": [pod(61)]}
    first = {**page, "metadata": {**page["metadata"], "continue": "token"}}
    watched.cache.page("/api/v1/pods", json.dumps(first).encode(), first=True)
    # A retry: the job is read live.
    watched.event(JOBS, "MODIFIED", demo(125, PROCESSED))
    watched.cache.adopt(demo(125, PROCESSED))
    complete(watched, [jobset(60)], [pod(61)])
    watched.cache.page("/api/v1/pods", json.dumps({**page, "items": []}).encode(), first=False)
    assert await names(watched) in (None, ([JOBSET], [POD]))


async def test_a_distrusted_job_is_not_completed_by_what_was_read_before(watched: Watched) -> None:
    watched.cache.distrust("uid-of-demo")
    watched.cache.adopt(demo(status=PROCESSED))
    watched.cache.distrust("uid-of-demo")
    complete(watched, [jobset(60)], [])
    assert await names(watched) is None


@pytest.mark.parametrize("distrusted", [False, True])
async def test_late_events_of_a_child_that_a_live_read_lacked_bring_nothing_back(
    distrusted: bool, watched: Watched
) -> None:
    """The watch is behind. Otherwise the next decision would rest on objects that are older than those of the last."""
    if distrusted:
        watched.cache.distrust("uid-of-demo")
    watched.cache.adopt(demo(150, PROCESSED))
    watched.event(PODS, "MODIFIED", pod(119))
    complete(watched, [jobset(140)], [])
    watched.event(PODS, "MODIFIED", pod(120))
    assert await names(watched) == ([JOBSET], [])
    (entry,) = watched.cache._entries.within(None)
    watched.event(PODS, "DELETED", pod(121))
    assert not entry.gone


async def test_after_a_restored_backup_children_that_were_gone_exist_again(watched: Watched) -> None:
    watched.cache.adopt(demo(50, PROCESSED))
    complete(watched, [jobset(60)], [])
    assert await names(watched) == ([JOBSET], [])
    watched.listed(PODS, pod(61), version=90)
    watched.cache.adopt(demo(50, PROCESSED))
    complete(watched, [jobset(60)], [pod(61)])
    assert await names(watched) == ([JOBSET], [POD])


async def workloads(watched: Watched) -> list[str] | None:
    found = await cached(watched)
    assert found is not None
    return None if found.workloads is None else [each.name for each in found.workloads]


def queued(version: int, jobset: str = JOBSET, uid: str = "uid-of-jobset") -> dict[str, Any]:
    return at(version, workload(jobset, uid))


async def test_workloads_are_those_of_the_jobsets_names_and_may_arrive_first() -> None:
    watched = Watched(kueue=True)
    watched.all_listed()
    watched.event(JOBS, "ADDED", demo(101))
    assert await workloads(watched) == []
    watched.event(WORKLOADS, "ADDED", queued(102))
    for other in ("other-train-1", "demo"):
        watched.event(WORKLOADS, "ADDED", queued(103, other))
    elsewhere = queued(104, uid="uid-elsewhere")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    watched.event(WORKLOADS, "ADDED", elsewhere)
    assert await workloads(watched) == [f"jobset-{JOBSET}-uid-of-jobset"]
    watched.event(WORKLOADS, "DELETED", queued(105))
    assert await workloads(watched) == []


async def test_workloads_that_are_not_watched_or_not_heard_of_are_read_live(watched: Watched) -> None:
    assert await workloads(watched) is None, "Kueue was not installed when the watches began"
    kueue = Watched(kueue=True)
    kueue.all_listed()
    kueue.event(JOBS, "ADDED", demo(101))
    kueue.now = watch_streams.OLDEST_SECONDS + 1
    for kind in (JOBS, JOBSETS, PODS):
        kueue.bookmark(kind, 200)
    assert await workloads(kueue) is None
    kueue.bookmark(WORKLOADS, 200)
    assert await workloads(kueue) == []


async def test_a_job_with_very_many_children_is_read_live_page_by_page(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_entries, "JOB_BYTES", watched.bytes_of() + 20_000)
    part = {"name": "x" * 60, "template": {"spec": {"template": {"spec": {"containers": [{}] * 32}}}}}
    for number in range(2, 10):
        large = jobset(100 + number, f"demo-train-{number}", spec={"replicatedJobs": [part] * 32})
        watched.event(JOBSETS, "ADDED", large)
    assert await names(watched) is None
    watched.event(JOBS, "ADDED", demo(400, uid="uid-of-another") | {"metadata": other_job(400)})
    found = await cached(watched, "other", "job-uid-of-another")
    assert found is not None


async def test_jobs_count_to_the_limit_too(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = watched.bytes_of() + 10_000
    monkeypatch.setattr(watch_entries, "TOTAL_BYTES", limit)
    for number in range(20):
        large = demo(101 + number, uid=f"uid-{number}") | {"spec": {"datasets": ["x" * 2_000]}}
        large["metadata"] = other_job(101 + number, uid=f"uid-{number}")
        watched.event(JOBS, "ADDED", large)
    assert watched.bytes_of() <= limit
    assert await names(watched) == ([JOBSET], [POD])


def test_one_large_job_replaces_many_small_ones_of_the_namespace_that_takes_most(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise namespaces with large jobs take more than the limit beside one with many small jobs."""

    def put(namespace: str, number: int, size: int) -> None:
        metadata = {"namespace": namespace, "name": f"job-{number}"}
        made = {**demo(1), "metadata": metadata, "spec": {"datasets": ["x" * size]}}
        watched.event(JOBS, "ADDED", at(200 + number, made, f"uid-{number}"))

    limit = watched.bytes_of() + 50_000
    monkeypatch.setattr(watch_entries, "TOTAL_BYTES", limit)
    for number in range(100):
        put("small", number, 100)
    for number in range(100, 120):
        put(f"large-{number}", number, 10_000)
    assert watched.bytes_of() <= limit


async def test_after_a_lost_event_a_live_read_replaces_the_cached_job(watched: Watched) -> None:
    suspended = demo(110, PROCESSED) | {"spec": {"suspend": True}}
    # The event is lost, but not what follows it.
    watched.bookmark(JOBS, 120)
    watched.cache.distrust("uid-of-demo")
    watched.cache.adopt(suspended)
    complete(watched, [jobset(60)], [pod(61)])
    found = await cached(watched)
    assert found is not None
    assert found.job.document["spec"] == {"suspend": True}


async def test_deletions_are_remembered_only_while_a_job_is_read_live(watched: Watched) -> None:
    """A decision on cached children was confirmed live; afterwards the tenant creates and deletes pods."""
    watched.cache.adopt(demo(50, PROCESSED))
    complete(watched, [jobset(60)], [pod(61)])
    for number in range(100):
        watched.event(PODS, "DELETED", pod(101 + number, name=f"{POD}{number}"))
    (entry,) = watched.cache._entries.within(None)
    assert not entry.deleted


def other_job(version: int, uid: str = "uid-of-another") -> dict[str, Any]:
    """Returns the metadata of a job in another namespace."""
    return {"namespace": "other", "name": f"job-{uid}", "uid": uid, "resourceVersion": str(version)}


async def test_a_deletion_without_an_event_is_reported_with_the_job_as_it_was_last_observed(
    watched: Watched,
) -> None:
    watched.event(JOBS, "MODIFIED", demo(110, {"observedGeneration": 1, "summary": "the last"}))
    watched.listed(JOBS, version=120)
    assert [each["status"]["summary"] for each in watched.missed] == ["the last"]


async def test_a_job_that_has_the_name_of_a_deleted_one_reports_that_deletion(watched: Watched) -> None:
    watched.listed(JOBS, demo(110, uid="another"), version=120)
    assert [each["metadata"]["uid"] for each in watched.missed] == ["uid-of-demo"]


async def test_a_deletion_with_an_event_is_not_reported_twice(watched: Watched) -> None:
    watched.event(JOBS, "DELETED", demo(110, PROCESSED))
    watched.listed(JOBS, version=120)
    assert watched.missed == []
