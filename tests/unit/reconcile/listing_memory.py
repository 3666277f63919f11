"""A fake API server with the pods of a hostile tenant, and a process that measures the memory of observing them.

    python -m tests.unit.reconcile.listing_memory serve PODS KIND
        prints the server's port and serves PODS pods in each namespace until it is killed
    python -m tests.unit.reconcile.listing_memory look PORT LOOKS NAMESPACES
        observes one job in each namespace LOOKS times and prints the measurements as JSON

KIND is ``stranger-ENTRIES`` (pods that have only the job's labels) or ``own-ENTRIES`` (pods whose controller is a Job
of the job's JobSet). Each pod has ENTRIES entries of ``env``, which consist of a name only.
"""

import asyncio
import gc
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

from finetune_operator.artifacts.tenant_shares import CallSlots
from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.reconcile.children import ManyChildren
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import LARGE_JOBS
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.watch_cache import WatchCache
from tests.unit.reconcile.fakes import FakeStore, child, job


def pod(kind: str) -> str:
    """Returns a pod as JSON, with NUMBER in place of its number."""
    whose, entries = kind.split("-")
    made = child("Pod", "demo-train-1-slice-0-0-NUMBER")
    made["metadata"] |= {"uid": "uid-NUMBER", "resourceVersion": "1"}
    made["spec"] = {
        "nodeName": "host-NUMBER",
        "containers": [
            {"name": "trainer", "image": "i", "env": [{"name": f"E{n:x}"} for n in range(int(entries))]}
        ],
    }
    started = {"startedAt": "2026-11-21T12:00:00Z"}
    made["status"] = {
        "phase": "Running",
        "startTime": "2026-11-21T12:00:00Z",
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": "2026-11-21T12:00:00Z"}
            for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": {"running": started}}],
    }
    if whose == "stranger":
        del made["metadata"]["ownerReferences"]
    return json.dumps(made)


async def serve(count: int, kind: str) -> None:
    text = pod(kind)

    async def answer(request: web.Request) -> web.Response:
        namespace, plural, *name = (request.path.partition("/namespaces/")[2] or "/profiles").split("/")
        if plural == "finetunejobs":
            found = job(name[0])
            found["metadata"] |= {"namespace": namespace, "resourceVersion": "1", "uid": "uid-of-demo"}
            return web.json_response(found)
        if plural == "configmaps":
            return web.json_response({"kind": "Status"}, status=404)
        begin, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        numbers = range(begin, min(count, begin + limit)) if plural == "pods" else range(0)
        more = {"continue": str(begin + limit)} if plural == "pods" and begin + limit < count else {}
        items = ",".join(text.replace("NUMBER", str(number)) for number in numbers)
        return web.Response(
            text=f'{{"metadata":{json.dumps(more)},"items":[{items}]}}', content_type="application/json"
        )

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def resident(what: str) -> float:
    """Returns a memory figure of this process, such as VmRSS, in MiB. ``ru_maxrss`` is inherited from the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


async def look(port: int, looks: int, namespaces: int) -> dict[str, Any]:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    slowest = 0.0

    async def heart() -> None:
        nonlocal slowest
        while True:
            begun = perf_counter()
            await asyncio.sleep(0.001)
            slowest = max(slowest, perf_counter() - begun - 0.001)

    async with ApiServerClient(configuration) as cluster:
        plans = Plans(cluster, "system")
        observer = Observer(
            cluster,
            plans,
            RunFolderReader(FakeStore()),
            WatchCache(),
            utc_now=lambda: datetime.now(UTC),
            live_jobs=lambda: 1,
        )

        large = CallSlots(total=LARGE_JOBS, each=(1,))

        async def one(namespace: int) -> str:
            key = JobKey(f"team-{namespace}", "demo")
            try:
                seen = await observer.observe(key)
            except ManyChildren:
                # As a reconcile does.
                give_back = await large.take(key.namespace)
                seen = await observer.observe(key, large=True)
                give_back()
            assert seen is not None
            return str(len(seen.pods))

        before = resident("VmRSS")
        gc.freeze()
        beating = asyncio.ensure_future(heart())
        begun = perf_counter()
        told = await asyncio.gather(
            *(one(namespace) for _ in range(looks) for namespace in range(namespaces))
        )
        seconds = perf_counter() - begun
        beating.cancel()
        return {
            "seen": sorted(set(told)),
            "before": round(before),
            "peak": round(resident("VmHWM")),
            "seconds": round(seconds, 1),
            "loop held, ms": round(1000 * slowest),
        }


if __name__ == "__main__":
    _, command, first, *rest = sys.argv
    if command == "serve":
        asyncio.run(serve(int(first), rest[0]))
    else:
        print(json.dumps(asyncio.run(look(int(first), *map(int, rest)))))
