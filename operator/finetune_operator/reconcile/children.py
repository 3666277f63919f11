"""Reads plan and children of a job: from the watches' cache, or live."""

import asyncio
from collections.abc import Callable, Sequence
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
from finetune_operator.lifecycle.children.ownership import possible_jobsets
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.workload import OWNER_UID_LABEL, Workload
from finetune_operator.lifecycle.decide import unprocessed
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.watch_cache import CachedJob, WatchCache
from finetune_operator.reconcile.watch_entries import ChildVersion, own_child, weight
from finetune_operator.rendering.labels import UID_LABEL

#: Maximum size in bytes of what a listing keeps: some 400 pods; and of a job that has a slot for many children: the
#: largest slice has 2,304 hosts, each of whose pods may have a message of 8 KiB.
_SMALL_BYTES, _LARGE_BYTES = 2**20, 16 * 2**20


class ManyChildren(ResponseTooLarge):
    """The objects that may belong to a job take more memory than the listing may keep."""


@dataclass(frozen=True, slots=True)
class Children:
    """The children of a job by their metadata."""

    jobsets: tuple[JobSet, ...]
    pods: Sequence[Pod]
    workloads: tuple[Workload, ...] | None
    """Those of JobSets that Kueue manages; None if Kueue is not installed."""
    excess: str | None = None
    """Why pods and Workloads are unknown, as a sentence: more objects carry the job's labels than are read. ``jobsets``
    then has those that the status names, and the next one of each stage. None: everything is known."""


class ChildReader:
    """Reads plan and children of jobs, and completes the cache with live reads."""

    def __init__(self, cluster: KubernetesClient, plans: Plans, cache: WatchCache) -> None:
        self._cluster = cluster
        self._plans = plans
        self._cache = cache

    async def live(self, job: Object, *, large: bool) -> tuple[Object | None, Children]:
        """Reads plan and children of a job, and completes the cache with them.

        Tenants can put the job's labels on any number of objects. That must not keep the job from being stopped, so
        its JobSets are then read by name.

        ``large``: whether it has a slot for many children. Raises ManyChildren if they take more than a job may that
        has none, and ClusterError.
        """
        uid = job["metadata"]["uid"]
        self._cache.adopt(job)
        config_map = await self._plan(uid)
        try:
            jobsets, pods, workloads = await self._listed(job, _LARGE_BYTES if large else _SMALL_BYTES)
        except ResponseTooLarge as error:
            if isinstance(error, ManyChildren) and not large:
                raise
            return config_map, Children(await self._named_jobsets(job), (), (), excess=f"{error}.")
        self._cache.complete(uid, {JOBSETS: jobsets, PODS: pods, WORKLOADS: workloads or ()})
        return config_map, _children(
            _views(jobsets), _views(pods), None if workloads is None else _views(workloads)
        )

    async def _listed(
        self, job: Object, most: int
    ) -> tuple[Sequence[ChildVersion], Sequence[ChildVersion], Sequence[ChildVersion] | None]:
        """Lists JobSets, pods and Workloads of a job. ``most``: maximum size of each. Raises ClusterError."""
        labels = {UID_LABEL: job["metadata"]["uid"]}
        listings = [self._own(kind, job, most=most, labels=labels) for kind in (JOBSETS, PODS)]
        # Neither continues when this raises, and the slot for it is free again.
        read: list[list[ChildVersion]] = []
        for listed in await asyncio.gather(*listings, return_exceptions=True):
            if isinstance(listed, BaseException):
                raise listed
            read.append(listed)
        jobsets, pods = read
        own = _views(jobsets)
        # The cache has also those of JobSets that Kueue may suspend later.
        every = self._cache.streams.of(WORKLOADS, job["metadata"]["namespace"])
        uids = frozenset(jobset.uid for jobset in own) if every else _managed(own)
        return jobsets, pods, await self._workloads(job, uids, most)

    async def _named_jobsets(self, job: Object) -> tuple[JobSet, ...]:
        """Returns the job's JobSets among those that may exist by its status. Raises ClusterError."""
        names = sorted(possible_jobsets(job))
        # The operator's role permits no reads of single JobSets.
        found = await asyncio.gather(
            *(self._own(JOBSETS, job, fields={"metadata.name": name}) for name in names)
        )
        return tuple(jobset for named in found for jobset in _views(named))

    async def cached(self, cached: CachedJob) -> tuple[Object | None, Children]:
        """Returns plan and children of a cached job. Reads what is not cached. Raises ClusterError."""
        job, jobsets, workloads = cached.job, cached.jobsets, cached.workloads
        config_map = await self._cached_plan(job, jobsets)
        if workloads is None:
            listed = await self._workloads(job, _managed(jobsets))
            workloads = None if listed is None else _views(listed)
        return config_map, _children(jobsets, cached.pods, workloads)

    async def _cached_plan(self, job: Object, jobsets: Sequence[JobSet]) -> Object | None:
        """Returns the plan of a job if it can have one."""
        # If an unprocessed job has one after all, storing its plan fails, and it is read live.
        known = self._plans.cached(job["metadata"]["uid"])
        return known if unprocessed(job) and not jobsets else await self._plan(job["metadata"]["uid"])

    async def _plan(self, uid: str) -> Object | None:
        """Returns the plan of the job with that uid. A plan that was read once is immutable."""
        return self._plans.cached(uid) or await self._plans.find(uid)

    async def _workloads(
        self, job: Object, jobsets: frozenset[str], most: int = _SMALL_BYTES
    ) -> Sequence[ChildVersion] | None:
        """Lists Kueue's Workloads of the JobSets with these uids; None if Kueue is not installed.

        Without such a JobSet the result is empty and no request is made. Raises ClusterError.
        """
        if not jobsets:
            return ()
        try:
            return await self._own(WORKLOADS, job, most=most, labels={OWNER_UID_LABEL: jobsets})
        except NotFound:
            return None

    async def _own(self, kind: ResourceKind, job: Object, **selected: Any) -> list[ChildVersion]:
        """Lists the job's objects of a kind among those that are selected. Raises ClusterError."""
        namespace = job["metadata"]["namespace"]
        keep = partial(own_child, kind, job)
        return await list_kept(self._cluster, kind, namespace, keep=keep, size=_size, **selected)


