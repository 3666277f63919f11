"""Compares the watches' cache with listings of metadata, so that a watch that lost an event is noticed."""

import logging
from collections.abc import Mapping, Sequence

from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    PODS,
    WORKLOADS,
    KubernetesClient,
    Labels,
    Rejected,
    ResourceKind,
)
from finetune_operator.lifecycle.children.workload import OWNER_UID_LABEL
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_objects import version_of
from finetune_operator.rendering.labels import UID_LABEL

#: The labels by which the objects of each cached kind are listed.
_LABELS: Mapping[ResourceKind, Labels | None] = {
    JOBS: None,
    JOBSETS: {UID_LABEL: None},
    PODS: {UID_LABEL: None},
    WORKLOADS: {OWNER_UID_LABEL: None},
}

log = logging.getLogger(__name__)


async def distrust_outdated(
    cluster: KubernetesClient, cache: WatchCache, namespaces: Sequence[str]
) -> frozenset[str]:
    """Has every cached job read live that differs from the one that exists, itself or in its children.

    An event that is on its way counts as a difference, which costs one live read. Of each page only what differs is
    kept. Returns the jobs' uids. Raises ClusterError if a listing failed.
    """
    outdated: set[str] = set()
    for scope in namespaces or (None,):
        try:
            for kind in _LABELS:
                if cache.streams.of(kind, scope):
                    outdated |= await _outdated(cluster, cache, kind, scope)
        except Rejected:
            if scope is None:
                raise
            # What is cached there is too old to be relied on, as its watches are refused, too.
    outdated = {uid for uid in outdated if cache.version(JOBS, uid, uid) is not None}
    for uid in outdated:
        log.warning("the watches lost an event of the job with uid %s or of a child", uid)
        cache.distrust(uid)
    return frozenset(outdated)


async def _outdated(
    cluster: KubernetesClient, cache: WatchCache, kind: ResourceKind, namespace: str | None
) -> set[str]:
    unlisted = cache.jobs_by_uid(kind, namespace)
    outdated: set[str] = set()
    async for page in cluster.pages(kind, namespace, labels=_LABELS[kind], metadata_only=True):
        for found in page:
            uid, version = found["metadata"]["uid"], version_of(found)
            # The job that it was cached for, and the one that it belongs to.
            for job in {unlisted.pop(uid, None), cache.owner_of(kind, found)}:
                if job is not None and (cache.version(kind, job, uid) or -1) < version:
                    outdated.add(job)
        # Releases the page before the next one is fetched.
        del page
    # Those that were deleted before the listing, and are still cached after it.
    still = cache.jobs_by_uid(kind, namespace)
    return outdated | {job for uid, job in unlisted.items() if uid in still}
