"""Storage of the jobs' plans: immutable ConfigMaps in the operator's own namespace, one per job uid."""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    JOBS,
    AlreadyExists,
    Conflict,
    KubernetesClient,
    NotFound,
    Object,
)
from finetune_operator.planning.stored_plan import JOB_NAMESPACE_LABEL, PLAN_COMPONENT, plan_name
from finetune_operator.rendering.labels import JOB_LABEL, UID_LABEL

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class PlanKey:
    """Key of a stored plan, whose job may no longer exist."""

    namespace: str
    """Namespace of the job."""
    name: str
    """Name of the job."""
    uid: str
    """UID of the job."""

    def __str__(self) -> str:
        return f"plan of {self.namespace}/{self.name} ({self.uid})"


class Plans:
    """Reads, creates and deletes stored plans.

    Args:
        cluster: client of the API server.
        namespace: the operator's own namespace.
    """

    def __init__(self, cluster: KubernetesClient, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def find(self, uid: str) -> Object | None:
        """Returns the stored plan of the job with that uid, or None. Raises ClusterError."""
        try:
            return await self._cluster.get(CONFIG_MAPS, self._namespace, plan_name(uid))
        except NotFound:
            return None

    async def create(self, config_map: Object) -> Object:
        """Stores a plan permanently and returns it as stored.

        Raises ClusterError; Conflict if the job already has a plan.
        """
        stored = {**config_map, "metadata": {**config_map["metadata"], "namespace": self._namespace}}
        try:
            return await self._cluster.create(CONFIG_MAPS, stored)
        except AlreadyExists as error:
            # The job was admitted under that plan; this decision is based on an outdated observation.
            raise Conflict("the job has been admitted in the meantime", status=409) from error

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

    async def delete_orphan(self, key: PlanKey) -> None:
        """Deletes the plan if its job no longer exists. Raises ClusterError.

        The job is read live, because an event or a listing may be older than the job that has its name now. A job of
        the same name with another uid does not keep the plan.
        """
        try:
            job = await self._cluster.get(JOBS, key.namespace, key.name)
        except NotFound:
            job = None
        if job is not None and job["metadata"]["uid"] == key.uid:
            return
        plan = await self.find(key.uid)
        if plan is None:
            return
        name, uid = plan["metadata"]["name"], plan["metadata"]["uid"]
        await self._cluster.delete(CONFIG_MAPS, self._namespace, name, uid=uid, foreground=False)
        log.info("deleted the %s: the job no longer exists", key)
