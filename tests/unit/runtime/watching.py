"""Runs only the operator's watches in a separate process and measures its memory; arguments: URL KEYS SECONDS.

Prints as JSON the peak memory beyond that of the program itself (MiB), how often a job was reported by a listing or an
event, and the longest time for which the event loop was blocked (seconds). Ends after KEYS reports or SECONDS.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import watches
from tests.unit.runtime.watched_api import Account


def peak() -> float:
    """Returns the peak resident memory of this program in MiB. ``ru_maxrss`` is inherited from the parent process."""
    line = next(
        each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:")
    )
    return int(line.split()[1]) / 1024


class Counted(EventHandlers):
    reported = 0

    def job(self, event_type, job):  # type: ignore[no-untyped-def]
        super().job(event_type, job)
        self.reported += 1


async def main(url: str, wanted: int, seconds: float) -> None:
    intake = Counted(lambda _key, _after: None, OperatorMetrics())
    blocked = 0.0

    async def beat() -> None:
        nonlocal blocked
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.02)
            blocked = max(blocked, time.monotonic() - begun - 0.02)

    before = peak()
    streams = watches((), kueue=False)
    host = WatchManager(
        Account(url=url),
        ServedNamespaces(),
        intake,
        WatchCache(streams),
    )
    watching = asyncio.create_task(host.run(lambda: None))
    beating = asyncio.create_task(beat())
    end = time.monotonic() + seconds
    while time.monotonic() < end and intake.reported < wanted and not watching.done():
        await asyncio.wait({watching}, timeout=0.05)
    if watching.done():
        watching.result()
    print(json.dumps({"peak": peak() - before, "reported": intake.reported, "blocked": blocked}), flush=True)
    beating.cancel()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
