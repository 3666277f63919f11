"""Compares the watches' cache with listings of metadata, so that a watch that lost an event is noticed."""

import logging
from collections.abc import Sequence

from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    PODS,
    WORKLOADS,
    KubernetesClient,
    Rejected,
    ResourceKind,
)
from finetune_operator.lifecycle.children.workload import OWNER_UID_LABEL
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_objects import version_of
from finetune_operator.rendering.labels import UID_LABEL

#: The label of each kind by which its objects are listed.
_LABELS = {JOBSETS: UID_LABEL, PODS: UID_LABEL, WORKLOADS: OWNER_UID_LABEL}

log = logging.getLogger(__name__)


async def distrust_outdated(
    cluster: KubernetesClient, cache: WatchCache, namespaces: Sequence[str]
) -> frozenset[str]:
    """Has every cached job read live that differs from the one that exists, itself or in its children.

    An event that is on its way counts as a difference, which costs one live read. Of each page only what differs is
    kept.

    Returns:
        The jobs' uids.

    Raises:
        ClusterError: a listing failed.
    """
    outdated: set[str] = set()
    for scope in namespaces or (None,):
        try:
            if cache.watches(JOBS, scope):
                outdated |= await _outdated_jobs(cluster, cache, scope)
            for kind in _LABELS:
                if cache.watches(kind, scope):
                    outdated |= await _outdated(cluster, cache, kind, scope)
        except Rejected:
            if scope is None:
                raise
            # What is cached there is too old to be relied on, as its watches are refused, too.
    for uid in outdated:
        log.warning("the watches lost an event of the job with uid %s or of a child", uid)
        cache.distrust(uid)
    return frozenset(outdated)


async def _outdated_jobs(cluster: KubernetesClient, cache: WatchCache, namespace: str | None) -> set[str]:
    before = dict(cache.jobs(namespace))
    outdated: set[str] = set()
    async for page in cluster.pages(JOBS, namespace, metadata_only=True):
        for found in page:
            uid = found["metadata"]["uid"]
            before.pop(uid, None)
            cached = cache.version_of_job(uid)
            if cached is not None and cached < version_of(found):
                outdated.add(uid)
        # Releases the page before the next one is fetched.
        del page
    # Those that were deleted before the listing, and are still cached after it.
    return outdated | {uid for uid in before if cache.version_of_job(uid) is not None}


async def _outdated(
    cluster: KubernetesClient, cache: WatchCache, kind: ResourceKind, namespace: str | None
) -> set[str]:
    before = {uid: job for uid, job, _ in cache.children(kind, namespace)}
    outdated: set[str] = set()
    async for page in cluster.pages(kind, namespace, labels={_LABELS[kind]: None}, metadata_only=True):
        for found in page:
            uid, version = found["metadata"]["uid"], version_of(found)
            # The job that it was cached for, and the one that it belongs to.
            for job in {before.pop(uid, None), cache.owner_of(kind, found)}:
                if job is not None and (cache.version_of_child(kind, job, uid) or -1) < version:
                    outdated.add(job)
        # Releases the page before the next one is fetched.
        del page
    still = {uid for uid, _, _ in cache.children(kind, namespace)}
    return outdated | {job for uid, job in before.items() if uid in still}
