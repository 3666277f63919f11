"""The operator's watches alone, in a process of their own, whose memory is measured: URL KEYS SECONDS.

Prints as JSON how much memory they have taken at most beyond that of the program itself (MiB), how often a job was told
of, and the longest time that the event loop stood still (seconds). Ends when each of so many jobs was told of, and the
stream of FineTuneJobs has brought as many events as it is to, or after so many seconds.
"""

import asyncio
import json
import os
import resource
import sys
import time

from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager, watches
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.watches import WatchHealth
from tests.unit.runtime.watched_api import Account


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Counted(EventHandlers):
    told = 0

    def job(self, event_type, job):  # type: ignore[no-untyped-def]
        super().job(event_type, job)
        self.told += 1


async def main(url: str, wanted: int, seconds: float) -> None:
    intake = Counted(lambda _key, _after: None, OperatorMetrics())
    still = 0.0

    async def beat() -> None:
        nonlocal still
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.02)
            still = max(still, time.monotonic() - begun - 0.02)

    before = peak()
    ages = WatchHealth(watches((), kueue=False))
    host = WatchManager(Account(url=url), (), intake, ages, {}, kueue=False)
    watching = asyncio.create_task(host.run(lambda: None))
    beating = asyncio.create_task(beat())
    end = time.monotonic() + seconds
    while time.monotonic() < end and intake.told < wanted and not watching.done():
        await asyncio.wait({watching}, timeout=0.05)
    if watching.done():
        watching.result()
    print(json.dumps({"peak": peak() - before, "told": intake.told, "still": still}), flush=True)
    beating.cancel()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
