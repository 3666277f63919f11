"""Takes keys off the queue and reconciles what they name; looks at all live jobs now and then."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Protocol

from finetune_operator.cluster.port import JOBS, Cluster, ClusterError
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


async def resync(cluster: Cluster, namespaces: Sequence[str], intake: Intake, *, every: float) -> None:
    """Every so often a live listing of all jobs: whatever event was lost, no job is forgotten."""
    while True:
        await asyncio.sleep(every)
        try:
            jobs = [job for scope in namespaces or (None,) for job in await cluster.list(JOBS, scope)]
        except ClusterError as error:
            log.warning("the resync was skipped: %s", error)
            continue
        intake.resync(jobs)
