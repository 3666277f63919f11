"""Memory that all observations together may use for objects of tenants."""

import asyncio
from typing import Any

import pytest

from finetune_operator.cluster.port import ResponseTooLarge
from finetune_operator.reconcile.memory_budget import MemoryBudget


def much(mebibytes: float) -> list[dict[str, Any]]:
    return [{"name": "x" * int(mebibytes * 2**20)}]


async def test_what_is_little_waits_for_no_slot() -> None:
    rooms = MemoryBudget()
    async with rooms.of("a") as one, rooms.of("a") as two, rooms.of("b") as three:
        for room in (one, two, three):
            await room.hold(much(0.5), "pods")


async def test_a_namespace_has_one_look_that_holds_much_and_the_next_waits_for_its_end() -> None:
    rooms = MemoryBudget()
    ended = asyncio.Event()
    order: list[str] = []

    async def look(namespace: str, name: str) -> None:
        async with rooms.of(namespace) as room:
            await room.hold(much(0.9), "pods")
            await room.hold(much(0.9), "pods")
            await room.hold(much(5), "pods")
            order.append(name)
            await ended.wait()

    looks = [asyncio.ensure_future(look(*of)) for of in (("a", "first"), ("a", "second"), ("b", "other"))]
    for _ in range(20):
        await asyncio.sleep(0)
    assert order == ["first", "other"]
    ended.set()
    await asyncio.gather(*looks)
    assert order == ["first", "other", "second"]


async def test_only_so_many_looks_hold_much() -> None:
    rooms, ended = MemoryBudget(), asyncio.Event()
    holding = 0

    async def look(namespace: str) -> None:
        nonlocal holding
        async with rooms.of(namespace) as room:
            await room.hold(much(2), "pods")
            holding += 1
            await ended.wait()

    looks = [asyncio.ensure_future(look(str(number))) for number in range(9)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert holding == 3
    ended.set()
    await asyncio.gather(*looks)
    assert holding == 9


async def test_too_much_for_one_look_is_said_of_what() -> None:
    rooms = MemoryBudget()
    async with rooms.of("a") as room:
        with pytest.raises(ResponseTooLarge, match=r"^pods with uid=u: .* more than 24 MiB"):
            await room.hold(much(25), "pods with uid=u")
    async with rooms.of("a") as room:
        await room.hold(much(2), "pods")


async def test_listings_of_one_look_share_its_place() -> None:
    """Both listings wait until the previous observation of the same namespace has ended."""
    rooms = MemoryBudget()
    async with asyncio.timeout(10), rooms.of("a") as second:
        async with rooms.of("a") as first:
            await first.hold(much(2), "pods")
            listings = [asyncio.ensure_future(second.hold(much(2), what)) for what in ("pods", "jobsets")]
            for _ in range(20):
                await asyncio.sleep(0)
        await asyncio.gather(*listings)


async def test_a_listing_that_outlives_its_look_takes_no_place() -> None:
    """The observation has ended early, as it does if another of its listings fails."""
    rooms = MemoryBudget()
    async with rooms.of("a") as first:
        await first.hold(much(2), "pods")
        async with rooms.of("a") as second:
            waiting = asyncio.ensure_future(second.hold(much(2), "pods"))
            await asyncio.sleep(0)
    assert (await asyncio.gather(waiting, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError):
        await second.hold(much(0.1), "pods")
    async with asyncio.timeout(10), rooms.of("a") as third:
        await third.hold(much(2), "pods")


async def test_what_is_read_again_counts_once() -> None:
    async with MemoryBudget().of("a") as room:
        for _ in range(5):
            await room.hold(much(20), "pods")
            room.release(much(20))
