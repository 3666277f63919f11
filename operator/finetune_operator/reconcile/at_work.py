"""The last reports of jobs on chips, for a later leader that may not read their namespace.

A ConfigMap in the operator's own namespace contains them: tenants cannot write there, and may delete their jobs while
the namespace is lost. Of any other namespace only the jobs themselves count.
"""

import asyncio
import json
import logging
from asyncio import sleep
from collections.abc import Callable

from finetune_operator.cluster.port import CONFIG_MAPS, ClusterError, KubernetesClient, NotFound
from finetune_operator.ledger.job_usage import job_usage
from finetune_operator.objects import Object

log = logging.getLogger(__name__)

_KEY = "jobs.json"
#: Characters of the record, which an API server takes up to 1 MiB: some 250 jobs. Those on fewer chips are left out.
_MOST = 900_000
#: Seconds between two writes, and after an error.
_PAUSE, _ERROR_PAUSE = 5.0, 30.0
_METADATA = ("namespace", "name", "uid", "resourceVersion", "creationTimestamp", "labels")
#: What metrics, budgets and the ledger read.
_STATUS = ("phase", "stage", "stages", "activeTime", "cost", "ledger", "attempts", "resolved")


class AtWork:
    """The record of one leader: the ConfigMap of that name and namespace. It is used by one event loop."""

    def __init__(self, cluster: KubernetesClient, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._metadata = {"namespace": namespace, "name": name}
        self._reports: dict[str, Object] = {}
        """Of each job, by UID."""
        self._changed = asyncio.Event()

    def job(self, job: Object) -> None:
        """Takes a version of a job. Later ones are written when what the ledger contains of it has changed."""
        uid, used = job["metadata"]["uid"], job_usage(job)
        before = self._reports.pop(uid, None)
        if used is not None and used.chips:
            self._reports[uid] = _report(job)
        if _recorded(before) != _recorded(self._reports.get(uid)):
            self._changed.set()

    def gone(self, uid: str) -> None:
        if self._reports.pop(uid, None):
            self._changed.set()

    async def run(self, take: Callable[[Object], None]) -> None:
        """Calls ``take`` with each report of earlier leaders, then writes every change, until cancelled."""
        for job in await self._read():
            take(job)
        while True:
            await self._changed.wait()
            self._changed.clear()
            await sleep(_PAUSE if await self._write() else _ERROR_PAUSE)

    async def _read(self) -> list[Object]:
        """Returns the reports. Those that cannot be read now are not replaced: it waits until they can."""
        while True:
            try:
                found = await self._cluster.get(CONFIG_MAPS, **self._metadata)
                return [
                    job for job in json.loads(found["data"][_KEY]) if isinstance(job, dict) and job_usage(job)
                ]
            except NotFound:
                return []
            except ClusterError as error:
                log.warning("the last reports of jobs on chips cannot be read: %s", error)
                await sleep(_ERROR_PAUSE)
            except (KeyError, TypeError, ValueError):
                log.exception("ConfigMap %(namespace)s/%(name)s is damaged and ignored", self._metadata)
                return []

    async def _write(self) -> bool:
        texts, room = list[str](), _MOST
        for report in sorted(self._reports.values(), key=lambda each: -_chips(each)):
            text = json.dumps(report)
            if len(text) < room:
                texts.append(text)
                room -= len(text) + 1
        data = {_KEY: f"[{','.join(texts)}]"}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata, "data": data}
        try:
            await self._cluster.apply(CONFIG_MAPS, manifest)
        except ClusterError as error:
            self._changed.set()
            log.warning("the last reports of jobs on chips cannot be written: %s", error)
            return False
        return True


def _report(job: Object) -> Object:
    metadata, status = job["metadata"], job["status"]
    running = [each for each in status["conditions"] if each["type"] == "Running"]
    return {
        "metadata": {key: metadata[key] for key in _METADATA if key in metadata},
        "status": {key: status[key] for key in _STATUS if key in status} | {"conditions": running},
    }


def _chips(report: Object) -> int:
    used = job_usage(report)
    return used.chips if used else 0


def _recorded(report: Object | None) -> object:
    """What a later leader must know at once: whether there is a report, and what the ledger contains of its usage."""
    return report and report["status"].get("ledger", {})
