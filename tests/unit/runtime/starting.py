"""Starts the operator's watches in a cluster with many jobs, most of which are finished, and measures memory and time.

    python -m tests.unit.runtime.starting serve JOBS
        prints a port and serves JOBS jobs, each with five JobSets and pods, until it is killed; a tenth is live
    python -m tests.unit.runtime.starting start PORT JOBS
        watches that server and prints the measurements as JSON

Memory is in MiB, that of the program itself included; times are seconds since the start of the watches.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from finetune_contract import Stage
from finetune_operator.cluster.port import JOBSETS, PODS, WatchStream
from finetune_operator.planning.stored_plan import owner_reference
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.rendering.labels import PLAN_ANNOTATION
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.kopf_adapter import WatchManager
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import watches
from finetune_operator.runtime.queue import WorkQueue
from tests.unit.runtime.watched_api import Account, WatchedApi

_NAMESPACES = 10
_STAGES = tuple(Stage)
#: What the API server sends beside the fields that the operator reads: containers, volumes, managed fields.
_REST = {"managedFields": [{"manager": "manager", "fieldsV1": {f"f:field-{n}": {} for n in range(200)}}]}
_TIME = "2026-11-21T12:00:00Z"


def _conditions(*names: str) -> list[dict[str, str]]:
    return [
        {"type": name, "status": "True", "reason": "Any", "message": "any " * 10, "lastTransitionTime": _TIME}
        for name in names
    ]


def _metadata(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """The metadata of an object of job NUMBER, and of its child CHILD."""
    return {
        "name": name,
        "namespace": "team-SPACE",
        "uid": f"{kind}-CHILD-NUMBER-000000000000000000000000"[:36],
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": _TIME,
        **_REST,
        **more,
    }


def _job(*, finished: bool) -> dict[str, Any]:
    stages = [
        {"name": stage.value, "state": "Succeeded", "jobSet": f"job-NUMBER-{stage.short}-1"}
        for stage in _STAGES
    ]
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": _metadata("job-NUMBER", "uid-job", uid="uid-of-job-NUMBER"),
        "spec": {"model": {"uri": "gs://models/tiny"}, "data": {"train": {"uri": "gs://data/any.jsonl"}}},
        "status": {
            "observedGeneration": 1,
            "conditions": _conditions("Valid", *(["Finished"] if finished else [])),
            "resolved": {"profile": {"name": "local"}},
            "stages": stages,
        },
    }


def _child(kind: str) -> dict[str, Any]:
    labels = {
        "tpu-finetune.dev/job": "job-NUMBER",
        "tpu-finetune.dev/job-uid": "uid-of-job-NUMBER",
        "tpu-finetune.dev/stage": "STAGE",
        "tpu-finetune.dev/attempt": "1",
    }
    if kind == "jobset":
        owner = owner_reference(_job(finished=False))
        metadata = _metadata("job-NUMBER-SHORT-1", kind, labels=labels, ownerReferences=[owner])
        metadata["annotations"] = {PLAN_ANNOTATION: "0" * 64}
        spec = {
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": {"parallelism": 4}}}]
        }
        return {
            "metadata": metadata,
            "spec": spec,
            "status": {"restarts": 0, "conditions": _conditions("Completed")},
        }
    labels["jobset.sigs.k8s.io/jobset-name"] = "job-NUMBER-SHORT-1"
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "job-NUMBER-SHORT-1-slice-0",
        "uid": "u",
        "controller": True,
    }
    metadata = _metadata("job-NUMBER-SHORT-1-slice-0-0-abcde", kind, labels=labels, ownerReferences=[owner])
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": _TIME, "finishedAt": _TIME}
    status = {
        "phase": "Succeeded",
        "startTime": _TIME,
        "conditions": _conditions("PodScheduled", "Initialized", "ContainersReady", "Ready"),
        "containerStatuses": [
            {"name": "trainer", "image": "i", "restartCount": 0, "state": {"terminated": ended}}
        ],
    }
    env = [{"name": f"VARIABLE_{n}", "value": "any value"} for n in range(40)]
    spec = {"nodeName": "host-NUMBER", "containers": [{"name": "trainer", "image": "i", "env": env}]}
    return {"metadata": metadata, "spec": spec, "status": status}


def _numbered(text: str, number: int) -> str:
    return text.replace("NUMBER", str(number)).replace("SPACE", str(number % _NAMESPACES))


def api(count: int) -> WatchedApi:
    """A server with ``count`` jobs, the first tenth of which is live."""
    live, finished = (json.dumps(_job(finished=each)) for each in (False, True))

    def jobs(begin: int, end: int) -> Iterator[str]:
        return (_numbered(live if n < count // 10 else finished, n) for n in range(begin, end))

    def children(kind: str) -> Callable[[int, int], Iterator[str]]:
        texts = [
            json.dumps(_child(kind))
            .replace("STAGE", stage.value)
            .replace("SHORT", stage.short)
            .replace("CHILD", stage.short)
            for stage in _STAGES
        ]
        return lambda begin, end: (
            _numbered(texts[n % len(texts)], n // len(texts)) for n in range(begin, end)
        )

    paths = {"jobset": WatchStream(JOBSETS, None).path, "pod": WatchStream(PODS, None).path}
    return WatchedApi(
        jobs, count, children={path: (children(kind), len(_STAGES) * count) for kind, path in paths.items()}
    )


async def serve(count: int) -> None:
    runner = web.AppRunner(api(count).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def memory(what: str) -> float:
    """Returns a memory figure of this process, such as VmRSS, in MiB. ``ru_maxrss`` is inherited from the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


async def start(port: int, count: int) -> None:
    streams = watches((), kueue=False)
    cache, queue = WatchCache(streams), WorkQueue[Any]()
    intake = EventHandlers(queue.add, OperatorMetrics())
    host = WatchManager(
        Account(url=f"http://127.0.0.1:{port}"),
        ServedNamespaces(),
        intake,
        cache,
    )
    slowest = 0.0

    async def heart() -> None:
        nonlocal slowest
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.perf_counter() - begun - 0.01)

    before, begun = memory("VmRSS"), time.perf_counter()
    watching, beating = asyncio.create_task(host.run(lambda: None)), asyncio.create_task(heart())
    found = None
    while found is None and not watching.done():
        found = await cache.job("team-0", "job-0")
    first = time.perf_counter() - begun
    while len(intake.keys()) < count and not watching.done():
        await asyncio.wait({watching}, timeout=0.1)
    if watching.done():
        watching.result()
    assert found is not None
    known = time.perf_counter() - begun
    beating.cancel()
    gc.collect()
    measured = {
        "before": before,
        "peak": memory("VmHWM"),
        "resident": memory("VmRSS"),
        "first decision": first,
        "all jobs known": known,
        "cpu": time.process_time(),
        "blocked": slowest,
        "cached children": sum(len(cache.jobs_by_uid(kind, None)) for kind in (JOBSETS, PODS)),
        "cached bytes, MiB": cache._entries._total / 2**20,
        "live": intake.live,
        "tasks": len(asyncio.all_tasks()),
    }
    print(json.dumps({name: round(value, 2) for name, value in measured.items()}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _, command, *numbers = sys.argv
    asyncio.run({"serve": serve, "start": start}[command](*map(int, numbers)))
