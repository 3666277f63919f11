"""Takes keys from the queue and reconciles them, until the process ends; lists all jobs periodically."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from time import monotonic

from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cluster.port import JOBS, ClusterError, KubernetesClient, Rejected
from finetune_operator.reconcile.cache_check import distrust_outdated
from finetune_operator.reconcile.keys import JobKey, PlanKey
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import ReconcileError
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.logs import current_key
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.queue import WorkQueue

log = logging.getLogger(__name__)

#: Seconds after which a reconcile no longer counts against the limit of concurrent reconciles. While stores hang, other
#: keys wait about as long.
SLOW_SECONDS = 0.5
#: Timeout of a reconcile in seconds. Each of its calls has a shorter deadline, but it may make many.
RECONCILE_SECONDS = 240
#: Seconds after which a reconcile counts as hanging: a minute after its own timeout.
STUCK_SECONDS = RECONCILE_SECONDS + 60
#: Maximum number of reconciles in progress, including slow ones, per concurrent reconcile.
_SLOW_PER_PLACE = 4
#: Seconds from a fault to the end of the process, for reconciles and calls to stores that are in progress.
FAULT_SECONDS = 10.0
#: Of them, for reconciles.
FAULT_DRAIN_SECONDS = 2.0
#: Seconds after the drain in which a process that was stopped may end by itself: less than the grace period of its pod.
STOP_SECONDS = 8.0


class Workers[K: Hashable]:
    """Reconciles the keys of one queue, many concurrently.

    ``reconcile`` gets a key and the seconds until the retry of a failure. It returns the seconds until the key is due
    again, or None.

    A slow reconcile waits for a store or the API server and does not delay other keys: after SLOW_SECONDS it no longer
    counts against the limit, up to a number of such reconciles. One namespace never has more reconciles in progress
    than half of the limit, and fewer if many namespaces have slow ones, so that others can always begin.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Callable[[K, float], Awaitable[float | None]],
        *,
        metrics: OperatorMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._clock = clock
        self._begun: dict[K, float] = {}

    def stuck(self) -> tuple[str, ...]:
        """Returns a sentence if a reconcile hangs.

        The time that keys wait in the queue is not considered: they also wait while the store or the API server is
        unavailable, which a restart would not fix.
        """
        longest = max((self._clock() - begun for begun in self._begun.values()), default=0.0)
        return (f"a reconcile has been running for {longest:.0f} s",) if longest > STUCK_SECONDS else ()

    async def run(self, number: int) -> None:
        """Runs until the queue is closed and the reconciles in progress are finished, at most ``number`` concurrently,
        not counting slow ones."""
        places = asyncio.Semaphore(number)
        async with asyncio.TaskGroup() as group:
            while True:
                await places.acquire()
                key = await self._queue.take(each=max(1, number // 2), total=number * _SLOW_PER_PLACE)
                if key is None:
                    return
                group.create_task(self._work(key, places), name=f"reconcile {key}")

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
        """Reconciles one key. Its errors do not affect other keys."""
        current_key.set(key)
        begun = self._clock()
        retry_in = self._queue.retry_in(key)
        reason: str | None = None
        try:
            async with asyncio.timeout(RECONCILE_SECONDS) as limit:
                again_after = await self._reconcile(key, retry_in)
        except ReconcileError as error:
            reason = error.reason
            log.warning("%s: %s (again in %.1f s)", reason, error, max(retry_in, error.retry_after))
            self._queue.failed(key, error.retry_after)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                # Otherwise a task that the reconcile awaited was cancelled, not the reconcile itself.
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                reason = "TooSlow"
                log.warning("the reconcile was cancelled after %d s", RECONCILE_SECONDS)
            else:
                reason = "InternalError"
                log.exception("internal error of the operator")
            self._queue.failed(key)
        else:
            if not self._queue.is_postponed(key):
                self._metrics.brought_up_to_date(self._queue.delay(key))
            self._queue.done(key, again_after)
        finally:
            self._metrics.reconciled(key, self._clock() - begun, reason)


async def end(tasks: Iterable[asyncio.Task[object]], store: SharedStore, *, patience: float) -> None:
    """Cancels the tasks and waits for them and for every call to the store that they started.

    A later write would conflict with the next leader's decisions. ``patience``: seconds to wait for the store's calls,
    which have their own deadlines.
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


def end_within(seconds: float) -> None:
    """Ends the process with code 1 after that time, unless it has ended by itself.

    It then does not release the Lease, which expires: what it still does to a store might not have ended. A thread
    waits, because neither the event loop nor the interpreter ends while a task or a call in a thread does not.
    """

    def end() -> None:
        log.error("the process has not ended in %.0f s: it ends now, without releasing the Lease", seconds)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def resync(
    cluster: KubernetesClient,
    namespaces: Sequence[str],
    intake: EventHandlers,
    *,
    plans: Plans,
    cache: WatchCache,
    add: Callable[[PlanKey], None],
    every: float,
) -> None:
    """Lists all jobs live at the start and after each interval, so that lost events leave no job or plan behind.

    The cache is compared with the cluster before. ``add`` gets each plan whose job was not listed.
    """
    while True:
        try:
            await distrust_outdated(cluster, cache, namespaces)
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
    """Lists plans and jobs once.

    The known jobs are read first and plans are listed before jobs, so that objects created in between do not count as
    deleted. If a page of either listing fails, nothing counts as deleted. A namespace that may not be listed is left
    out: nothing in it counts as deleted.
    """
    known = intake.keys()
    stored = [plan async for plan in plans.stored(namespaces)]
    plans.keep({plan.uid for plan in stored})
    uids: set[str] = set()
    keys: set[JobKey] = set()
    refused: set[str] = set()
    intake.listing()
    for scope in namespaces or (None,):
        try:
            async for page in cluster.pages(JOBS, scope):
                intake.listed(page)
                uids.update(job["metadata"]["uid"] for job in page)
                keys.update(JobKey(job["metadata"]["namespace"], job["metadata"]["name"]) for job in page)
                # Releases the page before the next one is fetched.
                del page
        except Rejected as error:
            if scope is None:
                raise
            log.warning("the resync leaves out namespace %s: %s", scope, error)
            refused.add(scope)
    intake.gone({key for key in known - keys if key.namespace not in refused}, left_out=refused)
    for plan in stored:
        if plan.uid not in uids and plan.namespace not in refused:
            add(plan)
