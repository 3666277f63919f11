"""Figures of one phase of a run, read from outside the programs that are compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from devcluster.kube import Kube
from tests.bench.measure import percentile


async def api_requests(kube: Kube) -> Counter[str]:
    """``VERB resource/subresource`` -> requests that the API server has answered, watches excluded."""
    async with kube.session().get("/metrics") as answer:
        text = await answer.text()
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
    requests: Mapping[str, float]
    """Requests to the API server for each job; those of the benchmark itself are among them."""

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.latencies) / self.seconds

    def row(self) -> str:
        """Cells of a Markdown table."""
        jobs = len(self.latencies)
        p50, p99 = (percentile(self.latencies, share) for share in (0.5, 0.99))
        return (
            f"{self.rate:.1f} | {p50:.2f} | {p99:.2f} | {1e3 * self.cpu / jobs:.1f} | "
            f"{1e3 * self.server_cpu / jobs:.1f} | {self.resident:.0f}"
        )
