"""Notices are delivered at least once, also over restarts; nothing waits for them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from finetune_operator.cluster.port import CONFIG_MAPS, Unavailable
from finetune_operator.reconcile import notifications as module
from finetune_operator.reconcile.notifications import DeliveryError, Notifications
from tests.unit.lifecycle.test_job_notices import job as job_with
from tests.unit.reconcile.fakes import NOW, OWN, FakeCluster

NAME = "finetune-operator-notifications"
type Event = Mapping[str, Any]


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def ended(name: str = "demo", seconds: float = 0, **status: Any) -> dict[str, Any]:
    """A job that has ended that many seconds after the first start of the operator."""
    found = job_with(("Finished", "True"), time=at(seconds), phase="Succeeded", **status)
    found["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return found


class World:
    """A cluster, a receiver and a clock that outlive the operators of a test."""

    def __init__(self) -> None:
        self.cluster, self.now = FakeCluster(), NOW
        self.received: list[str] = []
        self.refuses: set[str] = set()
        """Names of jobs whose notices are refused; ``*``: all of them."""
        self.final = False
        """Whether the receiver says that it will not take it later either."""
        self.results: list[str] = []
        self.changed = asyncio.Event()

    async def deliver(self, notice: str, event: Event) -> None:
        await asyncio.sleep(0)
        self.changed.set()
        if self.refuses & {event["data"]["name"], "*"}:
            raise DeliveryError("answers 500, expected 2xx", final=self.final)
        self.received.append(event["data"]["name"])

    def clock(self) -> datetime:
        return self.now

    @asynccontextmanager
    async def operator(self, *, crash: bool = False) -> AsyncIterator[Notifications]:
        """A leader; ``crash``: it ends without its last write."""
        found = Notifications(
            self.cluster, OWN, NAME, self.deliver, utc_now=self.clock, notified=self.results.append
        )
        await found.restore()
        writing = asyncio.create_task(found.run())
        try:
            yield found
        finally:
            writing.cancel()
            if crash:
                found._changed.clear()
            await found.finish()

    @property
    def record(self) -> dict[str, Any]:
        (found,) = self.cluster.of(CONFIG_MAPS)
        return json.loads(found["data"]["notifications.json"])  # type: ignore[no-any-return]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for pause in ("_FIRST_PAUSE", "_LONGEST_PAUSE", "_RECORD_PAUSE", "_READ_PAUSE"):
        monkeypatch.setattr(module, pause, 0.001)
    return World()


async def until(world: World, count: int) -> None:
    async with asyncio.timeout(5):
        while len(world.received) < count:
            world.changed.clear()
            await world.changed.wait()
            await asyncio.sleep(0)


async def settled(notifications: Notifications) -> None:
    async with asyncio.timeout(5):
        while notifications.pending or notifications._changed.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_transition_is_delivered_once_however_often_the_job_is_seen(world: World) -> None:
    async with world.operator() as notifications:
        for _ in range(3):
            notifications.job(ended())
            await asyncio.sleep(0.002)
        await settled(notifications)
    assert world.received == ["demo"]
    assert world.results == ["delivered"]


async def test_what_ended_before_the_webhook_was_set_is_not_delivered(world: World) -> None:
    async with world.operator() as notifications:
        notifications.job(ended(seconds=-1))
        notifications.job(ended("new", seconds=1))
        await settled(notifications)
    assert world.received == ["new"]


async def test_a_refused_notice_is_sent_again_and_holds_up_no_other(world: World) -> None:
    world.refuses = {"bad"}
    async with world.operator() as notifications:
        notifications.job(ended("bad"))
        notifications.job(ended("good"))
        await until(world, 1)
        assert notifications.pending == 1
        world.refuses = set()
        await settled(notifications)
    assert world.received == ["good", "bad"]
    assert world.results.count("delivered") == 2
    assert "refused" in world.results


async def test_a_restart_delivers_what_was_not_delivered_and_nothing_else(world: World) -> None:
    world.refuses = {"missed"}
    async with world.operator() as notifications:
        notifications.job(ended("seen", seconds=1))
        notifications.job(ended("missed", seconds=2))
        await until(world, 1)
    world.refuses, world.now = set(), NOW + timedelta(hours=2)
    async with world.operator() as notifications:
        for each in (ended("seen", seconds=1), ended("missed", seconds=2), ended("old", seconds=-60)):
            notifications.job(each)
        await settled(notifications)
    assert world.received == ["seen", "missed"]


async def test_after_a_crash_what_was_not_recorded_is_delivered_again(world: World) -> None:
    async with world.operator() as notifications:
        await settled(notifications)
    async with world.operator(crash=True) as notifications:
        world.cluster.fault = lambda moment, call: Unavailable("down") if call.startswith("apply") else None
        notifications.job(ended(seconds=1))
        await until(world, 1)
    world.cluster.fault = lambda _moment, _call: None
    async with world.operator() as notifications:
        notifications.job(ended(seconds=1))
        await settled(notifications)
    assert world.received == ["demo", "demo"]


async def test_a_transition_that_is_written_while_jobs_are_listed_is_not_passed_over(world: World) -> None:
    """Its time may lie before the listing, which need not show it."""
    async with world.operator() as notifications:
        world.now = NOW + timedelta(hours=1)
        notifications.listing()
        notifications.listed()
        await settled(notifications)
    late = 3600 - module.WRITE_SECONDS
    async with world.operator() as notifications:
        notifications.job(ended("late", seconds=late))
        notifications.job(ended("shown", seconds=late - 1))
        await settled(notifications)
    assert world.received == ["late"]


async def test_the_record_keeps_no_more_than_a_listing_leaves_open(world: World) -> None:
    world.refuses = {"waits"}
    async with world.operator() as notifications:
        for second in range(20):
            notifications.job(ended(f"job-{second}", seconds=second))
        notifications.job(ended("waits", seconds=10))
        await until(world, 20)
        world.now = NOW + timedelta(hours=1)
        notifications.listing()
        notifications.listed()
    # What is older than the notice that waits is done.
    assert world.record["until"] == at(10)
    assert len(world.record["delivered"]) == 10


async def test_notices_without_room_are_derived_again_at_a_later_listing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    jobs = [ended(f"job-{number}", seconds=number) for number in range(10)]
    async with world.operator() as notifications:
        begun = notifications._until
        while len(world.received) < len(jobs):
            before = len(world.received)
            world.now += timedelta(hours=1)
            notifications.listing()
            for each in jobs:
                notifications.job(each)
            assert notifications.pending <= 3
            overflowed = len(jobs) - before > 3
            notifications.listed()
            # The time does not pass what was left out.
            assert notifications._until == begun or not overflowed
            await settled(notifications)
    assert sorted(world.received) == sorted(each["metadata"]["name"] for each in jobs)


async def test_a_notice_is_given_up_after_a_day_of_attempts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refuses = {"*"}
    async with world.operator() as notifications:
        notifications.job(ended())
        async with asyncio.timeout(5):
            await world.changed.wait()
        world.now = NOW + timedelta(hours=25)
        with caplog.at_level(logging.ERROR):
            await settled(notifications)
        assert "uid-demo/ended/2026-11-21T12:00:00Z is given up: not delivered in 24 h" in caplog.text
    assert world.results[-1] == "expired"


async def test_until_the_record_can_be_read_nothing_is_sent_and_nothing_is_lost(world: World) -> None:
    world.cluster.fault = lambda moment, call: Unavailable("down") if call == "get configmaps" else None
    async with world.operator() as notifications:
        notifications.job(ended(seconds=1))
        assert notifications.pending == 0
        world.cluster.fault = lambda _moment, _call: None
        async with asyncio.timeout(5):
            while notifications._until is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        notifications.job(ended(seconds=1))
        await settled(notifications)
    assert world.received == ["demo"]


async def test_a_record_that_is_read_during_a_listing_leaves_its_first_jobs_to_the_next_one(
    world: World,
) -> None:
    async with world.operator() as notifications:
        pass
    world.cluster.fault = lambda _moment, call: Unavailable("down") if call == "get configmaps" else None
    async with world.operator() as notifications:
        notifications.listing()
        notifications.job(ended(seconds=1))
        world.cluster.fault = lambda _moment, _call: None
        assert await notifications.restore()
        world.now += timedelta(minutes=10)
        notifications.listed()
        notifications.listing()
        notifications.job(ended(seconds=1))
        notifications.listed()
        await settled(notifications)
    assert world.received == ["demo"]


def of_b(name: str, seconds: float) -> dict[str, Any]:
    """A job that has ended in the namespace that is lost."""
    found = ended(name, seconds)
    found["metadata"]["namespace"] = "team-b"
    return found


async def listed(world: World, notifications: Notifications, *jobs: dict[str, Any], **lost: Any) -> None:
    """A resync some time after the last one."""
    world.now += timedelta(minutes=10)
    notifications.listing()
    for job in jobs:
        notifications.job(job)
    notifications.listed(**lost)
    await settled(notifications)


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_long_loss_of_a_namespace_nothing_is_sent_twice_and_nothing_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """What has ended elsewhere meanwhile is more than the record holds."""
    monkeypatch.setattr(module, "MOST_RECORDED", 10)
    elsewhere, known, lost = list[dict[str, Any]](), of_b("known", 601), ["team-b"]
    async with world.operator() as notifications:
        await listed(world, notifications)
        notifications.job(known)
        await settled(notifications)
        for number in range(40):
            elsewhere.append(ended(f"job-{number}", seconds=600 + number * 600))
            await listed(world, notifications, *elsewhere, left_out=lost)
        assert len(notifications._delivered) <= 5
        if not restarted:
            # Written just before the loss, which hid it; and after it.
            back = [of_b("hidden", 602), of_b("later", (world.now - NOW).total_seconds())]
            await listed(world, notifications, *elsewhere, known, *back)
    async with world.operator() as notifications:
        await listed(world, notifications, *elsewhere, left_out=lost)
        back = [of_b("hidden", 602), of_b("later", (world.now - NOW).total_seconds())][
            : 2 if restarted else 1
        ]
        await listed(world, notifications, *elsewhere, known, *back)
        await listed(world, notifications, *elsewhere, known, *back)
        assert notifications._left_out == {}
    names = [*(f"job-{number}" for number in range(40)), "known", "hidden", "later"]
    assert sorted(world.received) == sorted(names)


async def test_a_late_notice_outlives_a_restart_after_its_namespace_is_back(world: World) -> None:
    async with world.operator() as notifications:
        await listed(world, notifications)
        for _ in range(3):
            await listed(world, notifications, left_out=["team-b"])
        world.refuses = {"*"}
        notifications.job(of_b("late", 602))
        for _ in range(2):
            world.now += timedelta(minutes=10)
            notifications.listing()
            notifications.listed()
    world.refuses = set()
    async with world.operator() as notifications:
        await listed(world, notifications, of_b("late", 602))
    assert world.received == ["late"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"until": 1, "delivered": {}}', '{"until": "x"}'])
async def test_a_damaged_record_leads_to_repeated_notices_not_to_lost_ones(
    world: World, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.put(
        CONFIG_MAPS, {"metadata": {"namespace": OWN, "name": NAME}, "data": {"notifications.json": content}}
    )
    async with world.operator() as notifications:
        notifications.job(ended(seconds=-3600))
        await settled(notifications)
    assert world.received == ["demo"]
    assert "is damaged" in caplog.text


async def test_a_receiver_that_does_not_answer_holds_up_nothing(world: World) -> None:
    """Neither the watch that passes jobs on, nor the end of the process."""
    async with world.operator() as notifications:

        async def never(_notice: str, _event: Event) -> None:
            await asyncio.Event().wait()

        notifications._deliver = never
        for number in range(100):
            notifications.job(ended(f"job-{number}"))
        assert notifications.pending == 100
    assert world.received == []


def of_namespace(namespace: str, name: str) -> dict[str, Any]:
    found = ended(name)
    found["metadata"]["namespace"] = namespace
    return found


async def test_many_notices_of_one_namespace_do_not_keep_out_those_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OF_NAMESPACE", 20)
    async with world.operator() as notifications:
        for number in range(50):
            notifications.job(of_namespace("mallory", f"noise-{number}"))
        notifications.job(of_namespace("team-b", "training"))
        assert notifications.pending == 21
        await settled(notifications)
    assert world.received.index("training") <= 2
    assert len(world.received) == 21


async def test_a_notice_that_the_receiver_refuses_for_good_is_given_up_while_others_are_taken(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refuses, world.final = {"poison"}, True
    async with world.operator() as notifications:
        notifications.job(of_namespace("mallory", "poison"))
        notifications.job(of_namespace("team-b", "training"))
        await settled(notifications)
    assert world.received == ["training"]
    assert world.results.count("refused") == module.MOST_REFUSALS
    assert world.results.count("expired") == 1
    assert "takes others" in caplog.text


async def test_a_receiver_that_refuses_everything_loses_nothing(world: World) -> None:
    """Such as one with a wrong key."""
    world.refuses, world.final = {"*"}, True
    async with world.operator() as notifications:
        notifications.job(ended())
        async with asyncio.timeout(5):
            while world.results.count("refused") < 2 * module.MOST_REFUSALS:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        world.refuses = set()
        await settled(notifications)
    assert world.received == ["demo"]
