"""The schedule is compared with a simple model; the queue's coroutines are tested with examples."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from finetune_operator.runtime.queue import LONGEST_POSTPONEMENT, Backoff, WorkQueue


@dataclass(frozen=True, order=True)
class Job:
    namespace: str | None
    name: str


NAMESPACES = [None, "team-a", "team-b", "team-c"]
KEYS = st.builds(Job, st.sampled_from(NAMESPACES), st.sampled_from("abcd"))
EACH, TOTAL = 3, 5
WAITS = st.floats(min_value=0, max_value=100)


class ScheduleMachine(RuleBasedStateMachine):
    """The model: when each key is due, which keys are being handled, and how often each has failed in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.backoff = Backoff(base=1, longest=8)
        self.now = 0.0
        self.schedule = WorkQueue[Job](backoff=self.backoff, clock=lambda: self.now)
        self.due: dict[Job, float] = {}
        self.looked = -1.0
        """Time of the last attempt to take a key."""
        self.taken: set[Job] = set()
        self.since: dict[Job, float] = {}
        """Since when a taken key was due."""
        self.postponed: dict[Job, float] = {}
        self.failures: dict[Job, int] = {}
        self.ahead: dict[str | None, set[str | None]] = {namespace: set() for namespace in NAMESPACES}
        """By namespace that could have had its turn: the namespaces that have had one meanwhile."""

    def ready(self) -> dict[Job, float]:
        return {key: at for key, at in self.due.items() if at <= self.now and key not in self.taken}

    def waiting(self) -> dict[Job, float]:
        """Returns the keys that are due or postponed, and since when."""
        waits = self.ready()
        for key, since in self.postponed.items():
            if key not in self.taken:
                waits[key] = min(since, waits.get(key, since))
        return waits

    def free(self) -> dict[Job, float]:
        """Returns the due keys of namespaces that may have another key in progress."""
        number = Counter(each.namespace for each in self.taken)
        limit = min(EACH, TOTAL - len(self.taken))
        return {key: at for key, at in self.ready().items() if number[key.namespace] < limit}

    def earliest(self, key: Job, at: float) -> None:
        self.due[key] = min(at, self.due.get(key, at))

    def give_back(self, key: Job, again: float | None) -> None:
        self.taken.remove(key)
        if again is not None:
            self.earliest(key, self.now + again)
        if key in self.due:
            self.due[key] = max(self.due[key], self.now)

    @rule(seconds=WAITS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=KEYS, after=WAITS)
    def add(self, key: Job, after: float) -> None:
        self.schedule.add(key, after)
        if self.now + after < self.due.get(key, 0.0):
            self.postponed.pop(key, None)
        self.earliest(key, self.now + after)

    @rule()
    def take(self) -> None:
        for namespace in NAMESPACES:
            own = [key for key in self.postponed if key.namespace == namespace and key not in self.taken]
            if own and all(key.namespace != namespace for key in self.ready()):
                # No key of the namespace is due, so the one that was postponed first is.
                self.due[own[0]] = self.now
        free = self.free()
        key = self.schedule.take_due(each=EACH, total=TOTAL)
        self.looked = self.now
        if not free:
            assert key is None
            return
        assert key is not None
        assert key not in self.taken, "the key is already being handled"
        peers = {other: at for other, at in free.items() if other.namespace == key.namespace}
        if overdue := [other for other in peers if other in self.postponed]:
            assert peers[key] == min(peers[other] for other in overdue)
            assert key in overdue, "a key that has been postponed for long comes first in its namespace"
        else:
            assert free[key] == min(peers.values()), "the key that has been due longest is taken first"
        for namespace, ahead in self.ahead.items():
            if namespace == key.namespace or all(other.namespace != namespace for other in free):
                ahead.clear()
            else:
                assert key.namespace not in ahead, "no namespace has two turns while another waits for one"
                ahead.add(key.namespace)
        due = self.due.pop(key)
        self.since[key] = min(due, self.postponed.pop(key, due))
        assert self.schedule.delay(key) == self.now - self.since[key]
        self.taken.add(key)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def postpone(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken - self.postponed.keys(), key=str) or [None]))
        if key is None:
            return
        others = [other for other in self.ready() if other.namespace == key.namespace]
        assert self.schedule.postpone(key) == bool(others)
        self.looked = self.now
        if others:
            latest = self.now + LONGEST_POSTPONEMENT
            self.earliest(key, latest)
            if self.due[key] == latest:
                self.postponed[key] = self.since[key]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), again=st.none() | WAITS)
    def done(self, data: st.DataObject, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken, key=str)))
        self.schedule.done(key, again)
        self.failures.pop(key, None)
        self.give_back(key, again)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), at_least=st.just(0.0) | WAITS)
    def failed(self, data: st.DataObject, at_least: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken, key=str)))
        self.failures[key] = self.failures.get(key, 0) + 1
        wait = min(8.0, 2.0 ** (self.failures[key] - 1))
        assert self.schedule.retry_in(key) == wait
        self.schedule.failed(key, at_least)
        self.give_back(key, max(wait, at_least))

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = {key: at for key, at in self.due.items() if key not in self.taken}
        later = [at for at in waiting.values() if at > self.looked]
        due = self.schedule.next_due()
        assert due in (*waiting.values(), None)
        assert not later or (due is not None and due <= min(later))
        assert self.schedule.depth() == len(self.waiting())
        assert self.schedule.oldest() == max((self.now - at for at in self.waiting().values()), default=0.0)


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("again_after", [3600.0, 2_000_000_000.0])
def test_events_of_a_key_that_is_due_later_leave_nothing_behind(again_after: float) -> None:
    """Another client repeatedly changes the labels of a finished job."""
    now = 0.0
    queue = WorkQueue[str](clock=lambda: now)
    for key in ("a", "b", "c"):
        queue.add(key)
    for _ in range(1000):
        now += 0.02
        queue.add("a")
        while due := queue.take_due():
            # The key is due again at the same time in each round, as with childTTLSecondsAfterFinished.
            queue.done(due, again_after - now)
        assert len(queue._later) <= 2 * len(queue._waiting)
    assert (queue._waiting.keys(), queue._taken) == ({"a", "b", "c"}, {})


