"""Compares the watches' cache with listings of metadata, so that a watch that lost an event is noticed."""

import logging
from collections.abc import Sequence

from finetune_operator.cluster.port import JOBSETS, PODS, KubernetesClient, ResourceKind
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.reconcile.watch_objects import version_of
from finetune_operator.rendering.labels import UID_LABEL

log = logging.getLogger(__name__)


async def distrust_outdated(
    cluster: KubernetesClient, cache: WatchCache, namespaces: Sequence[str]
) -> frozenset[str]:
    """Has every job read live whose cached JobSets or pods differ from those that exist.

    An event that is on its way counts as a difference, which costs one live read. Of each page only what differs is
    kept.

    Returns:
        The jobs' uids.

    Raises:
        ClusterError: a listing failed.
    """
    outdated: set[str] = set()
    for kind in (JOBSETS, PODS):
        for scope in namespaces or (None,):
            outdated |= await _outdated(cluster, cache, kind, scope)
    for uid in outdated:
        log.warning("the watches lost an event of a child of the job with uid %s", uid)
        cache.distrust(uid)
    return frozenset(outdated)


async def _outdated(
    cluster: KubernetesClient, cache: WatchCache, kind: ResourceKind, namespace: str | None
) -> set[str]:
    before = {uid: (job, version) for uid, job, version in cache.children(kind, namespace)}
    outdated: set[str] = set()
    async for page in cluster.pages(kind, namespace, labels={UID_LABEL: None}, metadata_only=True):
        for found in page:
            _, version = before.pop(found["metadata"]["uid"], (None, -1))
            job = cache.owner_of(kind, found)
            if version < version_of(found) and job is not None and cache.lacks(kind, found):
                outdated.add(job)
        # Releases the page before the next one is fetched.
        del page
    still = {uid for uid, _, _ in cache.children(kind, namespace)}
    # Those that were deleted before the listing, and are still cached after it.
    return outdated | {job for uid, (job, _) in before.items() if uid in still}
