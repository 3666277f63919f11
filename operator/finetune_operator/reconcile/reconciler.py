"""One job, one look, one decision, carried out."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Protocol, Self

from finetune_operator.artifacts.port import StorageError
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_operator.cluster.port import ClusterError, Conflict
from finetune_operator.lifecycle.decide import finished
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning.errors import Refused
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.errors import reason_of, status_with_error
from finetune_operator.reconcile.memory_budget import MemoryShare
from finetune_operator.reconcile.observe import JobKey, Observer

log = logging.getLogger(__name__)


#: For all calls to the artifact store of one reconcile. What the cluster alone can tell must not wait for longer.
STORE_SECONDS = 60
#: Seconds. Whatever a server asks for, a job is not left alone for longer.
LONGEST_RETRY_AFTER = 600.0
#: A conflict that still happens when the backoff has grown to this is shown to the user.
_PERSISTENT_SECONDS = 4
#: JobSets and pods on which a decision takes some 10 ms.
_FEW = 200


class ReconcileError(Exception):
    """A reconcile failed and the status says so where it could; the key is to be tried again with backoff."""

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = min(retry_after or 0.0, LONGEST_RETRY_AFTER)
        """Seconds that the server asked to wait; 0 where it named none."""

    @classmethod
    def of(cls, error: Exception) -> Self:
        """What that error comes to."""
        expected = isinstance(error, ClusterError | StorageError | Refused)
        retry_after = error.retry_after if isinstance(error, ClusterError) else None
        return cls(reason_of(error), str(error) if expected else repr(error), retry_after=retry_after)


class Decide(Protocol):
    """The pure core: :func:`finetune_operator.lifecycle.decide.decide`."""

    def __call__(self, observation: Observation, /) -> Decision: ...


class Reconciler:
    """Brings jobs forward. Safe to call for any key at any time, but for one key never twice at once.

    Args:
        observer: looks.
        decide: decides.
        applier: writes.
        utc_now: the wall clock, for errors that are met.
    """

    def __init__(
        self, observer: Observer, decide: Decide, applier: Applier, *, utc_now: Callable[[], datetime]
    ) -> None:
        self._observer = observer
        self._decide = decide
        self._applier = applier
        self._utc_now = utc_now
        # One: more of them would take turns with the event loop, too.
        self._aside = ThreadPoolExecutor(1, "decide")

    async def reconcile(self, key: JobKey, *, retry_in: float) -> float | None:
        """Seconds until the job is to be looked at again; None when only a change can matter, or it is gone.

        Args:
            key: the job.
            retry_in: when a failure will be tried again, seconds; told to the user.

        Raises:
            ReconcileError: for whatever went wrong.
        """
        with calls_for_tenant(key.namespace, seconds=STORE_SECONDS):
            async with self._observer.rooms.of(key.namespace) as room:
                return await self._reconcile(key, retry_in, room)

    async def _reconcile(self, key: JobKey, retry_in: float, room: MemoryShare) -> float | None:
        observation: Observation | None = None
        try:
            observation = await self._observer.observe(key, room)
            if observation is None:
                return None
            decision = await self._decided(observation)
            if decision.closer is not None:
                observation = await self._observer.look_closer(observation, decision.closer, room)
                decision = await self._decided(observation)
            if decision.fault is not None:
                log.error("a fault of the operator over what the run folder holds", exc_info=decision.fault)
            await self._applier.apply(observation, decision)
        except Conflict as error:
            # The world moved between look and write: no news for a user, unless it happens again and again.
            if retry_in >= _PERSISTENT_SECONDS:
                await self._report(key, observation, error, retry_in)
            raise ReconcileError.of(error) from error
        except StorageError as error:
            # The job is read again: its status may hold since what waits to be written.
            await self._report(key, None, error, retry_in)
            raise ReconcileError.of(error) from error
        except Exception as error:
            if not isinstance(error, ClusterError | Refused):
                log.exception("a fault of the operator")
            await self._report(key, observation, error, retry_in)
            raise ReconcileError.of(error) from error
        if decision.fault is not None:
            # The status that was just written names it.
            raise ReconcileError.of(decision.fault) from decision.fault
        return decision.requeue_after

    async def _decided(self, observation: Observation) -> Decision:
        """On thousands of children a decision takes a second; nobody else waits for it then."""
        if len(observation.jobsets) + len(observation.pods) <= _FEW:
            return self._decide(observation)
        return await asyncio.get_running_loop().run_in_executor(self._aside, self._decide, observation)

    async def _report(
        self, key: JobKey, observation: Observation | None, error: Exception, retry_in: float
    ) -> None:
        """Into the status, best effort: the API server may be what failed."""
        retry_in = max(retry_in, ReconcileError.of(error).retry_after)
        try:
            job = observation.job if observation else await self._observer.job(key)
            # One that has ended says for good how it ended; what is left to do for it shows in log and metrics.
            if job is not None and not finished(job):
                status = status_with_error(job, error, now=self._utc_now(), retry_in=retry_in)
                await self._applier.write_status(job, status)
        except ClusterError as second:
            log.info("the status does not show the error: %s", second)
        except Exception:
            log.exception("the status does not show the error")
