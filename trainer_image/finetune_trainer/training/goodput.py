"""How the time of a training is distributed, over all of its attempts."""

import os
from collections.abc import Mapping
from pathlib import Path

from finetune_contract import Progress


def since_process_start() -> float:
    """Seconds since this process started (proc(5): field 22 of stat is its start in ticks after boot)."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
        "SC_CLK_TCK"
    )
    return max(0.0, float(Path("/proc/uptime").read_text().split()[0]) - started)


def carried(earlier: Progress | None, start_step: int) -> dict[str, float]:
    """Seconds by kind of earlier attempts, as this attempt continues them.

    Steps that an earlier attempt did beyond ``start_step`` have to be done again: their time, at that attempt's median,
    is moved from productive to recomputed.
    """
    seconds = dict(earlier.seconds) if earlier is not None else {}
    if earlier is None or earlier.step <= start_step:
        return seconds
    lost = (earlier.step - start_step) * (earlier.step_time_p50 or 0.0)
    lost = min(lost, seconds.get("productive", 0.0))
    return seconds | {
        "productive": seconds.get("productive", 0.0) - lost,
        "recomputed": seconds.get("recomputed", 0.0) + lost,
    }


def total(before: Mapping[str, float], own: Mapping[str, float]) -> dict[str, float]:
    """The sum of both by kind, in seconds rounded to milliseconds."""
    return {kind: round(before.get(kind, 0.0) + own.get(kind, 0.0), 3) for kind in sorted({*before, *own})}
