"""The operator's process: waits until it can work and leads, watches, reconciles, and shuts down in order."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.artifacts.shared_store import SharedStore, blocking_stores
from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.cluster.clock import ServerClock
from finetune_operator.cluster.lease import CannotLead, LeaderElection, LeaseSettings
from finetune_operator.cluster.port import WORKLOADS, ClusterError, KubernetesClient, Object, WatchStream
from finetune_operator.lifecycle.accounting.job_usage import counted_on
from finetune_operator.lifecycle.decide import decide
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.at_work import AtWork
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.ledger import LEDGER_ADVICE, Ledger
from finetune_operator.reconcile.notifications import Notifications
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import PlanKey, Plans
from finetune_operator.reconcile.profiles import Key, ProfileKey, ProfileReconciler
from finetune_operator.reconcile.reconciler import ReconcileError, Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.training_times import TrainingTimes
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.ending import FAULT_DRAIN_SECONDS, FAULT_SECONDS, STOP_SECONDS, end_within
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager, watches
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.metrics_tls import metrics_tls
from finetune_operator.runtime.other_releases import earlier_releases
from finetune_operator.runtime.prerequisites import (
    Prerequisites,
    check_prerequisites,
    serves,
    wait_for_prerequisites,
)
from finetune_operator.runtime.probes import ProbeResult, ProbeServer, health, readiness
from finetune_operator.runtime.queue import WorkQueue
from finetune_operator.runtime.settings import Settings
from finetune_operator.runtime.watches import WatchHealth
from finetune_operator.runtime.webhook import Webhook
from finetune_operator.runtime.workers import Reconcile, Workers, end, resync

log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def _delete_orphan(plans: Plans, key: PlanKey) -> bool:
    try:
        return await plans.delete_orphan(key)
    except ClusterError as error:
        raise ReconcileError.of(error) from error


class Operator:
    """One operator process.

    Args:
        settings: the operator's settings.
        environ: environment with the API server's address.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._metrics = OperatorMetrics()
        self._clock = ServerClock(_utc_now)
        self._stop = asyncio.Event()
        self._election: LeaderElection | None = None
        self._ages: WatchHealth | None = None
        self._workers: Workers[Key] | None = None
        self._webhook: Webhook | None = None
        self._missing: tuple[str, ...] = ("the prerequisites have not been checked yet",)
        self._found = Prerequisites(())
        """Of the last check before this process took the Lease."""
        self._served = ServedNamespaces(
            settings.namespaces, utc_now=self._clock.now, chips=self._metrics.chips
        )

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT. Raises LeadershipLost, WatchesEndedError, NoCredentials or OSError."""
        settings = self._settings
        self._take_signals()
        self._webhook = Webhook.of(settings)
        probes = ProbeServer(
            healthy=self._healthy, ready=self._ready, metrics=self._metrics, metrics_tls=metrics_tls(settings)
        )
        account = settings.service_account
        lease = LeaseSettings(
            namespace=self._namespace(),
            name=settings.lease_name,
            identity=settings.identity,
        )
        configuration = account.configuration(self._environ)
        observer = self._metrics.requested
        async with ApiServerClient(configuration, observer=observer, clock=self._clock) as leases:
            election = self._election = LeaderElection(leases, lease, able=lambda: self._able(cluster))
            async with ApiServerClient(
                configuration, observer=observer, clock=self._clock, may_write=lambda: election.leading
            ) as cluster:
                try:
                    await probes.start(settings.health_host, settings.health_port, settings.metrics_port)
                    await self._campaign(cluster, election)
                finally:
                    await probes.stop()
                    if self._webhook is not None:
                        await self._webhook.close()
        log.info("stopped")

    async def _campaign(self, cluster: KubernetesClient, election: LeaderElection) -> None:
        """Takes part in the election whenever this process can watch: otherwise another one gets the Lease."""
        while await wait_for_prerequisites(lambda: self._check(cluster), self._stop, self._set_missing):
            try:
                await self._until_stopped(election, election.run(lambda: self._lead(cluster, election)))
            except CannotLead:
                continue
            return

    async def _able(self, cluster: KubernetesClient) -> bool:
        """Whether this process can watch now: CRDs and rights may have changed since it waits for the Lease."""
        self._found = await self._check(cluster)
        self._set_missing(self._found.missing)
        return not self._found.missing

    async def _check(self, cluster: KubernetesClient) -> Prerequisites:
        """Checks whether all streams to watch can be listed. Workloads are among them if Kueue is installed now."""
        namespaces = self._settings.namespaces

        async def wanted() -> tuple[WatchStream, ...]:
            return watches(namespaces, kueue=await serves(cluster, WORKLOADS, namespaces))

        async def conflicts() -> tuple[str, ...]:
            return await earlier_releases(cluster, self._namespace(), self._settings.lease_name, namespaces)

        return await check_prerequisites(cluster, wanted, conflicts)

    async def _until_stopped(
        self, election: LeaderElection, electing: Coroutine[object, object, None]
    ) -> None:
        """Runs the election until it ends. A stop cancels a candidate at once; a leader shuts down by itself."""
        campaign = asyncio.ensure_future(electing)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({campaign, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not campaign.done() and not election.leading:
                campaign.cancel()
            await asyncio.wait({campaign})
        finally:
            stopping.cancel()
            campaign.cancel()
        if not campaign.cancelled():
            campaign.result()

    async def _lead(self, cluster: KubernetesClient, election: LeaderElection) -> None:
        """Watches and reconciles until stopped or until a part fails."""
        settings, served, wanted = self._settings, self._served, self._found.watches
        kueue = any(watch.kind is WORKLOADS for watch in wanted)
        if not kueue:
            log.info(
                "Kueue is not installed; after a later installation, its conditions are reported at a "
                "job's next observation, and this process watches them after a restart"
            )
        queue = WorkQueue[Key]()
        records = SharedStore(blocking_stores(advice=LEDGER_ADVICE), may_write=lambda: election.leading)
        # Apart from the store for writing, which the records of a month must not delay.
        months = SharedStore(blocking_stores(advice=LEDGER_ADVICE), may_write=lambda: False)
        at_work = self._at_work(cluster)
        budgets = Budgets(
            months,
            settings.ledger,
            utc_now=self._clock.now,
            times=TrainingTimes(),
            unobserved_until=served.unobserved_until,
            at_work=at_work,
        )
        ledger = (
            Ledger(
                records,
                settings.ledger,
                utc_now=self._clock.now,
                written=self._metrics.ledger_written,
                recorded=budgets.recorded,
            )
            if settings.ledger
            else None
        )
        close = partial(self._close, ledger, budgets)
        notifications = self._notifications(cluster)
        if notifications is not None:
            await notifications.restore()
        intake = EventHandlers(
            queue.add, self._metrics, deleted=close, budgets=budgets, notifications=notifications
        )
        served.changed = intake.namespace_changed
        for stream, problem in self._found.refused.items():
            served.refused(stream, problem, at_once=True)
        ages = self._ages = WatchHealth(wanted)
        plans = Plans(cluster, self._namespace())
        cache = WatchCache(wanted, missed=close)
        reported = partial(self._reported, cache, intake)
        store = SharedStore(
            may_write=lambda: election.leading,
            requested=self._metrics.storage_requested,
            refused=self._metrics.storage_refused,
        )
        reconcile = self._reconcile(
            cluster, plans, intake, store, cache, ledger=ledger, budgets=budgets, postpone=queue.postpone
        )
        workers = self._workers = Workers(queue, reconcile, metrics=self._metrics)
        self._metrics.leads(
            queue=queue,
            live=lambda: intake.live,
            known=lambda: intake.known,
            cache=cache,
            served=served,
            leading=lambda: election.leading,
            ledger=ledger,
            budgets=budgets,
            notifications=notifications,
        )
        host = WatchManager(
            settings.service_account,
            served,
            intake,
            ages,
            cache,
            environ=self._environ,
            kueue=kueue,
        )
        working = asyncio.create_task(workers.run(settings.workers), name="workers")
        others = {
            asyncio.create_task(host.run(self._take_signals), name="watches"),
            asyncio.create_task(
                resync(
                    cluster,
                    settings.namespaces,
                    intake,
                    plans=plans,
                    cache=cache,
                    add=queue.add,
                    every=settings.resync_seconds,
                ),
                name="resync",
            ),
            asyncio.create_task(self._stop.wait(), name="stop"),
            *([asyncio.create_task(ledger.run(), name="ledger")] if ledger else []),
            *([asyncio.create_task(at_work.run(reported), name="at-work")] if at_work else []),
            asyncio.create_task(budgets.run(intake.usage_known), name="budgets"),
            *([asyncio.create_task(notifications.run(), name="notifications")] if notifications else []),
        }
        try:
            done, _ = await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
            queue.close()
            # Finishes the reconciles in progress, so that the next leader finds none half done.
            fault = not self._stop.is_set()
            if fault:
                end_within(FAULT_SECONDS)
            drain = FAULT_DRAIN_SECONDS if fault else settings.drain_seconds
            await asyncio.wait({working}, timeout=drain)
        finally:
            if not self._stop.is_set():
                end_within(FAULT_SECONDS)
            await end((working, *others), store, patience=settings.drain_seconds)
            await months.ended()
            if notifications is not None:
                await notifications.finish()
            if ledger is not None:
                await ledger.finish()
                await records.ended()
        for task in done:
            task.result()

    def _close(self, ledger: Ledger | None, budgets: Budgets, job: Object) -> None:
        """Takes a deleted job. What ran in a namespace that was lost counts until that was served again."""
        newest = budgets.unwritten.newest(job)
        counted = counted_on(newest, self._served.unobserved_until(job["metadata"]["namespace"]))
        if counted is not job:
            budgets.job(counted)
        if ledger is not None:
            ledger.close(counted)

    def _at_work(self, cluster: KubernetesClient) -> AtWork | None:
        """Without a list of namespaces none is ever lost."""
        name = f"{self._settings.lease_name}-at-work"
        return AtWork(cluster, self._namespace(), name) if self._settings.namespaces else None

    def _reported(self, cache: WatchCache, intake: EventHandlers, job: Object) -> None:
        """Takes a job as an earlier leader has observed it last: nothing else is known of it in a lost namespace."""
        if job["metadata"]["namespace"] in self._served.lost():
            log.warning(
                "%(namespace)s/%(name)s counts on: it was on chips when last observed", job["metadata"]
            )
            cache.adopt(job)
            intake.listed([job])

    def _notifications(self, cluster: KubernetesClient) -> Notifications | None:
        if self._webhook is None:
            return None
        return Notifications(
            cluster,
            self._namespace(),
            f"{self._settings.lease_name}-notifications",
            self._webhook.deliver,
            utc_now=self._clock.now,
            notified=self._metrics.notified,
        )

    def _namespace(self) -> str:
        """Returns the operator's own namespace."""
        settings = self._settings
        return settings.operator_namespace or settings.service_account.namespace()

    def _reconcile(
        self,
        cluster: KubernetesClient,
        plans: Plans,
        intake: EventHandlers,
        store: ObjectStore,
        cache: WatchCache,
        *,
        ledger: Ledger | None,
        budgets: Budgets,
        postpone: Callable[[Key], bool],
    ) -> Reconcile[Key]:
        observer = Observer(
            cluster,
            plans,
            RunFolderReader(store),
            cache,
            utc_now=self._clock.now,
            live_jobs=lambda: intake.live,
            served=self._served,
            ledger=self._settings.ledger,
            budgets=budgets,
            paused=self._settings.paused,
        )

        def unwritten(job: Object) -> None:
            budgets.unwritten.keep(job)
            budgets.job(job)

        applier = Applier(
            cluster,
            plans,
            store,
            cache,
            created=intake.jobset_created,
            changed=self._metrics.changed,
            pruned=ledger.give_up if ledger else lambda: None,
            unwritten=unwritten,
        )
        jobs = Reconciler(
            observer, decide, applier, utc_now=self._clock.now, ledger=ledger, postpone=postpone
        )
        # An operator that serves some namespaces counts only their jobs, and would overwrite other operators' counts.
        everywhere = not self._settings.namespaces
        profiles = ProfileReconciler(
            cluster,
            used_by=lambda name: intake.used_by(name) if everywhere else None,
            utc_now=self._clock.now,
            ledger=self._settings.ledger,
            lost=self._served.lost,
            release=f"{self._namespace()}/{self._settings.lease_name}",
        )

        async def reconcile(key: Key, /, *, retry_in: float) -> float | None:
            if isinstance(key, ProfileKey):
                await profiles.reconcile(key)
                return None
            if not self._served.serves(key.namespace):
                # All its jobs are queued when it is back, and its plans stay until then.
                return None
            if isinstance(key, PlanKey):
                if await _delete_orphan(plans, key) and ledger and not ledger.has_closed(key.uid):
                    self._metrics.deletion_missed()
                    log.warning("deleted while no operator watched: the ledger may lack usage of the %s", key)
                return None
            return await jobs.reconcile(key, retry_in=retry_in)

        return reconcile

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)

    def _terminate(self) -> None:
        self._stop.set()
        end_within(self._settings.drain_seconds + STOP_SECONDS)

    def _set_missing(self, missing: tuple[str, ...]) -> None:
        self._missing = missing

    def _healthy(self) -> ProbeResult:
        return health(
            self._ages.dead() if self._ages else (), self._workers.longest() if self._workers else 0.0
        )

    def _ready(self) -> ProbeResult:
        missing = self._missing or self._served.problems()
        return readiness(missing, self._election.problem if self._election else None)
