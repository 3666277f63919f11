"""Reads plan and children of a job: from the watches' cache, or live."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from finetune_operator.cluster.port import (
    JOBSETS,
    PODS,
    WORKLOADS,
    Keep,
    KubernetesClient,
    NotFound,
    Object,
    Rejected,
    ResourceKind,
    ResponseTooLarge,
)
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.ownership import own_jobsets, possible_jobsets
from finetune_operator.lifecycle.children.projection import jobset_of, pod_of, reduced_workload
from finetune_operator.lifecycle.children.workload import OWNER_UID_LABEL, Workload
from finetune_operator.lifecycle.decide import unprocessed
from finetune_operator.reconcile.memory_budget import MemoryShare
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.watch_cache import CachedJob, WatchCache
from finetune_operator.rendering.labels import UID_LABEL


@dataclass(frozen=True, slots=True)
class Children:
    """Objects with the labels of a job, which may not be the job's."""

    jobsets: Sequence[Object]
    pods: Sequence[Object]
    workloads: Sequence[Object] | None
    """None if Kueue is not installed."""
    excess: str | None = None
    """Why pods and Workloads are unknown, as a sentence: more objects carry the job's labels than are read. ``jobsets``
    then has those that the status names, and the next one of each stage. None: everything is known."""


class ChildReader:
    """Reads plan and children of jobs.

    Args:
        cluster: client for live reads.
        plans: store of the jobs' plans.
        cache: completed by live reads.
    """

    def __init__(self, cluster: KubernetesClient, plans: Plans, cache: WatchCache) -> None:
        self._cluster = cluster
        self._plans = plans
        self._cache = cache

    async def live(self, job: Object, room: MemoryShare) -> tuple[Object | None, Children]:
        """Reads plan and children of a job, and completes the cache with them. Raises ClusterError.

        Tenants can put the job's labels on any number of objects. That must not keep the job from being stopped, so
        its JobSets are then read by name.
        """
        uid = job["metadata"]["uid"]
        self._cache.adopt(job)
        snapshot = await self._plan(uid)
        try:
            jobsets, pods, workloads = await self._listed(job, room)
        except ResponseTooLarge as error:
            return snapshot, Children(await self._named_jobsets(job, room), (), (), excess=f"{error}.")
        self._cache.complete(uid, {JOBSETS: jobsets, PODS: pods, WORKLOADS: workloads or ()})
        return snapshot, Children(jobsets, pods, workloads)

    async def _listed(
        self, job: Object, room: MemoryShare
    ) -> tuple[Sequence[Object], Sequence[Object], Sequence[Object] | None]:
        """Lists JobSets, pods and Workloads of a job. Raises ClusterError."""
        namespace, labels = job["metadata"]["namespace"], {UID_LABEL: job["metadata"]["uid"]}
        jobsets, pods = await asyncio.gather(
            list_kept(self._cluster, JOBSETS, namespace, room, keep=partial(jobset_of, job), labels=labels),
            list_kept(self._cluster, PODS, namespace, room, keep=partial(pod_of, job), labels=labels),
        )
        own = own_jobsets(job, jobsets)
        # The cache has also those of JobSets that Kueue may suspend later.
        every = self._cache.watches(WORKLOADS, namespace)
        uids = frozenset(each.uid for each in own) if every else _managed(own)
        return jobsets, pods, await self._workloads(namespace, uids, room)

    async def _named_jobsets(self, job: Object, room: MemoryShare) -> list[Object]:
        """Returns the job's JobSets among those that may exist by its status. Raises ClusterError."""
        read = partial(
            list_kept,
            self._cluster,
            JOBSETS,
            job["metadata"]["namespace"],
            room,
            keep=partial(jobset_of, job),
        )
        names = sorted(possible_jobsets(job))
        # The operator's role permits no reads of single JobSets.
        found = await asyncio.gather(*(read(fields={"metadata.name": name}) for name in names))
        return [each for named in found for each in named]

    async def cached(self, cached: CachedJob, room: MemoryShare) -> tuple[Object | None, Children]:
        """Returns plan and children of a cached job. Reads what is not cached. Raises ClusterError."""
        namespace, name = (cached.job["metadata"][field] for field in ("namespace", "name"))
        jobsets, pods, workloads = cached.jobsets, cached.pods, cached.workloads
        await room.hold(
            [*jobsets, *pods, *(workloads or ())], f"JobSets, pods and Workloads of {namespace}/{name}"
        )
        snapshot = await self._cached_plan(cached.job, jobsets)
        if workloads is None:
            uids = _managed(own_jobsets(cached.job, jobsets))
            workloads = await self._workloads(namespace, uids, room)
        return snapshot, Children(jobsets, pods, workloads)

    async def _cached_plan(self, job: Object, jobsets: Sequence[Object]) -> Object | None:
        """Returns the plan of a job if it can have one."""
        # If an unprocessed job has one after all, storing its plan fails, and it is read live.
        known = self._plans.cached(job["metadata"]["uid"])
        return known if unprocessed(job) and not jobsets else await self._plan(job["metadata"]["uid"])

    async def _plan(self, uid: str) -> Object | None:
        """Returns the plan of the job with that uid. A plan that was read once is immutable."""
        return self._plans.cached(uid) or await self._plans.find(uid)

    async def _workloads(
        self, namespace: str, jobsets: frozenset[str], room: MemoryShare
    ) -> Sequence[Object] | None:
        """Lists Kueue's Workloads of the JobSets with these uids; None if Kueue is not installed.

        Without such a JobSet the result is empty and no request is made. Raises ClusterError.
        """
        if not jobsets:
            return ()
        try:
            labels = {OWNER_UID_LABEL: jobsets}
            return await list_kept(
                self._cluster, WORKLOADS, namespace, room, keep=reduced_workload, labels=labels
            )
        except NotFound:
            return None


def _managed(jobsets: Sequence[JobSet]) -> frozenset[str]:
    """Returns the uids of the JobSets that name a queue or are suspended.

    Kueue may be configured to manage JobSets without a queue as well.
    """
    return frozenset(jobset.uid for jobset in jobsets if jobset.queue is not None or jobset.suspended)


def own_workloads(
    workloads: Sequence[Object] | None, jobsets: Sequence[JobSet]
) -> tuple[Workload, ...] | None:
    """Returns the Workloads of the JobSets that Kueue manages; None if Kueue is not installed."""
    if workloads is None:
        return None
    managed = _managed(jobsets)
    parsed = map(Workload.parse, workloads)
    return tuple(each for each in parsed if not managed.isdisjoint(each.owner_uids))


async def list_kept(
    cluster: KubernetesClient,
    kind: ResourceKind,
    namespace: str | None,
    room: MemoryShare,
    *,
    keep: Keep,
    **selected: Any,
) -> list[Object]:
    """Lists objects page by page and returns the part of each that ``keep`` selects."""
    # A continue token may expire (410 Gone); a list from the start then succeeds.
    for final in (False, True):
        found: list[Object] = []
        try:
            async for page in cluster.kept(kind, namespace, keep=keep, **selected):
                where = f" of namespace {namespace}" if namespace else ""
                await room.hold(page, f"{kind.plural}{where} with {selected}")
                found += page
        except ResponseTooLarge:
            room.release(found)
            raise
        except Rejected as error:
            if error.status != 410 or final:
                raise
            room.release(found)
        else:
            return found
    raise AssertionError("unreachable")
