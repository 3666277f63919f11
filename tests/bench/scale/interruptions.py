"""What interrupts the operators of a soak, and the memory of the leader that is left alone in its second half."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from devcluster.identity import memory
from finetune_operator.cluster.port import ClusterError
from finetune_operator.objects import Object
from tests.bench.scale.comparison import report
from tests.doubles.faultproxy import FaultProxy
from tests.doubles.local_cluster import LocalCluster
from tests.integration.warm_operator import LEASE, WarmOperator

_MINUTE_SECONDS = 60.0
#: The API server is killed after so many minutes.
_SERVER_MINUTES = 10
#: One in so many interruptions stops the leader instead of killing it.
_STOPS = 3
_STOP_SECONDS = 25.0
#: An operator leads again after this time at most.
_LEADER_SECONDS = 120.0
#: Pause between two samples of the leader's memory.
_SAMPLE_SECONDS = 5.0
_WATCHED = (
    "/apis/tpu-finetune.dev/v1alpha1/finetunejobs",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/api/v1/pods",
)


class Interruptions:
    """Interrupts operators, watches and API server.

    Args:
        cluster: whose API server the operators use.
        proxy: through which they do.
        operators: one or several.
    """

    def __init__(self, cluster: LocalCluster, proxy: FaultProxy, operators: Sequence[WarmOperator]) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._operators = operators
        self._samples: dict[int, list[tuple[float, float]]] = {}
        """By process: time in hours, and MiB. The last leader comes last."""
        self.kills = 0
        self.stops = 0

    async def run(self, minutes: int) -> None:
        """Runs for so many minutes, at least 2. The leader is interrupted in the first half of them only."""
        half = minutes // 2
        for minute in range(1, half + 1):
            await self._minute(minute)
            await self._interrupt_leader()
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample())
            for minute in range(half + 1, minutes + 1):
                await self._minute(minute)
            sampling.cancel()

    def memory_of_last_leader(self) -> Sequence[tuple[float, float]]:
        """Returns hours and MiB of the process that led last, since no leader is interrupted any more."""
        return list(self._samples.values())[-1]

    async def _minute(self, minute: int) -> None:
        await asyncio.sleep(_MINUTE_SECONDS / 2)
        for path in _WATCHED:
            await asyncio.to_thread(self._proxy.cut, path)
        await asyncio.sleep(_MINUTE_SECONDS / 2)
        if minute % _SERVER_MINUTES == 0:
            await asyncio.to_thread(self._cluster.kill, "kube-apiserver")
            await asyncio.to_thread(self._cluster.await_ready, "kube-apiserver")

    async def _interrupt_leader(self) -> None:
        leader = await self._leader()
        pid = leader.pid
        # It may have ended by itself with the API server.
        with suppress(ProcessLookupError):
            if (self.kills + self.stops + 1) % _STOPS:
                self.kills += 1
                os.kill(pid, signal.SIGKILL)
                report(f"soak: killed {leader.identity}")
            else:
                self.stops += 1
                os.kill(pid, signal.SIGSTOP)
                report(f"soak: stopped {leader.identity}")
                await asyncio.sleep(_STOP_SECONDS)
                os.kill(pid, signal.SIGCONT)

    async def _leader(self) -> WarmOperator:
        """Waits until an operator leads."""
        lease = await asyncio.to_thread(
            self._cluster.wait, LEASE, lambda found: self._holder(found) is not None, seconds=_LEADER_SECONDS
        )
        leader = self._holder(lease)
        assert leader is not None
        return leader

    def _holder(self, lease: Object) -> WarmOperator | None:
        """Returns the running operator that holds the Lease; None if its holder does not run any more."""
        holder = lease["spec"].get("holderIdentity")
        return next((each for each in self._operators if holder and each.identity == holder), None)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            # The API server may be down.
            with suppress(ClusterError):
                lease = await asyncio.to_thread(self._cluster.get, LEASE)
                if leader := self._holder(lease):
                    self._record(leader)

    def _record(self, leader: WarmOperator) -> None:
        pid = leader.pid
        if resident := memory(pid):
            self._samples.setdefault(pid, []).append((time.monotonic() / 3600, resident / 2**20))