def test_what_is_asked_for_in_decades_is_due_in_a_day() -> None:
    queue = WorkQueue[str](clock=lambda: 0.0)
    queue.add("a")
    assert queue.take_due() == "a"
    queue.done("a", 2.0**31)
    assert queue.next_due() == 86_400.0


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.25), (2, 0.5), (5, 4), (10, 120), (100_000, 120)])
def test_backoff_doubles_to_its_limit(failures: int, seconds: float) -> None:
    assert Backoff().after(failures) == seconds


async def test_a_waiting_worker_is_woken_by_a_new_key() -> None:
    queue = WorkQueue[str]()
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await waiting == "a"


async def test_a_later_key_does_not_keep_a_worker_from_an_earlier_one() -> None:
    queue = WorkQueue[str]()
    queue.add("later", after=3600)
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add("now")
    assert await waiting == "now"


async def test_a_key_becomes_due_by_time_alone() -> None:
    queue = WorkQueue[str]()
    queue.add("a", after=0.001)
    assert await queue.take() == "a"


async def test_every_waiting_worker_ends_when_the_queue_is_closed() -> None:
    queue = WorkQueue[str]()
    workers = [asyncio.ensure_future(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.gather(*workers) == [None, None, None]
    queue.add("a")
    assert await queue.take() is None


async def test_many_workers_share_many_keys_without_handling_one_twice_at_once() -> None:
    queue = WorkQueue[int]()
    hands: set[int] = set()
    handled: list[int] = []

    async def work() -> None:
        while (key := await queue.take()) is not None:
            assert key not in hands
            hands.add(key)
            await asyncio.sleep(0)
            hands.remove(key)
            handled.append(key)
            queue.done(key, None)
            if len(handled) >= 100:
                queue.close()

    for key in range(100):
        queue.add(key)
        queue.add(key)
    await asyncio.gather(*(work() for _ in range(8)))
    assert sorted(handled) == list(range(100))


def test_a_key_that_is_due_again_at_a_time_that_it_had_before_is_taken_once() -> None:
    now = 0.0
    queue = WorkQueue[str](clock=lambda: now)
    queue.add("a", 10.0)
    queue.add("a", 5.0)
    now = 5.0
    assert queue.take_due() == "a"
    queue.done("a", again_after=5.0)
    now = 10.0
    assert queue.take_due() == "a"
    assert queue.take_due() is None
