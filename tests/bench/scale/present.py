"""Jobs that exist before a measurement: one in ten is live, the others have finished.

One real job runs through its stages. What etcd then holds of it (the job, its plan, JobSets, Jobs and pods) is copied
under other names and uids straight into etcd: the API server takes minutes of CPU to store as many objects. Names, uids
and digests have a fixed length, so that they can be replaced in objects of any encoding. Run folders are not copied:
those of finished jobs are not read.
"""

import asyncio
import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import aiohttp

from devcluster.kube import Kube
from finetune_operator.cluster.port import ClusterError
from finetune_operator.objects import Object
from tests.bench.scale.children import add_pod
from tests.bench.scale.load import Run, each
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster

#: One job in so many is live.
LIVE = 10
_PLANS = "/api/v1/namespaces/finetune-system/configmaps"
_TEMPLATE = "p00000"
#: Prefixes of keys in etcd, without the namespace.
_CHILDREN = ("/registry/jobset.x-k8s.io/jobsets", "/registry/jobs", "/registry/pods")
_JOBS = "/registry/tpu-finetune.dev/finetunejobs"
#: The API server has a cache of each of these collections, which follows etcd.
_COLLECTIONS = (
    "/apis/tpu-finetune.dev/v1alpha1/finetunejobs",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/apis/batch/v1/jobs",
    "/api/v1/pods",
    "/api/v1/configmaps",
)
#: Seconds until these caches have all that was copied.
_CACHE_SECONDS = 900
#: Between the keys and values of one job while they are copied.
_BETWEEN = b"\x00<->\x00"


class Present:
    """The jobs that exist, in two namespaces that remain until the cluster ends."""

    def __init__(self, cluster: LocalCluster, system: FineTuneOperator, kube: Kube) -> None:
        self._cluster = cluster
        self._system = system
        self._kube = kube
        self._etcd = Etcd(cluster)
        self._finished = ""
        """Namespace of the finished jobs."""
        self.live = ""
        """Namespace of the live jobs."""
        self.names: list[str] = []
        """Names of the live jobs."""
        self._copies = 0
        self._template: Template | None = None

    def __len__(self) -> int:
        return len(self.names) + self._copies + (self._template is not None)

    async def grow(self, count: int) -> None:
        """Adds jobs until there are ``count``. The operator is stopped afterwards."""
        await asyncio.to_thread(self._system.start)
        if self._template is None:
            self._finished, self.live = [
                await asyncio.to_thread(self._cluster.namespace, prefix) for prefix in ("finished", "live")
            ]
            self._template = await self._finished_job()
        added = [f"l{number:05}" for number in range(len(self.names), count // LIVE)]
        if added:
            async with Run(self._cluster, self._system, self._kube, self.live, added) as run:
                await run.burst()
                await each(added, lambda name: add_pod(self._kube, run.jobsets[name][-1], "Running"))
        self.names += added
        await asyncio.to_thread(self._system.stop)
        await self._copy(count - len(self.names) - 1)
        async with asyncio.timeout(_CACHE_SECONDS):
            await self._cached(await self._etcd.revision())

    async def _finished_job(self) -> "Template":
        """Runs one job through its stages."""
        namespace, name = self._finished, _TEMPLATE
        async with Run(self._cluster, self._system, self._kube, namespace, [name]) as run:
            await run.burst()
            for _ in range(self._system.stages):
                await add_pod(self._kube, run.jobsets[name][-1], "Succeeded")
                await run.complete()
            job = run.jobs[name]
        plan = await self._kube.get(f"{_PLANS}/finetune-plan-{job['metadata']['uid']}")
        found: dict[bytes, bytes] = {}
        for prefix in (*_CHILDREN, _JOBS):
            found |= await self._etcd.read(f"{prefix}/{namespace}/")
        found |= await self._etcd.read(f"/registry/configmaps/finetune-system/{plan['metadata']['name']}")
        children = [
            child["metadata"]["uid"]
            for path in (
                f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets",
                f"/apis/batch/v1/namespaces/{namespace}/jobs",
                f"/api/v1/namespaces/{namespace}/pods",
            )
            for child in await self._kube.list(path)
        ]
        return Template(found, job["metadata"]["uid"], children, plan["data"])

    async def _copy(self, count: int) -> None:
        """Copies the finished job until there are ``count`` copies."""
        assert self._template is not None
        template = self._template

        async def copy(name: str) -> None:
            await self._etcd.write(template.copy(name))

        await each([f"p{number:05}" for number in range(self._copies + 1, count + 1)], copy)
        self._copies = max(self._copies, count)

    async def _cached(self, revision: int) -> None:
        """Waits until the API server's caches have reached a revision of etcd."""
        query = {"limit": "1", "resourceVersion": str(revision), "resourceVersionMatch": "NotOlderThan"}
        for path in _COLLECTIONS:
            while True:
                # The API server waits a few seconds for its cache before it answers with an error.
                try:
                    await self._kube.get(path, **query)
                    break
                except ClusterError as error:
                    if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                        raise

    async def close(self) -> None:
        await self._etcd.close()


class Template:
    """The stored objects of one job.

    Args:
        stored: key in etcd -> value.
        uid: of the job.
        children: uids of its children.
        plan: data of its stored plan.
    """

    def __init__(
        self, stored: Mapping[bytes, bytes], uid: str, children: Sequence[str], plan: Mapping[str, str]
    ) -> None:
        self._stored = _BETWEEN.join(part for pair in stored.items() for part in pair)
        self._uid = uid
        self._children = children
        self._plan = plan

    def copy(self, name: str) -> Mapping[bytes, bytes]:
        """Returns the objects of another job of that name, which is as long as that of the template."""
        changes = {_TEMPLATE: name, **_forms(self._uid, str(uuid.uuid4()))}
        changes |= {child: str(uuid.uuid4()) for child in self._children}
        data = {key: _replaced(value, changes) for key, value in self._plan.items() if key != "digest"}
        changes[self._plan["digest"]] = _digest(data)
        copied = self._stored
        for old, new in changes.items():
            copied = copied.replace(old.encode(), new.encode())
        parts = iter(copied.split(_BETWEEN))
        return dict(zip(parts, parts, strict=True))


class Etcd:
    """Reads and writes what the API server stores, through etcd's JSON gateway."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{cluster.ports['etcd']}")

    async def read(self, prefix: str) -> dict[bytes, bytes]:
        """Returns the values of all keys that begin with the prefix."""
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1])
        found = await self._call("range", {"key": _encoded(begin), "range_end": _encoded(end)})
        return {
            base64.b64decode(each["key"]): base64.b64decode(each["value"]) for each in found.get("kvs", ())
        }

    async def revision(self) -> int:
        """Returns the revision of the last write."""
        found = await self._call("range", {"key": _encoded(b"/none")})
        return int(found["header"]["revision"])

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        """Stores the values in one transaction."""
        puts = [
            {"request_put": {"key": _encoded(key), "value": _encoded(value)}} for key, value in values.items()
        ]
        await self._call("txn", {"success": puts})

    async def close(self) -> None:
        await self._session.close()

    async def _call(self, method: str, body: Mapping[str, object]) -> Object:
        async with self._session.post(f"/v3/kv/{method}", json=body) as answer:
            answer.raise_for_status()
            found: Object = await answer.json()
            return found


def _forms(old: str, new: str) -> dict[str, str]:
    """Returns the forms in which a job's uid occurs: whole, without dashes, and its first eight digits."""
    return {old: new, old.replace("-", ""): new.replace("-", ""), old[:8]: new[:8]}


def _replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _digest(data: Mapping[str, str]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
