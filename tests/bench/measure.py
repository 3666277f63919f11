"""What the benchmarks of the operator share: figures of processes, percentiles and the requests of stages."""

import os
from collections.abc import Sequence
from pathlib import Path

from devcluster.kube import Object
from finetune_contract import StageRequest

_TICKS = os.sysconf("SC_CLK_TCK")
#: Positions of utime and stime in /proc/PID/stat, counted after the program's name.
_TIMES = slice(11, 13)


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process since its start, user and system."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[_TIMES])) / _TICKS


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that ``share`` of the values are below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def stage_request(pod_spec: Object) -> StageRequest:
    """Returns the request in the spec of a stage's pod."""
    (container,) = pod_spec["containers"]
    value = next(each["value"] for each in container["env"] if each["name"] == "FINETUNE_REQUEST")
    # Kubernetes expands $(VAR) in values, so that ``$`` is written ``$$``.
    return StageRequest.model_validate_json(value.replace("$$", "$"))
