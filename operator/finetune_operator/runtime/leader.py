"""What the process does while it leads: it watches, reconciles, and keeps the records of jobs that go."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cluster.port import WORKLOADS, ClusterError, KubernetesClient
from finetune_operator.ledger.job_usage import counted_on
from finetune_operator.lifecycle.decide import decide
from finetune_operator.objects import Object
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.at_work import AtWork
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.keys import Key, PlanKey, ProfileKey
from finetune_operator.reconcile.ledger import LEDGER_ADVICE, Ledger
from finetune_operator.reconcile.notifications import Notifications
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.profiles import ProfileReconciler
from finetune_operator.reconcile.reconciler import ReconcileError, Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import Prerequisites
from finetune_operator.runtime.queue import WorkQueue
from finetune_operator.runtime.settings import Settings
from finetune_operator.runtime.webhook import Webhook
from finetune_operator.runtime.workers import (
    FAULT_DRAIN_SECONDS,
    FAULT_SECONDS,
    Workers,
    end,
    end_within,
    resync,
)

log = logging.getLogger(__name__)


class Leader:
    """The parts of a process that holds the Lease. ``leading``: whether it may write now."""

    def __init__(
        self,
        settings: Settings,
        cluster: KubernetesClient,
        found: Prerequisites,
        *,
        served: ServedNamespaces,
        metrics: OperatorMetrics,
        utc_now: Callable[[], datetime],
        webhook: Webhook | None,
        leading: Callable[[], bool],
    ) -> None:
        self._settings, self._cluster, self._found = settings, cluster, found
        self._served, self._metrics, self._utc_now = served, metrics, utc_now
        namespace, name = settings.own_namespace, settings.lease_name
        self._queue = WorkQueue[Key]()
        # Without a list of namespaces none is ever lost.
        self._at_work = AtWork(cluster, namespace, f"{name}-at-work") if settings.namespaces else None
        # Apart from the store for writing, which the records of a month must not delay.
        self._months = SharedStore(advice=LEDGER_ADVICE, may_write=lambda: False)
        self._budgets = Budgets(
            self._months,
            settings.ledger,
            utc_now=utc_now,
            unobserved_until=served.unobserved_until,
            at_work=self._at_work,
        )
        self._records = SharedStore(advice=LEDGER_ADVICE, may_write=leading)
        self._ledger = self._new_ledger()
        self._notifications = self._new_notifications(webhook) if webhook else None
        self._intake = EventHandlers(
            self._queue.add,
            metrics,
            deleted=self._close,
            budgets=self._budgets,
            notifications=self._notifications,
        )
        self._plans = Plans(cluster, namespace)
        self._cache = WatchCache(found.watches, missed=self._close)
        self._store = SharedStore(
            may_write=leading,
            requested=metrics.storage_requested,
            refused=metrics.storage_refused,
        )
        self._jobs, self._profiles = self._new_reconciler(), self._new_profile_reconciler()
        self._workers = Workers(self._queue, self._reconcile, metrics=metrics)
        metrics.leads(
            queue=self._queue,
            cache=self._cache,
            served=served,
            leading=leading,
            ledger=self._ledger,
            budgets=self._budgets,
            notifications=self._notifications,
        )

    def problems(self) -> tuple[str, ...]:
        """Returns a sentence for each part that hangs: only a restart helps."""
        return (*self._cache.streams.dead(), *self._workers.stuck())

    async def run(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        """Watches and reconciles until stopped or until a part fails. ``started``: see :meth:`WatchManager.run`."""
        if not any(watch.kind is WORKLOADS for watch in self._found.watches):
            log.info(
                "Kueue is not installed; after a later installation, its conditions are reported at a "
                "job's next observation, and this process watches them after a restart"
            )
        if self._notifications is not None:
            await self._notifications.restore()
        self._served.changed = self._namespace_changed
        for stream, problem in self._found.refused.items():
            self._served.refused(stream, problem, at_once=True)
        working = asyncio.create_task(self._workers.run(self._settings.workers), name="workers")
        parts = self._parts(started) | {"stop": stop.wait()}
        others = {asyncio.create_task(part, name=name) for name, part in parts.items()}
        try:
            done, _ = await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
            self._queue.close()
            # Finishes the reconciles in progress, so that the next leader finds none half done.
            if not stop.is_set():
                end_within(FAULT_SECONDS)
            drain = self._settings.drain_seconds if stop.is_set() else FAULT_DRAIN_SECONDS
            await asyncio.wait({working}, timeout=drain)
        finally:
            if not stop.is_set():
                end_within(FAULT_SECONDS)
            await end((working, *others), self._store, patience=self._settings.drain_seconds)
            await self._months.ended()
            if self._notifications is not None:
                await self._notifications.finish()
            if self._ledger is not None:
                await self._ledger.finish()
                await self._records.ended()
        for task in done:
            task.result()

    def _parts(self, started: Callable[[], None]) -> dict[str, Coroutine[Any, Any, object]]:
        """Returns what runs beside the workers, by name."""
        settings = self._settings
        host = WatchManager(settings.service_account, self._served, self._intake, self._cache)
        parts: dict[str, Coroutine[Any, Any, object]] = {
            "watches": host.run(started),
            "resync": resync(
                self._cluster,
                settings.namespaces,
                self._intake,
                plans=self._plans,
                cache=self._cache,
                add=self._queue.add,
                every=settings.resync_seconds,
            ),
            "budgets": self._budgets.run(self._intake.usage_known),
        }
        if self._ledger is not None:
            parts["ledger"] = self._ledger.run()
        if self._at_work is not None:
            parts["at-work"] = self._at_work.run(self._reported)
        if self._notifications is not None:
            parts["notifications"] = self._notifications.run()
        return parts

    async def _reconcile(self, key: Key, retry_in: float) -> float | None:
        try:
            if isinstance(key, ProfileKey):
                await self._profiles.reconcile(key)
            elif not self._served.serves(key.namespace):
                # All its jobs are queued when it is back, and its plans stay until then.
                pass
            elif isinstance(key, PlanKey):
                await self._delete_orphan(key)
            else:
                return await self._jobs.reconcile(key, retry_in=retry_in)
        except ClusterError as error:
            raise ReconcileError.of(error) from error
        return None

    async def _delete_orphan(self, key: PlanKey) -> None:
        deleted = await self._plans.delete_orphan(key)
        if deleted and self._ledger and not self._ledger.has_closed(key.uid):
            self._metrics.deletion_missed()
            log.warning("deleted while no operator watched: the ledger may lack usage of the %s", key)

    def _close(self, job: Object) -> None:
        """Takes a deleted job. What ran in a namespace that was lost counts until that was served again."""
        newest = self._budgets.unwritten.newest(job)
        counted = counted_on(newest, self._served.unobserved_until(job["metadata"]["namespace"]))
        if counted is not job:
            self._budgets.job(counted)
        if self._ledger is not None:
            self._ledger.close(counted)

    def _reported(self, job: Object) -> None:
        """Takes a job as an earlier leader has observed it last: nothing else is known of it in a lost namespace."""
        if job["metadata"]["namespace"] in self._served.lost():
            log.warning(
                "%(namespace)s/%(name)s counts on: it was on chips when last observed", job["metadata"]
            )
            self._cache.adopt(job)
            self._intake.listed([job])

    def _namespace_changed(self, namespace: str) -> None:
        self._intake.namespace_changed(namespace, self._cache.jobs_in(namespace))

    def _unwritten(self, job: Object) -> None:
        """Takes a job with a status that the API server has not taken."""
        self._budgets.unwritten.keep(job)
        self._budgets.job(job)

    def _new_ledger(self) -> Ledger | None:
        uri = self._settings.ledger
        if not uri:
            return None
        return Ledger(
            self._records,
            uri,
            utc_now=self._utc_now,
            written=self._metrics.ledger_written,
            recorded=self._budgets.recorded,
        )

    def _new_notifications(self, webhook: Webhook) -> Notifications:
        return Notifications(
            self._cluster,
            self._settings.own_namespace,
            f"{self._settings.lease_name}-notifications",
            webhook.deliver,
            utc_now=self._utc_now,
            notified=self._metrics.notified,
        )

    def _new_reconciler(self) -> Reconciler:
        observer = Observer(
            self._cluster,
            self._plans,
            RunFolderReader(self._store),
            self._cache,
            utc_now=self._utc_now,
            live_jobs=lambda: self._intake.live,
            served=self._served,
            ledger=self._settings.ledger,
            budgets=self._budgets,
            paused=self._settings.paused,
        )
        applier = Applier(
            self._cluster,
            self._plans,
            self._store,
            self._cache,
            created=self._intake.jobset_created,
            changed=self._metrics.changed,
            unwritten=self._unwritten,
        )
        return Reconciler(
            observer,
            decide,
            applier,
            utc_now=self._utc_now,
            ledger=self._ledger,
            crowded=self._queue.crowded,
            postpone=self._queue.postpone,
        )

    def _new_profile_reconciler(self) -> ProfileReconciler:
        settings = self._settings
        # An operator that serves some namespaces counts only their jobs, and would overwrite other operators' counts.
        return ProfileReconciler(
            self._cluster,
            used_by=lambda name: None if settings.namespaces else self._intake.used_by(name),
            utc_now=self._utc_now,
            ledger=settings.ledger,
            lost=self._served.lost,
            release=f"{settings.own_namespace}/{settings.lease_name}",
        )
