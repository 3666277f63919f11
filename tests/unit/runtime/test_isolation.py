"""Reconciles that hang do not delay others, and calls to the store do not outlive the Lease."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest

from finetune_contract import CacheLayout, RunFolder
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_operator.cluster.lease import LeaderElection, LeaseSettings
from finetune_operator.cluster.port import LEASES
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.run_folder_observer import Folders
from finetune_operator.runtime import workers
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.queue import WorkQueue
from finetune_operator.runtime.workers import STUCK_SECONDS, Workers, end
from finetune_storage.calls import StoreCall
from tests.unit.artifacts.fakes import Scripted
from tests.unit.cluster.fake_time import FakeTime, settle
from tests.unit.reconcile.fakes import FakeCluster
from tests.unit.runtime.objects import key


class Hanging:
    """A reconciler that never returns for jobs outside of namespace ``team``."""

    def __init__(self) -> None:
        self.hanging = 0
        self.handled: asyncio.Queue[JobKey] = asyncio.Queue()

    async def __call__(self, key: JobKey, retry_in: float) -> float | None:
        if key.namespace != "team":
            self.hanging += 1
            await asyncio.Event().wait()
        self.handled.put_nowait(key)
        return None


async def test_jobs_that_hang_do_not_delay_those_of_another_namespace() -> None:
    queue, hanging = WorkQueue[JobKey](), Hanging()
    for number in range(30):
        queue.add(JobKey("dead", str(number)))
    for number in range(100):
        queue.add(key(str(number)))
    working = asyncio.ensure_future(Workers(queue, hanging, metrics=OperatorMetrics()).run(8))
    # The event loop runs all ready tasks, and no time passes.
    await settle()
    assert hanging.handled.qsize() == 100
    assert hanging.hanging == 4
    working.cancel()


async def test_jobs_that_hang_in_many_namespaces_cost_their_places_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "SLOW_SECONDS", 0)
    queue, hanging = WorkQueue[JobKey](), Hanging()
    for number in range(12):
        queue.add(JobKey(f"dead-{number % 6}", str(number)))
    queue.add(key())
    working = asyncio.ensure_future(Workers(queue, hanging, metrics=OperatorMetrics()).run(4))
    assert await hanging.handled.get() == key()
    assert hanging.hanging >= 6
    working.cancel()


async def test_a_reconcile_that_hangs_is_what_counts_and_not_how_long_others_wait() -> None:
    time, may_end = FakeTime(), asyncio.Event()
    queue = WorkQueue[JobKey](clock=time.clock)

    async def reconcile(_key: JobKey, retry_in: float) -> float | None:
        time.now += 20
        if not queue.depth():
            await may_end.wait()
            queue.close()
        return None

    for number in range(150):
        queue.add(key(str(number)))
    made = Workers(queue, reconcile, metrics=OperatorMetrics(), clock=time.clock)
    assert made.stuck() == ()
    working = asyncio.ensure_future(made.run(1))
    await settle()
    while queue.depth():
        await settle()
    assert time.now == 150 * 20, "the last one has waited for all others"
    assert made.stuck() == ()
    time.now += STUCK_SECONDS
    assert made.stuck() == ("a reconcile has been running for 320 s",)
    may_end.set()
    await working


async def test_jobs_on_a_store_that_hangs_do_not_delay_those_of_another_tenant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Combines the workers, the reader of run folders and the router that limits calls to the store."""
    caplog.set_level("CRITICAL")

    may_end = Event()

    class Bucket(Scripted):
        """A store that hangs for one tenant."""

        def names(self, uri: str, *, limit: int, longest: int) -> Sequence[str]:
            if "/dead/" in uri:
                may_end.wait()
            return []

    store = SharedStore({"file": Bucket(lambda _call, _uri: None)})
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def reconcile(key: JobKey, retry_in: float) -> float | None:
        run = RunFolder(f"file:///runs/{key.namespace}/{key.name}-0badcafe")
        with calls_for_tenant(key.namespace):
            await RunFolderReader(store).view(Folders(run=run, cache=CacheLayout("file:///cache")))
        seen.put_nowait(key.namespace)
        return None

    queue = WorkQueue[JobKey]()
    for number in range(30):
        queue.add(JobKey("dead", str(number)))
    queue.add(key())
    working = asyncio.ensure_future(Workers(queue, reconcile, metrics=OperatorMetrics()).run(8))
    async with asyncio.timeout(10):
        assert await seen.get() == "team"
    working.cancel()
    may_end.set()


async def test_the_lease_is_released_when_the_last_write_to_the_store_has_ended(tmp_path: Path) -> None:
    cluster, time = FakeCluster(), FakeTime()
    lease = LeaseSettings(namespace="system", name="finetune-operator", identity="a")
    election = LeaderElection(cluster, lease, utc_now=time.utc_now, clock=time.clock, sleep=time.sleep)
    begun, may_end = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def write(_call: StoreCall, _uri: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()

    class Store(SharedStore):
        async def ended(self) -> None:
            stopped.set()
            await super().ended()

    store = Store({"file": Scripted(write)})

    async def lead() -> None:
        writing = asyncio.ensure_future(store.write(f"file://{tmp_path}/x", b""))
        try:
            await writing
        finally:
            await end([writing], store, patience=60)

    leading = asyncio.ensure_future(election.run(lead))
    await begun.wait()
    leading.cancel()
    await stopped.wait()
    await settle()
    held = cluster.objects[LEASES, "system", "finetune-operator"]
    assert held["spec"]["holderIdentity"] == "a"
    may_end.set()
    await asyncio.gather(leading, return_exceptions=True)
    held = cluster.objects[LEASES, "system", "finetune-operator"]
    assert held["spec"]["holderIdentity"] == ""


async def test_a_call_that_cannot_be_ended_keeps_the_lease_for_a_while_only() -> None:
    class Store:
        async def ended(self) -> None:
            await asyncio.Event().wait()

    await end([], Store(), patience=0)
