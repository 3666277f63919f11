"""How long a scrape of the operator's metrics takes, and for how long it stops the event loop.

    python -m tests.bench.scrape [--namespaces 1000] [--profiles 20] [--runs 3]

The metrics are those of a leader that has seen a job of each namespace under each profile. The client is a thread of
the same process.
"""

import argparse
import asyncio
import urllib.request
from time import perf_counter

from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.probes import ProbeServer

#: Seconds between two turns of the loop that are measured.
_TURN = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--profiles", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for _ in range(arguments.runs):
        asyncio.run(_scrape(arguments.namespaces, arguments.profiles))


async def _scrape(namespaces: int, profiles: int) -> None:
    metrics = OperatorMetrics()
    intake = EventHandlers(lambda _key, _after: None, metrics)
    for namespace in range(namespaces):
        for profile in range(profiles):
            intake.job("ADDED", _job(f"team-{namespace}", f"profile-{profile}"))
    server = ProbeServer(healthy=tuple, ready=tuple, metrics=metrics)
    _, port = await server.start("127.0.0.1", 0, 0)
    begun = perf_counter()
    client = asyncio.create_task(asyncio.to_thread(_fetch, f"http://127.0.0.1:{port}/metrics"))
    longest = 0.0
    while not client.done():
        turn = perf_counter()
        await asyncio.sleep(_TURN)
        longest = max(longest, perf_counter() - turn - _TURN)
    print(
        f"{namespaces * profiles} pairs of namespace and profile: {await client / 1e6:.1f} MB in "
        f"{perf_counter() - begun:.1f} s; longest stop of the event loop {longest:.2f} s"
    )
    await server.stop()


def _fetch(url: str) -> int:
    with urllib.request.urlopen(url) as answer:
        return len(answer.read())


def _job(namespace: str, profile: str) -> dict[str, object]:
    metadata = {
        "namespace": namespace,
        "name": profile,
        "uid": f"{namespace}-{profile}",
        "resourceVersion": "1",
    }
    resolved = {"profile": {"name": profile}, "resources": {"capacity": "OnDemand"}}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "resolved": resolved}}


if __name__ == "__main__":
    main()
