"""Writes the status of profiles. Jobs never read it: their profile is validated when they are admitted."""

from collections.abc import Callable, Mapping
from datetime import datetime

from finetune_operator.cluster.port import PROFILES, KubernetesClient, NotFound
from finetune_operator.lifecycle.status.profile import profile_status
from finetune_operator.reconcile.keys import ProfileKey


class ProfileReconciler:
    """Updates the status of profiles.

    Args:
        used_by: returns the number of unfinished jobs that run under the named profile; None if not all jobs are known.
        ledger: URI of the operator's ledger; None if it keeps none.
        lost: returns the served namespaces that cannot be watched, and the chips that were at work in each.
        release: the operator's release, which a condition about them names.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        *,
        used_by: Callable[[str], int | None],
        utc_now: Callable[[], datetime],
        ledger: str | None = None,
        lost: Callable[[], Mapping[str, int]] = dict,
        release: str = "",
    ) -> None:
        self._lost = lost
        self._release = release
        self._ledger = ledger
        self._cluster = cluster
        self._used_by = used_by
        self._utc_now = utc_now

    async def reconcile(self, key: ProfileKey) -> None:
        """Updates the status of one profile. Raises ClusterError."""
        try:
            profile = await self._cluster.get(PROFILES, None, key.name)
        except NotFound:
            return
        status = profile_status(
            profile,
            used_by=self._used_by(key.name),
            now=self._utc_now(),
            ledger=self._ledger,
            lost=self._lost(),
            release=self._release,
        )
        document = status.to_document()
        if profile.get("status") != document:
            await self._cluster.patch_status(
                PROFILES,
                None,
                key.name,
                document,
                resource_version=profile["metadata"]["resourceVersion"],
            )
