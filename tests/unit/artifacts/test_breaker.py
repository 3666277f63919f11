"""The circuit breaker with a clock that only the tests advance."""

import asyncio
from threading import Event

import pytest

from finetune_operator.artifacts import shared_store
from finetune_operator.artifacts.port import (
    RECORD_LIMIT,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_storage.calls import StoreCall
from tests.unit.artifacts.fakes import Scripted

ERROR = "no response within 20 s"


class Bucket:
    """A store whose fault or delay a test sets."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: type[StorageError] | None = None
        self.held: Event | None = None
        self.hanging = Event()

    def __call__(self, _call: StoreCall, uri: str) -> bytes:
        self.asked.append(uri)
        if self.held:
            self.hanging.set()
            self.held.wait()
        if self.fault is ObjectTooLarge:
            raise ObjectTooLarge(uri, RECORD_LIMIT)
        if self.fault:
            raise self.fault(uri, ERROR)
        return b""


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.bucket = Bucket()
        self.refused: list[str] = []
        self.store = SharedStore(
            {"gs": Scripted(self.bucket)}, refused=self.refused.append, clock=lambda: self.now
        )

    async def fails(self, uri: str = "gs://b/team-a/x") -> bool:
        """Reads with an expected failure, and returns whether the request reached the store."""
        before = len(self.bucket.asked)
        with pytest.raises(StorageUnavailable, match=f"^{uri}: {ERROR}$"):
            await self.store.read(uri)
        return len(self.bucket.asked) > before


@pytest.fixture
def world() -> World:
    return World()


async def test_a_store_that_does_not_answer_is_asked_ever_less_often(world: World) -> None:
    world.bucket.fault = StorageUnavailable
    asked: list[float] = []
    for second in range(200):
        world.now = float(second)
        if await world.fails():
            asked.append(world.now)
    assert asked == [0, 1, 2, 7, 17, 37, 67, 97, 127, 157, 187]
    assert len(world.refused) == 200 - len(asked)


async def test_the_first_answer_ends_the_pause(world: World) -> None:
    world.bucket.fault = StorageUnavailable
    for _ in range(4):
        await world.fails()
    world.now, world.bucket.fault = 100.0, None
    for _ in range(3):
        assert await world.store.read("gs://b/team-a/x") == b""
    world.bucket.fault = StorageUnavailable
    assert [await world.fails() for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("fault", [None, StorageDenied, ObjectTooLarge])
async def test_a_store_that_answers_now_and_then_is_always_asked(
    world: World, fault: type[StorageError] | None
) -> None:
    for _ in range(5):
        world.bucket.fault = StorageUnavailable
        assert await world.fails()
        assert await world.fails()
        world.bucket.fault = fault
        if fault is None:
            await world.store.read("gs://b/team-a/x")
        else:
            with pytest.raises(fault):
                await world.store.read("gs://b/team-a/x")


async def test_one_call_at_a_time_finds_out_whether_it_is_back(world: World) -> None:
    world.bucket.fault = StorageUnavailable
    for _ in range(3):
        await world.fails()
    world.now, world.bucket.held = 10.0, (held := Event())
    probe = asyncio.ensure_future(world.store.read("gs://b/team-a/x"))
    await asyncio.to_thread(world.bucket.hanging.wait)
    assert len(world.bucket.asked) == 4
    assert not await world.fails()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    world.bucket.held, world.bucket.fault = None, None
    held.set()
    assert await world.store.read("gs://b/team-a/x") == b""


async def test_others_are_asked_all_the_same(world: World) -> None:
    world.bucket.fault = StorageUnavailable
    for _ in range(4):
        await world.fails("gs://b/team-a/x")
    assert await world.fails("gs://b/team-b/x")
    assert await world.fails("gs://c/team-a/x")
    with calls_for_tenant("team-c"):
        assert await world.fails("gs://b/team-a/x")


async def test_writes_are_refused_too(world: World) -> None:
    world.bucket.fault = StorageUnavailable
    for _ in range(3):
        await world.fails()
    with pytest.raises(StorageUnavailable, match=ERROR):
        await world.store.write("gs://b/team-a/x", b"")
    assert world.refused == ["write"]


async def test_the_calls_of_one_reconcile_have_a_common_time(world: World) -> None:
    world.bucket.held = held = Event()
    with calls_for_tenant("team-a", seconds=0):
        for _ in range(5):
            with pytest.raises(StorageUnavailable, match="gs://b/team-a/x: the store responds too slowly"):
                await world.store.read("gs://b/team-a/x")
    world.bucket.held = None
    held.set()
    with calls_for_tenant("team-a"):
        assert await world.store.read("gs://b/team-a/x") == b"", (
            "the caller's time limit is no fault of the store"
        )


async def test_when_a_bucket_has_answered_is_known_until_it_refuses_or_fails() -> None:
    world, uri = World(), "gs://b/team-a/x"
    assert world.store.answered(uri) is None
    await world.store.read(uri)
    world.now += 3
    assert world.store.answered("gs://b/team-a/y") == 3
    assert world.store.answered("gs://b/team-b/x") is None
    assert world.store.answered("gs://c/team-a/x") is None
    for fault in (StorageDenied, StorageUnavailable, StorageError):
        world.bucket.fault = fault
        with pytest.raises(StorageError):
            await world.store.read(uri)
        assert world.store.answered(uri) is None
        world.bucket.fault = None
        await world.store.read(uri)
        assert world.store.answered(uri) == 0


async def test_a_late_answer_does_not_count() -> None:
    world, uri = World(), "gs://b/team-a/x"
    await world.store.read(uri)
    world.bucket.held = Event()
    with (
        calls_for_tenant("team-a", seconds=0.05),
        pytest.raises(StorageUnavailable, match="responds too slowly"),
    ):
        await world.store.read(uri)
    world.bucket.held.set()
    await world.store.ended()
    assert world.store.answered(uri) is None


async def test_the_buckets_whose_answers_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "_MOST_SHARES", 2)
    world = World()
    for name in "abc":
        await world.store.read(f"gs://{name}/team-a/x")
    assert [world.store.answered(f"gs://{name}/team-a/x") for name in "abc"] == [None, 0, 0]
