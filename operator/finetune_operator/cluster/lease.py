"""Leader election on one Lease: at most one operator acts at a time.

Not ``kubernetes.aio.leaderelection``, which keeps renewing the Lease of a leader that has failed and keeps leading when
the API is lost. As in client-go, timestamps of other machines are never compared with the local clock: a Lease has
expired when this process has seen it unchanged for its duration.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from finetune_operator.cluster.port import LEASES, ClusterError, Conflict, KubernetesClient, NotFound
from finetune_operator.objects import Object

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """The Lease could not be renewed in time, or another process holds it. The process should end."""


class CannotLead(Exception):
    """The Lease is free, but this process could do nothing with it. It should wait until it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Name of the Lease and timing. Times are in seconds."""

    namespace: str
    name: str
    identity: str
    """Stable across restarts of the container, so a restarted operator takes back its own Lease at once."""
    duration: int = 15
    """Time that other candidates wait after the last renewal."""
    renew_every: float = 4
    give_up_after: float = 10
    """Time that this process leads after the last renewal. Shorter than ``duration``: what it sends until then arrives
    before another process may begin."""
    retry_every: float = 2
    """Interval at which a candidate checks the Lease."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def _always() -> bool:
    """The default of ``able``."""
    return True


class LeaderElection:
    """Runs work while this process leads. Create one instance per process.

    ``able``: returns whether this process could work now; called before it takes the Lease.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        settings: LeaseSettings,
        *,
        able: Callable[[], Awaitable[bool]] = _always,
        utc_now: Callable[[], datetime] = _utc_now,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._able = able
        self._settings = settings
        self._utc_now = utc_now
        self._clock = clock
        self._sleep = sleep
        self._held: Object | None = None
        self._ends = 0.0
        """Local time at which leadership ends unless the Lease is renewed."""
        self._seen: tuple[str, float] | None = None
        """Resource version of another holder's Lease, and the local time at which it was first seen."""
        self.holder: str | None = None
        """Identity of the current leader, as far as known."""
        self.problem: str | None = "the Lease has not been read yet"
        """Why the last request for the Lease failed; None if it succeeded."""

    @property
    def leading(self) -> bool:
        """Whether this process may write: it holds the Lease, and the last renewal is recent enough.

        It is exact at any moment: a process that was stopped for a while does not lead when it continues, even before
        any other task runs.
        """
        return self._held is not None and self._clock() < self._ends

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits to be elected, runs ``work`` and releases the Lease. Returns or raises as ``work`` does.

        Raises LeadershipLost if the Lease is lost first; ``work`` is then cancelled and awaited. Raises CannotLead
        if the Lease could be taken and this process is not able to work.
        """
        while not await self._acquire():
            await self._sleep(self._settings.retry_every)
        log.info("leading as %s", self._settings.identity)
        working = asyncio.ensure_future(work())
        renewing = asyncio.ensure_future(self._keep())
        try:
            done, _ = await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)
            await self._release()
        for task in (working, renewing):
            if task in done:
                task.result()

    async def _acquire(self) -> bool:
        """Checks the Lease once. Returns whether this process now holds it. Raises CannotLead."""
        try:
            try:
                lease = await self._cluster.get(LEASES, self._settings.namespace, self._settings.name)
            except NotFound:
                lease = None
            if lease is not None and not self._may_take(lease):
                return False
            if not await self._able():
                raise CannotLead
            requested_at = self._clock()
            if lease is None:
                self._held = await self._cluster.create(LEASES, self._manifest(None))
            else:
                self._held = await self._cluster.apply(LEASES, self._manifest(lease))
        except Conflict:
            # Another candidate was faster; the next check shows which one.
            return False
        except ClusterError as error:
            log.warning("cannot take the Lease %s: %s", self._settings.name, error)
            self.problem = f"cannot take the Lease {self._settings.name}: {error}"
            return False
        self.problem = None
        self.holder = self._settings.identity
        self._ends = requested_at + self._settings.give_up_after
        return True

    def _may_take(self, lease: Object) -> bool:
        self.problem = None
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity")
        if holder != self.holder:
            log.info("the Lease %s is held by %s", self._settings.name, holder or "no process")
        self.holder = holder
        if not holder or holder == self._settings.identity:
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        unchanged = self._clock() - self._seen[1]
        return unchanged >= int(spec.get("leaseDurationSeconds", self._settings.duration))

    async def _keep(self) -> None:
        """Renews the Lease until renewals have failed for ``give_up_after``."""
        settings = self._settings
        pause = settings.renew_every
        while True:
            # Leadership may have ended while this process did not run.
            await self._sleep(max(0.0, min(pause, self._ends - self._clock())))
            # Measured from before the call: a slow response must not prolong this process's leadership.
            requested_at = self._clock()
            left = self._ends - requested_at
            if left <= 0:
                unrenewed = settings.give_up_after - left
                raise LeadershipLost(f"the Lease was not renewed for {unrenewed:.0f} s")
            try:
                async with asyncio.timeout(left):
                    await self._renew()
            except (ClusterError, TimeoutError) as error:
                self.problem = f"the Lease was not renewed: {error or 'no response in time'}"
                log.warning("%s", self.problem)
                pause = settings.retry_every
            else:
                self.problem = None
                self._ends, pause = requested_at + settings.give_up_after, settings.renew_every

    async def _renew(self) -> None:
        try:
            self._held = await self._cluster.apply(LEASES, self._manifest(self._held))
        except Conflict as error:
            # Another process has written it, or an earlier write arrived but its response was lost.
            lease = await self._cluster.get(LEASES, self._settings.namespace, self._settings.name)
            if lease.get("spec", {}).get("holderIdentity") != self._settings.identity:
                raise LeadershipLost("another operator holds the Lease") from error
            self._held = await self._cluster.apply(LEASES, self._manifest(lease))

    async def _release(self) -> None:
        """Releases the Lease so that the next candidate can begin at once. Best effort: the Lease expires anyway."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            async with asyncio.timeout(self._settings.retry_every):
                await self._cluster.apply(LEASES, self._manifest(held, release=True))
        except (ClusterError, TimeoutError) as error:
            log.info("the Lease was not released: %s", error or "no response in time")
        else:
            self.holder = None

    def _manifest(self, previous: Object | None, *, release: bool = False) -> Object:
        """Returns the Lease to write. It has the version of ``previous``: the write fails if the Lease has another."""
        settings = self._settings
        spec = dict(previous.get("spec", {})) if previous else {}
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = spec.get("holderIdentity") == settings.identity
        metadata: dict[str, Any] = {"namespace": settings.namespace, "name": settings.name}
        if previous:
            metadata["resourceVersion"] = previous["metadata"]["resourceVersion"]
        wanted: dict[str, Any] = {
            # Empty, as in client-go: apply cannot remove the field, since create owns it too.
            "holderIdentity": "" if release else settings.identity,
            "leaseDurationSeconds": settings.duration,
            "renewTime": now,
            "acquireTime": spec.get("acquireTime", now) if ours else now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (0 if ours or not previous else 1),
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": wanted}
