"""Figures of one phase of a run, read from outside the programs that are compared."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from devcluster.kube import Kube
from tests.bench.measure import percentile
from tests.doubles.local_cluster import LocalCluster

#: Readings, a second apart, at which nothing may be late: finished jobs are due 5 s after a start.
_PUNCTUAL_READINGS = 6
#: Jobs that train are due at any time, and wait for a worker for less than this many seconds.
_LATE_SECONDS = 1.0


async def settled(cluster: LocalCluster, *, seconds: float) -> float:
    """Waits until nothing is late in the operator's queue. Returns the seconds that it took. Raises TimeoutError."""
    begun = time.perf_counter()
    punctual = 0
    async with asyncio.timeout(seconds):
        while punctual < _PUNCTUAL_READINGS:
            (oldest,) = await asyncio.to_thread(cluster.metrics, "finetune_queue_oldest_seconds")
            punctual = punctual + 1 if oldest.value < _LATE_SECONDS else 0
            await asyncio.sleep(1)
    return time.perf_counter() - begun - _PUNCTUAL_READINGS


async def api_requests(kube: Kube) -> Counter[str]:
    """``VERB resource/subresource`` -> requests that the API server has answered, watches excluded."""
    text = await kube.text("/metrics")
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        if family.name != "apiserver_request":
            continue
        for sample in family.samples:
            labels = sample.labels
            if sample.name == "apiserver_request_total" and labels["verb"] != "WATCH":
                target = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                found[f"{labels['verb']} {target}"] += int(sample.value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a run: every job got from one state to the next."""

    seconds: float
    """From the first change to the last answer."""
    latencies: Sequence[float]
    """Seconds of each job, from its change to the answer."""
    cpu: float
    """CPU seconds of the controller."""
    server_cpu: float
    """CPU seconds of the API server."""
    resident: float
    """MiB of the controller at the end."""
    peak: float
    """MiB of the controller at most, since its start."""
    requests: Mapping[str, float]
    """Requests to the API server for each job; those of the benchmark itself are among them."""

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.latencies) / self.seconds

    @property
    def cpu_per_job(self) -> float:
        """Milliseconds of the controller."""
        return 1e3 * self.cpu / len(self.latencies)

    @property
    def server_cpu_per_job(self) -> float:
        """Milliseconds of the API server."""
        return 1e3 * self.server_cpu / len(self.latencies)

    def percentile(self, share: float) -> float:
        """Seconds that ``share`` of the jobs are below."""
        return percentile(self.latencies, share)

    def row(self) -> str:
        """Cells of a Markdown table."""
        p50, p99 = map(self.percentile, (0.5, 0.99))
        return (
            f"{self.rate:.1f} | {p50:.2f} | {p99:.2f} | {self.cpu_per_job:.1f} | "
            f"{self.server_cpu_per_job:.1f} | {self.resident:.0f} | {self.peak:.0f}"
        )
