"""Reconciles one job: observes it once, decides, and applies the decision."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Self

from finetune_contract import RunFolder
from finetune_operator.artifacts.port import StorageError
from finetune_operator.artifacts.tenant_shares import CallSlots, calls_for_tenant
from finetune_operator.cluster.port import ClusterError, Conflict
from finetune_operator.lifecycle.accounting.recorded import with_records
from finetune_operator.lifecycle.decision import Admit, Create, Decision, Finish
from finetune_operator.lifecycle.observation import Observation, RetryRecord, TakeoverRecord
from finetune_operator.objects import Object
from finetune_operator.planning.errors import Refused
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.children import ManyChildren
from finetune_operator.reconcile.confirmation import Confirmation, confirmation
from finetune_operator.reconcile.errors import reason_of, status_with_error
from finetune_operator.reconcile.keys import JobKey, PlanKey
from finetune_operator.reconcile.ledger import Ledger
from finetune_operator.reconcile.nodes import ListedNodes
from finetune_operator.reconcile.observe import UNREAD, Observer
from finetune_operator.reconcile.record_writer import run_folder

log = logging.getLogger(__name__)


#: Seconds for all calls to the artifact store in one reconcile. Decisions that depend on the cluster alone must not be
#: delayed for longer.
STORE_SECONDS = 60
#: Maximum delay in seconds before a retry, regardless of the server's Retry-After.
LONGEST_RETRY_AFTER = 600.0
#: Backoff in seconds from which a repeated conflict is shown to the user.
_PERSISTENT_SECONDS = 4
#: Number of JobSets and pods for which a decision takes about 10 ms.
_FEW = 200
#: Number of jobs with children that take much memory that are reconciled at once, one of a namespace at most.
LARGE_JOBS = 3
#: Number of first JobSets whose report waits, of 14 KiB each.
_MOST_UNREPORTED = 1024
#: Seconds until records are written again that the ledger could not take, if there are few jobs.
_LEDGER_SECONDS = 60.0


class ReconcileError(Exception):
    """A reconcile failed. The status shows it if it could be written; the caller retries the key with backoff."""

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = min(retry_after or 0.0, LONGEST_RETRY_AFTER)
        """Delay in seconds that the server requested; 0 if none."""

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Returns the ReconcileError for any error."""
        expected = isinstance(error, ClusterError | StorageError | Refused)
        retry_after = error.retry_after if isinstance(error, ClusterError) else None
        return cls(reason_of(error), str(error) if expected else repr(error), retry_after=retry_after)


class _Unconfirmed(Exception):
    """A decision on cached objects needs a live observation. ``nodes`` were listed live for the cached one."""

    def __init__(self, nodes: ListedNodes) -> None:
        super().__init__()
        self.nodes = nodes


def _first_plan(observation: Observation, decision: Decision) -> Object | None:
    """Returns the plan to store if the job has no children, so that its first JobSet can follow in the same pass."""
    action = decision.action
    if not isinstance(action, Admit) or isinstance(action.write, RetryRecord | TakeoverRecord):
        return None
    known = observation.jobsets or observation.pods or observation.status.resolved
    return None if known else action.write


