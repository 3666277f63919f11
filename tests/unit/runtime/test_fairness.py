"""Namespaces with many jobs, and those whose store hangs, do not delay the jobs of others. Time is virtual."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from finetune_operator.reconcile.keys import JobKey
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.queue import WorkQueue
from finetune_operator.runtime.workers import Workers
from tests.unit.runtime.virtual_time import run_in_virtual_time

WORKERS = 16
ARRIVALS = 100
OTHER = "team"


class Load:
    """Keys of busy namespaces, which are always due again, and sometimes one of another namespace.

    Args:
        keys: the busy namespaces' keys.
        seconds: duration of a reconcile of one of them.
    """

    def __init__(self, keys: list[JobKey], seconds: Callable[[], float]) -> None:
        self.keys = keys
        self.seconds = seconds
        self.begun = 0
        """Number of reconciles begun."""
        self.added: dict[JobKey, tuple[float, int]] = {}
        """When each key of the other namespace was added, and how many reconciles had begun before."""
        self.waits: list[float] = []
        self.overtakers: list[int] = []
        """Number of reconciles that began between the addition of each of these keys and its own."""

    async def run(self, between: Callable[[], float]) -> None:
        """Adds the other namespace's keys at such intervals in seconds, and runs until all are reconciled."""
        clock = asyncio.get_running_loop().time
        queue = WorkQueue[JobKey](clock=clock)
        for key in self.keys:
            queue.add(key)

        async def reconcile(key: JobKey, retry_in: float) -> float | None:
            self.begun += 1
            if key.namespace != OTHER:
                await asyncio.sleep(self.seconds())
                return 0.0
            at, begun = self.added[key]
            self.waits.append(clock() - at)
            self.overtakers.append(self.begun - 1 - begun)
            if len(self.waits) == ARRIVALS:
                queue.close()
            return None

        async def arrive() -> None:
            for number in range(ARRIVALS):
                await asyncio.sleep(between())
                key = JobKey(OTHER, str(number))
                self.added[key] = clock(), self.begun
                queue.add(key)

        workers = Workers(queue, reconcile, metrics=OperatorMetrics(), clock=clock)
        await asyncio.gather(arrive(), workers.run(WORKERS))


def keys(namespaces: int, each: int) -> list[JobKey]:
    return [
        JobKey(f"busy-{namespace}", str(number)) for namespace in range(namespaces) for number in range(each)
    ]


@pytest.mark.parametrize("namespaces", [1, 2, 4])
def test_a_backlog_of_5000_keys_per_namespace_is_overtaken_by_the_first_key_of_another(
    namespaces: int,
) -> None:
    random = Random(namespaces)
    load = Load(keys(namespaces, 5000), lambda: random.uniform(0.01, 0.2))
    run_in_virtual_time(load.run(lambda: random.expovariate(2)))
    assert max(load.overtakers) <= WORKERS


@pytest.mark.parametrize("namespaces", [1, 2, 8, 40])
def test_namespaces_whose_store_hangs_delay_another_by_less_than_a_second(namespaces: int) -> None:
    random = Random(namespaces)
    load = Load(keys(namespaces, 500), lambda: 20)
    run_in_virtual_time(load.run(lambda: random.expovariate(1)))
    assert sorted(load.waits)[int(0.99 * ARRIVALS) - 1] <= 1
