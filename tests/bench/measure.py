"""What the benchmarks of the operator share: figures of processes, percentiles and the requests of stages."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from finetune_contract import StageRequest
from finetune_operator.objects import Object
from tests.doubles.local_cluster import LocalCluster

_TICKS = os.sysconf("SC_CLK_TCK")
#: Positions of utime and stime in /proc/PID/stat, counted after the program's name.
_TIMES = slice(11, 13)


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process since its start, user and system."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[_TIMES])) / _TICKS


def peak_memory(pid: int) -> int:
    """Returns the most bytes that a process has had in memory since its start."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def operator_requests(cluster: LocalCluster) -> Counter[str]:
    """Returns the operator's requests so far by ``verb resource``, including those to the run folder.

    Watches are long-lived and are left out.
    """
    found: Counter[str] = Counter()
    for sample in cluster.metrics("finetune_api_requests_total"):
        if sample.labels["verb"] != "watch":
            found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    for sample in cluster.metrics("finetune_storage_requests_total"):
        found[f"{sample.labels['operation']} in the run folder"] += int(sample.value)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that ``share`` of the values are below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def stage_request(pod_spec: Object) -> StageRequest:
    """Returns the request in the spec of a stage's pod."""
    (container,) = pod_spec["containers"]
    value = next(each["value"] for each in container["env"] if each["name"] == "FINETUNE_REQUEST")
    # Kubernetes expands $(VAR) in values, so that ``$`` is written ``$$``.
    return StageRequest.model_validate_json(value.replace("$$", "$"))
