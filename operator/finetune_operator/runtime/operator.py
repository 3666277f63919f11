"""The operator's process: waits until it can work and leads, works, and shuts down in order."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from datetime import UTC, datetime

from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.cluster.clock import ServerClock
from finetune_operator.cluster.lease import CannotLead, LeaderElection, LeaseSettings
from finetune_operator.cluster.port import KubernetesClient
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.runtime.leader import Leader
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.metrics_tls import metrics_tls
from finetune_operator.runtime.prerequisites import (
    Prerequisites,
    check_prerequisites,
    wait_for_prerequisites,
)
from finetune_operator.runtime.probes import ProbeServer
from finetune_operator.runtime.settings import Settings
from finetune_operator.runtime.webhook import Webhook
from finetune_operator.runtime.workers import STOP_SECONDS, end_within

log = logging.getLogger(__name__)


class Operator:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics()
        self._clock = ServerClock(lambda: datetime.now(UTC))
        self._stop = asyncio.Event()
        self._election: LeaderElection | None = None
        self._leader: Leader | None = None
        self._found = Prerequisites((), ("the prerequisites have not been checked yet",))
        """Of the last check before this process took the Lease."""
        self._served = ServedNamespaces(
            settings.namespaces, utc_now=self._clock.now, chips=self._metrics.chips
        )

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT. Raises LeadershipLost, WatchesEndedError, NoCredentials or OSError."""
        settings = self._settings
        self._take_signals()
        webhook = Webhook.of(settings)
        probes = ProbeServer(
            healthy=lambda: self._leader.problems() if self._leader else (),
            ready=self._not_ready,
            metrics=self._metrics,
            metrics_tls=metrics_tls(settings),
        )
        lease = LeaseSettings(
            namespace=settings.own_namespace, name=settings.lease_name, identity=settings.identity
        )
        configuration = settings.service_account.configuration()
        observer = self._metrics.requested
        async with ApiServerClient(configuration, observer=observer, clock=self._clock) as leases:
            election = self._election = LeaderElection(leases, lease, able=lambda: self._able(cluster))
            async with ApiServerClient(
                configuration, observer=observer, clock=self._clock, may_write=lambda: election.leading
            ) as cluster:
                try:
                    await probes.start(settings.health_host, settings.health_port, settings.metrics_port)
                    await self._campaign(cluster, election, webhook)
                finally:
                    await probes.stop()
                    if webhook is not None:
                        await webhook.close()
        log.info("stopped")

    async def _campaign(
        self, cluster: KubernetesClient, election: LeaderElection, webhook: Webhook | None
    ) -> None:
        """Takes part in the election whenever this process can watch: otherwise another one gets the Lease."""

        async def lead() -> None:
            self._leader = Leader(
                self._settings,
                cluster,
                self._found,
                served=self._served,
                metrics=self._metrics,
                utc_now=self._clock.now,
                webhook=webhook,
                leading=lambda: election.leading,
            )
            await self._leader.run(self._stop, self._take_signals)

        while await wait_for_prerequisites(lambda: self._check(cluster), self._stop):
            try:
                await self._until_stopped(election, election.run(lead))
            except CannotLead:
                continue
            return

    async def _able(self, cluster: KubernetesClient) -> bool:
        """Whether this process can watch now: CRDs and rights may have changed since it waits for the Lease."""
        return not (await self._check(cluster)).missing

    async def _check(self, cluster: KubernetesClient) -> Prerequisites:
        settings = self._settings
        self._found = await check_prerequisites(
            cluster, settings.namespaces, own_namespace=settings.own_namespace, own_name=settings.lease_name
        )
        return self._found

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

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)

    def _terminate(self) -> None:
        self._stop.set()
        end_within(self._settings.drain_seconds + STOP_SECONDS)

    def _not_ready(self) -> tuple[str, ...]:
        """Returns why this process neither leads nor could lead at once."""
        missing = self._found.missing or self._served.problems()
        lease_problem = self._election.problem if self._election else None
        return (*missing, lease_problem) if lease_problem else missing