class Reconciler:
    """Reconciles jobs. It may be called for any key at any time, but not concurrently for the same key.

    Args:
        decide: derives the decision from the observation; pure.
        ledger: takes the records of attempts; None if the operator keeps none.
        crowded: whether other keys of the namespace wait. The report of a job's first JobSet then waits until they
            have theirs.
        postpone: has a key reconciled again when no other key of its namespace is due. Returns False if none is now.
    """

    def __init__(
        self,
        observer: Observer,
        decide: Callable[[Observation], Decision],
        applier: Applier,
        *,
        utc_now: Callable[[], datetime],
        ledger: Ledger | None = None,
        crowded: Callable[[JobKey], bool] = lambda _: False,
        postpone: Callable[[JobKey], bool] = lambda _: False,
    ) -> None:
        self._ledger = ledger
        self._crowded, self._postpone = crowded, postpone
        self._unreported: dict[JobKey, tuple[PlanKey, RunFolder, Object]] = {}
        """First JobSets whose reports wait, with the plans and run folders of their jobs."""
        self._observer = observer
        self._decide = decide
        self._applier = applier
        self._utc_now = utc_now
        # One thread: more of them would only compete with the event loop for the interpreter.
        self._aside = ThreadPoolExecutor(1, "decide")
        self._large = CallSlots(total=LARGE_JOBS, each=(1,))

    async def reconcile(self, key: JobKey, *, retry_in: float) -> float | None:
        """Reconciles one job. ``retry_in``: seconds until the retry of a failure, which the status shows.

        Returns the seconds until the next reconcile; None if only a change requires one, or if the job does not exist.
        Raises ReconcileError for any error.
        """
        with calls_for_tenant(key.namespace, seconds=STORE_SECONDS), suppress(ManyChildren):
            return await self._confirm_and_reconcile(key, retry_in, large=False)
        # What the first pass has read is released before the job waits.
        give_back = await self._large.take(key.namespace)
        try:
            with calls_for_tenant(key.namespace, seconds=STORE_SECONDS):
                return await self._confirm_and_reconcile(key, retry_in, large=True)
        except ManyChildren as error:
            raise ReconcileError.of(error) from error
        finally:
            give_back()

    async def _confirm_and_reconcile(self, key: JobKey, retry_in: float, *, large: bool) -> float | None:
        """Reconciles one job, on a second observation if the first is cached and does not suffice."""
        try:
            return await self._reconcile(key, retry_in, large=large)
        except _Unconfirmed as unconfirmed:
            earlier = unconfirmed.nodes
        return await self._reconcile(key, retry_in, large=large, earlier=earlier)

    async def _reconcile(
        self, key: JobKey, retry_in: float, *, large: bool, earlier: ListedNodes | None = None
    ) -> float | None:
        observation: Observation | None = None
        decision: Decision | None = None
        announced = False
        try:
            observation = await self._observer.observe(key, large=large, earlier=earlier)
            if observation is None:
                if unreported := self._unreported.get(key):
                    # Its plan may be younger than the event of its deletion.
                    await self._applier.plans.delete_orphan(unreported[0])
                    del self._unreported[key]
                return None
            decision = await self._decided(observation)
            observation, decision = await self._completed(key, observation, decision)
            observation = await self._confirmed(observation, decision)
            if decision.fault is not None:
                log.error(
                    "internal error while reading the content of the run folder", exc_info=decision.fault
                )
            decision = await self._applied(key, observation, decision)
            if not decision.reported:
                return None if self._postpone(key) else 0.0
            await self._applier.announce(observation, decision)
            # The name of an Event depends on the status before the transition, so that a retry does not create it
            # twice. No other status may be written before the one that shows the transition.
            announced = bool(decision.events)
            decision = await self._recorded(observation, decision)
            await self._applier.report(observation, decision)
        except (_Unconfirmed, ManyChildren, asyncio.CancelledError):
            # If it has taken too long, a write may have been carried out whose response is missing in the cache.
            self._observer.distrust(observation)
            raise
        except Exception as error:
            self._observer.distrust(observation)
            if not isinstance(error, ClusterError | StorageError | Refused):
                log.exception("internal error of the operator")
            if isinstance(error, StorageError):
                if observation is not None and decision is not None:
                    # A run folder that cannot be written must not stop the account of what a job uses.
                    decision = await self._recorded(observation, decision)
                # The job is read again: its status may now hold records that wait to be stored.
                await self._report(key, None, error, retry_in, decision)
            elif not announced and (not isinstance(error, Conflict) or retry_in >= _PERSISTENT_SECONDS):
                # Something changed between observation and write. Users need to know only if it happens repeatedly.
                await self._report(key, observation, error, retry_in, decision)
            raise ReconcileError.of(error) from error
        if decision.fault is not None:
            # The status that was just written shows it.
            raise ReconcileError.of(decision.fault) from decision.fault
        return decision.requeue_after

    async def _applied(self, key: JobKey, observation: Observation, decision: Decision) -> Decision:
        """Carries the decision out, and then writes the record of a first JobSet that has waited for that."""
        decision = await self._applier.apply(observation, decision)
        if unreported := self._unreported.pop(key, None):
            await self._applier.records.write_jobset(*unreported[1:])
        if not decision.reported and isinstance(decision.action, Create):
            plan = PlanKey(key.namespace, key.name, observation.job.uid)
            self._unreported[key] = plan, run_folder(observation), decision.action.jobset
        return decision

    async def _recorded(self, observation: Observation, decision: Decision) -> Decision:
        """Writes the ledger's records. Returns the decision with the status that shows them."""
        if self._ledger is None:
            return decision
        if not decision.ledger:
            self._ledger.settled(observation.job.uid)
            return decision
        written = await self._ledger.write(decision.ledger)
        soon = None if tuple(written) == decision.ledger else observation.pace(_LEDGER_SECONDS)
        due = [each for each in (decision.requeue_after, soon) if each is not None]
        return replace(
            decision,
            status=with_records(decision.status, decision.ledger, written),
            requeue_after=min(due, default=None),
        )

    async def _completed(
        self, key: JobKey, observation: Observation, decision: Decision
    ) -> tuple[Observation, Decision]:
        """Decides again on what is then observed if the job has no plan yet or details are needed."""
        if plan := _first_plan(observation, decision):
            # Before the plan exists: no later decision says again what admission remarks.
            await self._applier.announce(observation, decision)
            stored = await self._applier.plans.create(plan)
            later = len(self._unreported) < _MOST_UNREPORTED and self._crowded(key)
            admitted = await self._observer.admitted(key, observation, stored, unread=later)
            decision = await self._decided(replace(admitted, report_later=later))
            if admitted.folder is UNREAD and decision.reported:
                # The status says what is in the run folder.
                admitted = await self._observer.admitted(key, observation, stored)
                decision = await self._decided(admitted)
            observation = admitted
        if decision.details is not None:
            observation = await self._observer.with_details(observation, decision.details)
            decision = await self._decided(observation)
        if isinstance(decision.action, Create | Finish):
            # The JobSet may run and vanish before it is observed; no event may follow the end of the job.
            self._observer.reread(key)
        return observation, decision

    async def _confirmed(self, observation: Observation, decision: Decision) -> Observation:
        """Returns the observation, on which the decision may be applied.

        Raises _Unconfirmed if it must not be applied on these cached objects, and ClusterError.
        """
        needed = confirmation(observation, decision) if observation.cached else Confirmation.NOTHING
        if needed is Confirmation.NOTHING:
            return observation
        confirmed = await self._observer.confirmed(observation) if needed is Confirmation.JOB else None
        if confirmed is None:
            raise _Unconfirmed(ListedNodes.of(observation))
        return confirmed

    async def _decided(self, observation: Observation) -> Decision:
        """Decides in a separate thread for jobs with many children.

        With thousands of children a decision takes a second, which must not block other jobs.
        """
        if len(observation.jobsets) + len(observation.pods) <= _FEW:
            return self._decide(observation)
        return await asyncio.get_running_loop().run_in_executor(self._aside, self._decide, observation)

    async def _report(
        self,
        key: JobKey,
        observation: Observation | None,
        error: Exception,
        retry_in: float,
        decision: Decision | None = None,
    ) -> None:
        """Writes the error to the status, and what was decided of the job. Best effort, since the API server itself may
        be failing."""
        retry_in = max(retry_in, ReconcileError.of(error).retry_after)
        if observation and decision and not decision.reported:
            decision = self._decide(observation)
        try:
            job = observation.job if observation else await self._observer.job(key)
            # The status of a finished job stays as it is; errors of its cleanup appear in the log and metrics.
            if job is not None and not job.finished:
                now = self._utc_now()
                status = status_with_error(job, error, now=now, retry_in=retry_in, decision=decision)
                await self._applier.write_status(job, status)
        except ClusterError as second:
            log.info("the status does not show the error: %s", second)
        except Exception:
            log.exception("the status does not show the error")
