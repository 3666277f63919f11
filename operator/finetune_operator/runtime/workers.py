"""Takes keys off the queue and reconciles what they name; looks at all live jobs now and then."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Protocol

from finetune_operator.cluster.port import JOBS, Cluster, ClusterError
from finetune_operator.reconcile.observe import JobKey
from finetune_operator.reconcile.plans import PlanKey, Plans
from finetune_operator.reconcile.reconciler import ReconcileError
from finetune_operator.runtime.intake import Intake
from finetune_operator.runtime.logs import current_job
from finetune_operator.runtime.metrics import Metrics
from finetune_operator.runtime.queue import WorkQueue

log = logging.getLogger(__name__)


class Reconcile[K](Protocol):
    """As :meth:`finetune_operator.reconcile.reconciler.Reconciler.reconcile`."""

    async def __call__(self, key: K, /, *, retry_in: float) -> float | None: ...


class Workers[K: Hashable]:
    """A fixed number of coroutines that work on one queue.

    Args:
        queue: where keys come from.
        reconcile: handles one key.
        metrics: hears of each reconcile.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Reconcile[K],
        *,
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._clock = clock

    async def run(self, number: int) -> None:
        """Until the queue is closed; then each ends when it has finished what it has in hand."""
        async with asyncio.TaskGroup() as group:
            for index in range(number):
                group.create_task(self._work(), name=f"worker-{index}")

    async def _work(self) -> None:
        while (key := await self._queue.take()) is not None:
            await self._handle(key)

    async def _handle(self, key: K) -> None:
        token = current_job.set(str(key))
        begun = self._clock()
        reason: str | None = None
        try:
            retry_in = self._queue.retry_in(key)
            again_after = await self._reconcile(key, retry_in=retry_in)
        except ReconcileError as error:
            reason = error.reason
            log.warning("%s: %s (again in %.1f s)", error.reason, error, retry_in)
            self._queue.failed(key)
        else:
            self._queue.done(key, again_after)
        finally:
            self._metrics.reconciled(self._clock() - begun, reason)
            current_job.reset(token)


async def resync(
    cluster: Cluster,
    namespaces: Sequence[str],
    intake: Intake,
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
    cluster: Cluster,
    namespaces: Sequence[str],
    intake: Intake,
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
    intake.gone(known - keys)
    for plan in stored:
        if plan.uid not in uids:
            add(plan)
