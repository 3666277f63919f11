"""Storage of the jobs' plans: immutable ConfigMaps in the operator's own namespace, one per job uid."""

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Container, Sequence

from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    JOBS,
    AlreadyExists,
    Conflict,
    KubernetesClient,
    NotFound,
)
from finetune_operator.objects import Object
from finetune_operator.planning.stored_plan import JOB_NAMESPACE_LABEL, PLAN_COMPONENT, plan_name
from finetune_operator.reconcile.keys import PlanKey
from finetune_operator.reconcile.made_plans import MadePlans
from finetune_operator.rendering.labels import JOB_LABEL, UID_LABEL

log = logging.getLogger(__name__)

#: Maximum size of the cached plans in characters.
CACHE_BYTES = 32 * 2**20


class Plans:
    """Reads, creates and deletes stored plans, in the operator's own namespace."""

    def __init__(self, cluster: KubernetesClient, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._cached: OrderedDict[str, Object] = OrderedDict()
        """Plans by uid of their jobs, least recently used first."""
        self._bytes = 0
        self.made = MadePlans()
        """What decisions have made from stored plans."""

    async def find(self, uid: str) -> Object | None:
        """Returns the stored plan of the job with that uid, or None. Raises ClusterError."""
        try:
            found = await self._cluster.get(CONFIG_MAPS, self._namespace, plan_name(uid))
        except NotFound:
            self.forget(uid)
            return None
        self._keep(uid, found)
        return found

    def cached(self, uid: str) -> Object | None:
        """Returns the plan as it was last read or created. It is immutable, but may have been deleted since."""
        if uid in self._cached:
            self._cached.move_to_end(uid)
        return self._cached.get(uid)

    def keep(self, uids: Container[str]) -> None:
        """Drops all plans from the cache but those of the jobs with these uids, which exist."""
        for uid in [uid for uid in self._cached if uid not in uids]:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """Drops the stored plan, and the plan that decisions have made from it."""
        self.made.forget(uid)
        self._drop(uid)

    def _drop(self, uid: str) -> None:
        if dropped := self._cached.pop(uid, None):
            self._bytes -= _size(dropped)

    def _keep(self, uid: str, plan: Object) -> None:
        self._drop(uid)
        self._cached[uid] = plan
        self._bytes += _size(plan)
        while self._bytes > CACHE_BYTES:
            self._drop(next(iter(self._cached)))

    async def create(self, config_map: Object) -> Object:
        """Stores a plan permanently and returns it as stored.

        Raises ClusterError; Conflict if the job already has a plan.
        """
        stored = {**config_map, "metadata": {**config_map["metadata"], "namespace": self._namespace}}
        try:
            created = await self._cluster.create(CONFIG_MAPS, stored)
        except AlreadyExists as error:
            # The job was admitted under that plan; this decision is based on an outdated observation.
            raise Conflict("the job has been admitted in the meantime", status=409) from error
        self._keep(created["metadata"]["labels"][UID_LABEL], created)
        return created

    async def stored(self, namespaces: Sequence[str]) -> AsyncIterator[PlanKey]:
        """Yields all plans of jobs in those namespaces (all if empty), page by page. Raises ClusterError.

        Another release may share the operator's namespace: plans of jobs that this one does not serve are omitted.
        """
        pages = self._cluster.pages(CONFIG_MAPS, self._namespace, labels=PLAN_COMPONENT, metadata_only=True)
        async for page in pages:
            for each in page:
                labels = each["metadata"].get("labels", {})
                key = PlanKey(
                    labels.get(JOB_NAMESPACE_LABEL, ""), labels.get(JOB_LABEL, ""), labels.get(UID_LABEL, "")
                )
                served = not namespaces or key.namespace in namespaces
                if served and each["metadata"]["name"] == plan_name(key.uid):
                    yield key
            # Releases the page before the next one is fetched.
            del page

    async def delete_orphan(self, key: PlanKey) -> bool:
        """Deletes the plan if its job no longer exists, and returns whether it did. Raises ClusterError.

        The job is read live, because an event or a listing may be older than the job that has its name now. A job of
        the same name with another uid does not keep the plan.
        """
        try:
            job = await self._cluster.get(JOBS, key.namespace, key.name)
        except NotFound:
            job = None
        if job is not None and job["metadata"]["uid"] == key.uid:
            return False
        # If it has been replaced since it was read, the next resync deletes that one.
        plan = self.cached(key.uid) or await self.find(key.uid)
        if plan is None:
            return False
        name, uid = plan["metadata"]["name"], plan["metadata"]["uid"]
        await self._cluster.delete(CONFIG_MAPS, self._namespace, name, uid=uid, foreground=False)
        self.forget(key.uid)
        log.info("deleted the %s: the job no longer exists", key)
        return True


def _size(plan: Object) -> int:
    return sum(map(len, plan.get("data", {}).values()))
