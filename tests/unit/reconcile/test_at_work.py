"""A later leader knows which jobs were on chips in a namespace that it may not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from finetune_operator.cluster.port import CONFIG_MAPS, JOBS, Rejected, Unavailable
from finetune_operator.ledger.job_usage import counted_on, job_usage
from finetune_operator.lifecycle.accounting.records import closing_records
from finetune_operator.lifecycle.job import Job
from finetune_operator.reconcile import at_work as module
from finetune_operator.reconcile.at_work import AtWork
from tests.unit.lifecycle.test_lost_namespace import CHIPS, stored, training
from tests.unit.reconcile.fakes import OWN, FakeCluster
from tests.unit.reconcile.watched import Watched, at

NAME = "finetune-operator-at-work"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_PAUSE", "_ERROR_PAUSE"):
        monkeypatch.setattr(module, pause, 0.001)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture(scope="module")
def running() -> dict[str, Any]:
    """A job that trains."""
    return json.loads(json.dumps(stored(training()[0])))  # type: ignore[no-any-return]


def named(job: dict[str, Any], uid: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {**job["metadata"], "uid": uid}, "status": {**job["status"], **status}, "spec": {}}


@asynccontextmanager
async def leader(cluster: FakeCluster) -> AsyncIterator[tuple[AtWork, list[dict[str, Any]]]]:
    """A leader, and the reports of earlier ones that it was given."""
    made, taken = AtWork(cluster, OWN, NAME), list[dict[str, Any]]()
    working = asyncio.create_task(made.run(taken.append))  # type: ignore[arg-type]
    try:
        yield made, taken
    finally:
        working.cancel()


async def until(wanted: Any) -> None:
    async with asyncio.timeout(5):
        while not wanted():  # noqa: ASYNC110 - the fake cluster has no events
            await asyncio.sleep(0.001)


def uids(cluster: FakeCluster) -> list[str]:
    found = cluster.of(CONFIG_MAPS)
    return [each["metadata"]["uid"] for each in json.loads(found[0]["data"]["jobs.json"])] if found else []


async def test_the_next_leader_can_record_a_job_that_was_deleted_unseen(
    cluster: FakeCluster, running: dict[str, Any]
) -> None:
    async with leader(cluster) as (one, none):
        one.job(running)
        await until(lambda: uids(cluster))
    assert none == []
    async with leader(cluster) as (_, taken):
        await until(lambda: taken)
    (report,) = taken
    usage = job_usage(report)
    assert usage == job_usage(running)
    assert usage is not None
    assert usage.chips == CHIPS
    later = usage.as_of + timedelta(hours=100)
    recorded = [closing_records(Job.parse(counted_on(each, later)), later) for each in (report, running)]
    assert recorded[0] == recorded[1]
    assert sum(each.chip_hours for each in recorded[0]) >= 100 * CHIPS


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_reported_job_is_found_deleted_when_its_namespace_is_back(
    cluster: FakeCluster, running: dict[str, Any], deleted: bool
) -> None:
    running = at(50, running)
    async with leader(cluster) as (one, _):
        one.job(running)
        await until(lambda: uids(cluster))
    watched = Watched(["team-a", "team-b"])
    async with leader(cluster) as (_, taken):
        await until(lambda: taken)
    watched.cache.adopt(taken[0])
    watched.listed(JOBS, namespace="team-b")
    assert watched.missed == []
    watched.listed(JOBS, *([] if deleted else [at(90, running)]), namespace="team-a")
    assert [job_usage(each) for each in watched.missed] == [job_usage(running)] * deleted


async def test_only_jobs_on_chips_are_kept(cluster: FakeCluster, running: dict[str, Any]) -> None:
    async with leader(cluster) as (one, _):
        for uid in ("a", "b", "c"):
            one.job(named(running, uid))
        await until(lambda: len(uids(cluster)) == 3)
        waiting = [{"type": "Running", "status": "False"}]
        one.job(named(running, "a", conditions=waiting))
        one.job(named(running, "d", conditions=waiting))
        one.gone("b")
        one.gone("never seen")
        await until(lambda: uids(cluster) == ["c"])


async def test_a_report_is_written_again_when_the_ledger_contains_more(
    cluster: FakeCluster, running: dict[str, Any]
) -> None:
    """Else what the ledger contains would count again. What the same chips use meanwhile follows from the time."""
    async with leader(cluster) as (one, _):
        one.job(running)
        await until(lambda: uids(cluster))
        writes = len(cluster.writes())
        one.job({**running, "status": {**running["status"], "cost": {"chipHours": "1"}}})
        assert not one._changed.is_set()
        one.job({**running, "status": {**running["status"], "ledger": {"chipHours": "1"}}})
        await until(lambda: len(cluster.writes()) > writes)
    (report,) = json.loads(cluster.of(CONFIG_MAPS)[0]["data"]["jobs.json"])
    assert report["status"]["ledger"] == {"chipHours": "1"}


@pytest.mark.parametrize("error", [Unavailable("down", status=503), Rejected("forbidden", status=403)])
async def test_reports_that_cannot_be_read_are_not_replaced(
    cluster: FakeCluster, running: dict[str, Any], error: Exception
) -> None:
    async with leader(cluster) as (one, _):
        one.job(running)
        await until(lambda: uids(cluster))
    cluster.fault = lambda moment, made: error if (moment, made) == ("before", "get configmaps") else None
    cluster.calls.clear()
    async with leader(cluster) as (two, taken):
        two.job(named(running, "other"))
        await until(lambda: len(cluster.calls) > 3)
        assert (taken, cluster.writes(), uids(cluster)) == ([], [], [running["metadata"]["uid"]])
        cluster.fault = lambda moment, made: None
        await until(lambda: taken and uids(cluster) == ["other"])


@pytest.mark.parametrize("data", [{}, {"jobs.json": "{"}, {"jobs.json": "5"}])
async def test_a_damaged_record_is_replaced(
    cluster: FakeCluster, running: dict[str, Any], data: dict[str, str]
) -> None:
    cluster.put(CONFIG_MAPS, {"metadata": {"namespace": OWN, "name": NAME}, "data": data})
    async with leader(cluster) as (one, taken):
        one.job(running)
        await until(cluster.writes)
    assert (taken, uids(cluster)) == ([], [running["metadata"]["uid"]])


async def test_the_record_has_room_for_those_on_the_most_chips(
    cluster: FakeCluster, running: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 20_000)
    big = {**running["status"]["activeTime"], "chips": 64}
    async with leader(cluster) as (one, _):
        for number in range(50):
            one.job(named(running, str(number)))
        one.job(named(running, "big", activeTime=big))
        await until(lambda: "big" in uids(cluster))
    assert 3 < len(uids(cluster)) < 50
    assert len(cluster.of(CONFIG_MAPS)[0]["data"]["jobs.json"]) <= 20_000
