"""Writes the status of profiles. Jobs never read it: their profile is validated when they are admitted."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from finetune_operator.cluster.port import PROFILES, ClusterError, KubernetesClient, NotFound
from finetune_operator.lifecycle.status.profile import profile_status
from finetune_operator.reconcile.observe import JobKey
from finetune_operator.reconcile.plans import PlanKey
from finetune_operator.reconcile.reconciler import ReconcileError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class ProfileKey:
    """Key of a FineTuneProfile."""

    name: str

    def __str__(self) -> str:
        return f"finetuneprofile/{self.name}"


type Key = JobKey | ProfileKey | PlanKey
"""Key of an object that the operator reconciles."""


class ProfileReconciler:
    """Updates the status of profiles.

    Args:
        cluster: client of the API server.
        used_by: returns the number of unfinished jobs that run under the named profile; None if not all jobs are known.
        utc_now: the wall clock.
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
        """Updates the status of one profile.

        Raises ReconcileError for any error; the caller retries the key with backoff.
        """
        try:
            await self._reconcile(key)
        except ClusterError as error:
            raise ReconcileError.of(error) from error
        except Exception as error:
            log.exception("internal error of the operator")
            raise ReconcileError.of(error) from error

    async def _reconcile(self, key: ProfileKey) -> None:
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
