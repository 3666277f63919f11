"""Takes keys off the queue and reconciles what they name; looks at all live jobs now and then."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic
from typing import Protocol

from finetune_operator.cluster.port import JOBS, ClusterError, KubernetesClient
from finetune_operator.reconcile.observe import JobKey
from finetune_operator.reconcile.plans import PlanKey, Plans
from finetune_operator.reconcile.reconciler import ReconcileError
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.logs import current_job
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.queue import WorkQueue

log = logging.getLogger(__name__)

#: A reconcile that takes longer no longer counts against the number of those that are worked on at once.
SLOW_SECONDS = 2.0
#: A reconcile is given up after this time. Each of its calls has a shorter deadline; it may make many.
RECONCILE_SECONDS = 240
#: All reconciles that may be under way, slow ones included, for each that is worked on at once.
_SLOW_PER_PLACE = 4


class Reconcile[K](Protocol):
    """As :meth:`finetune_operator.reconcile.reconciler.Reconciler.reconcile`."""

    async def __call__(self, key: K, /, *, retry_in: float) -> float | None: ...


class Workers[K: Hashable]:
    """Work on one queue, many keys at a time.

    A reconcile that is slow waits for something: a store, the API server. It keeps no other key waiting: after
    SLOW_SECONDS it no longer counts, up to a number of them, and one namespace never has more than half of the places.

    Args:
        queue: where keys come from.
        reconcile: handles one key.
        metrics: hears of each reconcile.
        clock: seconds.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Reconcile[K],
        *,
        metrics: OperatorMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._clock = clock
        self._begun: dict[K, float] = {}

    def longest(self) -> float:
        """Seconds since the oldest reconcile under way began; 0 when there is none."""
        return max((self._clock() - begun for begun in self._begun.values()), default=0.0)

    async def run(self, number: int) -> None:
        """Until the queue is closed and what is in hand is finished.

        Args:
            number: keys handled at once, slow ones not counted.
        """
        places = asyncio.Semaphore(number)
        hands = asyncio.Semaphore(number * _SLOW_PER_PLACE)
        async with asyncio.TaskGroup() as group:
            while True:
                await hands.acquire()
                await places.acquire()
                key = await self._queue.take(share=max(1, number // 2))
                if key is None:
                    return
                task = group.create_task(self._work(key, places), name=f"reconcile {key}")
                task.add_done_callback(lambda _: hands.release())

    async def _work(self, key: K, places: asyncio.Semaphore) -> None:
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                places.release()

        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, leave)
        self._begun[key] = self._clock()
        try:
            await self._handle(key)
        finally:
            del self._begun[key]
            timer.cancel()
            leave()

    async def _handle(self, key: K) -> None:
        """Whatever happens stays with this key."""
        current_job.set(str(key))
        begun = self._clock()
        retry_in = self._queue.retry_in(key)
        reason: str | None = None
        try:
            async with asyncio.timeout(RECONCILE_SECONDS) as limit:
                again_after = await self._reconcile(key, retry_in=retry_in)
        except ReconcileError as error:
            reason = error.reason
            log.warning("%s: %s (again in %.1f s)", reason, error, max(retry_in, error.retry_after))
            self._queue.failed(key, error.retry_after)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that it waited for was cancelled, and not this reconcile.
            reason = "InternalError"
            log.exception("a fault of the operator")
            self._queue.failed(key)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                reason = "TooSlow"
                log.warning("the reconcile was given up after %d s", RECONCILE_SECONDS)
            else:
                reason = "InternalError"
                log.exception("a fault of the operator")
            self._queue.failed(key)
        else:
            self._queue.done(key, again_after)
        finally:
            self._metrics.reconciled(self._clock() - begun, reason)


class StoreWithCalls(Protocol):
    """As :class:`finetune_operator.artifacts.scheme_router.SchemeRouter`."""

    async def ended(self) -> None: ...


async def end(tasks: Iterable[asyncio.Task[object]], store: StoreWithCalls, *, patience: float) -> None:
    """Cancel the tasks. Returns when they have ended, and with them every call to the store that they began: what is
    written later would meet the next leader's decisions.

    Args:
        tasks: all that works for this leader.
        store: theirs.
        patience: seconds for the store's calls, which have deadlines of their own.
    """
    every = list(tasks)
    for task in every:
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)
    try:
        async with asyncio.timeout(patience):
            await store.ended()
    except TimeoutError:
        log.warning("a call to the artifact store has not ended in %.0f s", patience)


async def resync(
    cluster: KubernetesClient,
    namespaces: Sequence[str],
    intake: EventHandlers,
    plans: Plans,
    add: Callable[[PlanKey], None],
    *,
    every: float,
) -> None:
    """At the start and every so many seconds a live listing of all jobs: whatever event was lost, no job is forgotten,
    and no plan outlives its job.

    Args:
        cluster: the API server.
        namespaces: those that are served; empty: all.
        intake: hears of every job.
        plans: where plans are stored.
        add: puts a plan whose job was not listed on the queue.
        every: seconds.
    """
    while True:
        try:
            await _resync(cluster, namespaces, intake, plans, add)
        except ClusterError as error:
            log.warning("the resync was skipped: %s", error)
        await asyncio.sleep(every)


async def _resync(
    cluster: KubernetesClient,
    namespaces: Sequence[str],
    intake: EventHandlers,
    plans: Plans,
    add: Callable[[PlanKey], None],
) -> None:
    """Plans are listed before jobs, and what was known before both: what is created in between is not taken for gone.
    Nothing is taken for gone where a page of either listing is missing."""
    known = intake.keys()
    stored = [plan async for plan in plans.stored(namespaces)]
    uids: set[str] = set()
    keys: set[JobKey] = set()
    for scope in namespaces or (None,):
        async for page in cluster.pages(JOBS, scope):
            intake.listed(page)
            uids.update(job["metadata"]["uid"] for job in page)
            keys.update(JobKey(job["metadata"]["namespace"], job["metadata"]["name"]) for job in page)
            # Not held while the next one is fetched.
            del page
    intake.gone(known - keys)
    for plan in stored:
        if plan.uid not in uids:
            add(plan)