def _size(child: ChildVersion) -> int:
    return child.size


def _views(children: Sequence[ChildVersion]) -> list[Any]:
    return [child.view for child in children]


def _managed(jobsets: Sequence[JobSet]) -> frozenset[str]:
    """Returns the uids of the JobSets that name a queue or are suspended.

    Kueue may be configured to manage JobSets without a queue as well.
    """
    return frozenset(jobset.uid for jobset in jobsets if jobset.queue is not None or jobset.suspended)


def _children(
    jobsets: Sequence[JobSet], pods: Sequence[Pod], workloads: Sequence[Workload] | None
) -> Children:
    """Returns the children, without Workloads of JobSets that Kueue does not manage."""
    managed = _managed(jobsets)
    if workloads is not None:
        workloads = tuple(each for each in workloads if not managed.isdisjoint(each.owner_uids))
    return Children(tuple(jobsets), pods, workloads)


async def list_kept[T](
    cluster: KubernetesClient,
    kind: ResourceKind,
    namespace: str | None,
    *,
    keep: Keep[T],
    size: Callable[[T], int] = weight,
    most: int = _SMALL_BYTES,
    **selected: Any,
) -> list[T]:
    """Lists objects page by page and returns what ``keep`` returns of each.

    Raises ManyChildren if that takes more than ``most`` bytes of memory by ``size``, and ClusterError.
    """
    # A continue token may expire (410 Gone); a list from the start then succeeds.
    for final in (False, True):
        found, total = list[T](), 0
        try:
            async for page in cluster.kept(kind, namespace, keep=keep, **selected):
                total += sum(map(size, page))
                if total > most:
                    where = f" of namespace {namespace}" if namespace else ""
                    raise ManyChildren(
                        f"{kind.plural}{where} with {selected}: the objects that may belong to the job take more than "
                        f"{most >> 20} MiB. Delete those without a controller, or remove these labels from them"
                    )
                found += page
        except Rejected as error:
            if error.status != 410 or final:
                raise
        else:
            return found
    raise AssertionError("unreachable")
