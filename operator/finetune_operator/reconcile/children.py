"""Reads a job with its plan and children: from the watches' cache, or live."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    PODS,
    WORKLOADS,
    Keep,
    KubernetesClient,
    NotFound,
    Rejected,
    ResourceKind,
    ResponseTooLarge,
)
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.ownership import possible_jobsets
from finetune_operator.lifecycle.children.workload import OWNER_UID_LABEL, Workload
from finetune_operator.lifecycle.job import Job
from finetune_operator.objects import Object
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.watch_cache import ReadJob, WatchCache
from finetune_operator.reconcile.watch_entries import ChildVersion, own_child, weight
from finetune_operator.rendering.labels import UID_LABEL

#: Maximum size in bytes of what a listing keeps: some 400 pods; and of a job that has a slot for many children: the
#: largest slice has 2,304 hosts, each of whose pods may have a message of 8 KiB.
_SMALL_BYTES, _LARGE_BYTES = 2**20, 16 * 2**20


class ManyChildren(ResponseTooLarge):
    """The objects that may belong to a job take more memory than the listing may keep."""


class JobReader:
    """Reads jobs with their plans and children, and completes the cache with live reads."""

    def __init__(self, cluster: KubernetesClient, plans: Plans, cache: WatchCache) -> None:
        self._cluster = cluster
        self._plans = plans
        self._cache = cache

    async def cached(self, key: JobKey) -> ReadJob | None:
        """Returns a job from the cache, and reads what is not cached of it; None if it must be read live. Raises
        ClusterError."""
        cached = await self._cache.job(key.namespace, key.name)
        if cached is None:
            return None
        job, jobsets, workloads = cached.job, cached.jobsets, cached.workloads
        # If an unprocessed job has a plan after all, storing its plan fails, and it is read live.
        may_have_plan = bool(jobsets) or not job.unprocessed
        config_map = await self._plan(job.uid) if may_have_plan else self._plans.cached(job.uid)
        if workloads is None:
            listed = await self._workloads(job, _managed(jobsets))
            workloads = None if listed is None else tuple(_views(listed))
        return replace(cached, config_map=config_map, workloads=_workloads_of(jobsets, workloads))

    async def live(self, key: JobKey, *, large: bool) -> ReadJob | None:
        """Reads a job with plan and children, and completes the cache with them. Returns None if it does not exist.

        Tenants can put the job's labels on any number of objects. That must not keep the job from being stopped, so
        its JobSets are then read by name.

        ``large``: whether it has a slot for many children. Raises ManyChildren if they take more than a job may that
        has none, and ClusterError.
        """
        whole = await find(self._cluster, JOBS, key.namespace, key.name)
        if whole is None:
            return None
        job = Job.parse(whole)
        # Its other metadata have no limit.
        del whole
        self._cache.adopt(job.document)
        read = ReadJob(job=job, config_map=await self._plan(job.uid), jobsets=())
        try:
            found = await self._listed(job, _LARGE_BYTES if large else _SMALL_BYTES)
        except ResponseTooLarge as error:
            if isinstance(error, ManyChildren) and not large:
                raise
            return replace(read, jobsets=await self._named_jobsets(job), excess=f"{error}.")
        self._cache.complete(job.uid, found)
        jobsets, pods = _views(found[JOBSETS]), _views(found[PODS])
        workloads = _views(found[WORKLOADS]) if WORKLOADS in found else None
        return replace(read, jobsets=jobsets, pods=pods, workloads=_workloads_of(jobsets, workloads))

    async def _listed(self, job: Job, most: int) -> dict[ResourceKind, Sequence[ChildVersion]]:
        """Lists JobSets, pods and, if Kueue is installed, Workloads of a job. ``most``: maximum size of each. Raises
        ClusterError."""
        labels = {UID_LABEL: job.uid}
        found: dict[ResourceKind, Sequence[ChildVersion]] = {}
        listings = (self._own(kind, job, most=most, labels=labels) for kind in (JOBSETS, PODS))
        # Neither continues when this raises, and the slot for it is free again.
        both = await asyncio.gather(*listings, return_exceptions=True)
        for kind, listed in zip((JOBSETS, PODS), both, strict=True):
            if isinstance(listed, BaseException):
                raise listed
            found[kind] = listed
        own = _views(found[JOBSETS])
        # The cache has also those of JobSets that Kueue may suspend later.
        every = self._cache.streams.of(WORKLOADS, job.namespace)
        uids = frozenset(jobset.uid for jobset in own) if every else _managed(own)
        workloads = await self._workloads(job, uids, most)
        return found if workloads is None else found | {WORKLOADS: workloads}

    async def _named_jobsets(self, job: Job) -> list[JobSet]:
        """Returns the job's JobSets among those that may exist by its status. Raises ClusterError."""
        names = sorted(possible_jobsets(job.document))
        # The operator's role permits no reads of single JobSets.
        found = await asyncio.gather(
            *(self._own(JOBSETS, job, fields={"metadata.name": name}) for name in names)
        )
        return _views(chain.from_iterable(found))

    async def _plan(self, uid: str) -> Object | None:
        """Returns the plan of the job with that uid. A plan that was read once is immutable."""
        return self._plans.cached(uid) or await self._plans.find(uid)

    async def _workloads(
        self, job: Job, jobsets: frozenset[str], most: int = _SMALL_BYTES
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

    async def _own(self, kind: ResourceKind, job: Job, **selected: Any) -> list[ChildVersion]:
        """Lists the job's objects of a kind among those that are selected. Raises ClusterError."""
        keep, size = partial(own_child, kind, job.document), attrgetter("size")
        return await list_kept(self._cluster, kind, job.namespace, keep=keep, size=size, **selected)


def _views(children: Iterable[ChildVersion]) -> list[Any]:
    return [child.view for child in children]


def _managed(jobsets: Sequence[JobSet]) -> frozenset[str]:
    """Returns the uids of the JobSets that name a queue or are suspended.

    Kueue may be configured to manage JobSets without a queue as well.
    """
    return frozenset(jobset.uid for jobset in jobsets if jobset.queue is not None or jobset.suspended)


def _workloads_of(
    jobsets: Sequence[JobSet], workloads: Sequence[Workload] | None
) -> tuple[Workload, ...] | None:
    """Returns the Workloads without those of JobSets that Kueue does not manage."""
    if workloads is None:
        return None
    managed = _managed(jobsets)
    return tuple(each for each in workloads if not managed.isdisjoint(each.owner_uids))


async def find(cluster: KubernetesClient, kind: ResourceKind, namespace: str, name: str) -> Object | None:
    """Returns the object; None if it does not exist. Raises ClusterError."""
    try:
        return await cluster.get(kind, namespace, name)
    except NotFound:
        return None


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
