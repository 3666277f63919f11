"""Leader election on one Lease: at most one operator acts at a time.

Our own, because ``kubernetes.aio.leaderelection`` keeps a Lease renewed when its leader has failed and keeps
leading when the API is lost. As in client-go, times of other machines are never compared with ours: a Lease
has expired when *we* have seen it unchanged for its duration.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from finetune_operator.cluster.port import LEASES, ClusterError, Conflict, KubernetesClient, NotFound, Object

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """The Lease could not be renewed in time, or another holds it. The process should end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Which Lease, and how patient. Seconds."""

    namespace: str
    name: str
    identity: str
    """Stable over restarts of the container: a restarted operator takes its own Lease back at once."""
    duration: int = 15
    """Others wait this long after the last renewal."""
    renew_every: float = 4
    give_up_after: float = 10
    """Below ``duration``: work has ended before another may begin."""
    retry_every: float = 2
    """How often a candidate looks."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LeaderElection:
    """Runs work while leading. One instance serves one process."""

    def __init__(
        self,
        cluster: KubernetesClient,
        settings: LeaseSettings,
        *,
        utc_now: Callable[[], datetime] = _utc_now,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._utc_now = utc_now
        self._clock = clock
        self._sleep = sleep
        self._held: Object | None = None
        self._seen: tuple[str, float] | None = None
        """Version of another's Lease and when (our clock) we first saw it."""
        self.holder: str | None = None
        """Who leads, as far as we know; for probes."""

    @property
    def leading(self) -> bool:
        return self._held is not None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, run ``work``, release. Returns or raises as ``work`` does.

        Raises LeadershipLost when the Lease is lost first: then ``work`` was cancelled and awaited.
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
        """One look at the Lease; True when it is ours now."""
        try:
            try:
                lease = await self._cluster.get(LEASES, self._settings.namespace, self._settings.name)
            except NotFound:
                self._held = await self._cluster.create(LEASES, self._manifest(None))
            else:
                if not self._may_take(lease):
                    return False
                self._held = await self._cluster.apply(LEASES, self._manifest(lease))
        except Conflict:
            # Another candidate was faster; the next look shows who.
            return False
        except ClusterError as error:
            log.warning("cannot take the Lease %s: %s", self._settings.name, error)
            return False
        self.holder = self._settings.identity
        return True

    def _may_take(self, lease: Object) -> bool:
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity")
        if holder != self.holder:
            log.info("the Lease %s is held by %s", self._settings.name, holder or "nobody")
        self.holder = holder
        if not holder or holder == self._settings.identity:
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        unchanged = self._clock() - self._seen[1]
        return unchanged >= int(spec.get("leaseDurationSeconds", self._settings.duration))

    async def _keep(self) -> None:
        """Renew until it fails for too long."""
        settings = self._settings
        renewed = self._clock()
        pause = settings.renew_every
        while True:
            await self._sleep(pause)
            # Counted from before the call: a slow answer must not prolong our own belief.
            asked = self._clock()
            left = renewed + settings.give_up_after - asked
            if left <= 0:
                raise LeadershipLost(f"the Lease was not renewed for {asked - renewed:.0f} s")
            try:
                async with asyncio.timeout(left):
                    await self._renew()
            except (ClusterError, TimeoutError) as error:
                log.warning("the Lease was not renewed: %s", error or "no answer in time")
                pause = min(settings.retry_every, left)
            else:
                renewed, pause = asked, settings.renew_every

    async def _renew(self) -> None:
        try:
            self._held = await self._cluster.apply(LEASES, self._manifest(self._held))
        except Conflict as error:
            # Another has written it, or an earlier write of ours arrived and its answer was lost.
            lease = await self._cluster.get(LEASES, self._settings.namespace, self._settings.name)
            if lease.get("spec", {}).get("holderIdentity") != self._settings.identity:
                raise LeadershipLost("another operator holds the Lease") from error
            self._held = await self._cluster.apply(LEASES, self._manifest(lease))

    async def _release(self) -> None:
        """Let the next one begin at once. Best effort: the Lease expires by itself."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            async with asyncio.timeout(self._settings.retry_every):
                await self._cluster.apply(LEASES, self._manifest(held, release=True))
        except (ClusterError, TimeoutError) as error:
            log.info("the Lease was not released: %s", error or "no answer in time")
        else:
            self.holder = None

    def _manifest(self, previous: Object | None, *, release: bool = False) -> Object:
        """The Lease as we want it. ``previous`` lends its version: the write fails on any other."""
        settings = self._settings
        spec = dict(previous.get("spec", {})) if previous else {}
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = spec.get("holderIdentity") == settings.identity
        metadata: dict[str, Any] = {"namespace": settings.namespace, "name": settings.name}
        if previous:
            metadata["resourceVersion"] = previous["metadata"]["resourceVersion"]
        wanted: dict[str, Any] = {
            # Empty, as client-go leaves it: the field cannot be taken away by apply, since create owns it too.
            "holderIdentity": "" if release else settings.identity,
            "leaseDurationSeconds": settings.duration,
            "renewTime": now,
            "acquireTime": spec.get("acquireTime", now) if ours else now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (0 if ours or not previous else 1),
        }
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": wanted}
