"""Carries a decision out. Every write is harmless when repeated, so a crash between any two is too.

Names are deterministic and objects are created, never applied: a JobSet is immutable for our purposes, and a
server-side apply onto one that is being deleted would succeed. A name that is taken means that the observation
was stale: Conflict, and the job is looked at again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from finetune_contract import RunFolder
from finetune_operator.artifacts.port import ObjectStore, StorageError
from finetune_operator.cluster.port import (
    EVENTS,
    JOBS,
    JOBSETS,
    AlreadyExists,
    ClusterError,
    Conflict,
    KubernetesClient,
    Object,
    Rejected,
)
from finetune_operator.lifecycle.decision import Decision, Deletion, JobEvent
from finetune_operator.lifecycle.observation import Observation, TakeoverRecord
from finetune_operator.lifecycle.ownership import own_jobsets
from finetune_operator.lifecycle.pending import pending_records, with_pending
from finetune_operator.reconcile.errors import NameTaken
from finetune_operator.reconcile.listing import taken_over_by
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.run_folder import Folders

log = logging.getLogger(__name__)

COMPONENT = "finetune-operator"
#: Attempts to store a status, over edits of the job, before JobSets are deleted.
_EDITS = 4


@dataclass(frozen=True, slots=True)
class JobSetCreated:
    """Told to the listener, for metrics."""

    namespace: str
    job: str
    name: str


def _ignore(_created: JobSetCreated) -> None:
    """The listener of those who do not measure."""


class Applier:
    """Carries decisions out, in the order that :class:`Decision` states.

    Args:
        cluster: where objects are written.
        plans: where the plans of jobs are stored.
        store: where records of attempts are written.
        created: hears of each JobSet that was created.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        plans: Plans,
        store: ObjectStore,
        *,
        created: Callable[[JobSetCreated], None] = _ignore,
    ) -> None:
        self._cluster = cluster
        self._plans = plans
        self._store = store
        self._created = created
        self._taking_over: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(self, observation: Observation, decision: Decision) -> None:
        """Raises ClusterError or StorageError at the first write that fails; nothing after it was tried, but for the
        deletions where a record of an attempt could not be written."""
        job = observation.job
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if decision.retry is not None:
            run = self._run_folder(observation, decision)
            await self._store.write(
                run.retry(decision.retry.generation), decision.retry.model_dump_json().encode()
            )
        if decision.takeover is not None:
            await self._take_over(observation, self._run_folder(observation, decision), decision.takeover)
        if decision.records:
            try:
                await self._write_records(observation, decision)
            except StorageError:
                await self._stop_unrecorded(job, decision)
                raise
        if decision.snapshot is not None:
            await self._plans.create(decision.snapshot)
        if not decision.status_before_deletions:
            await self._delete(job, decision.deletions)
        if decision.jobset is not None:
            await self._create_jobset(observation, decision.jobset)
            created = decision.jobset["metadata"]["name"]
            log.info("created JobSet %s", created)
            self._created(JobSetCreated(namespace, name, created))
        for notice in decision.notices:
            await self._tell(job, notice, observation.now)
        if decision.status_before_deletions:
            await self._write_status_then_delete(job, decision.status, decision.deletions)
        else:
            await self.write_status(job, decision.status)

    async def _take_over(self, observation: Observation, run: RunFolder, note: TakeoverRecord) -> None:
        """Of jobs that are to go on in one folder the first leaves its note. Conflict: another one has, since the look.
        One process has the Lease, so a lock of this one is enough."""
        async with self._taking_over.setdefault(run.uri, asyncio.Lock()):
            noted = taken_over_by(await self._store.list(run.attempts))
            if set(noted) != {each.uid[:8] for each in observation.folder.takeovers}:
                raise Conflict(f"{run.uri} has been taken over since")
            await self._store.write(run.taken_over(note.uid), note.model_dump_json().encode())

    async def write_status(self, job: Object, status: Object) -> None:
        """Only where it differs. Conflict where the job has moved on since it was observed."""
        if job.get("status") == status:
            return
        metadata = job["metadata"]
        await self._cluster.patch_status(
            JOBS,
            metadata["namespace"],
            metadata["name"],
            status,
            resource_version=metadata["resourceVersion"],
        )

    async def _stop_unrecorded(self, job: Object, decision: Decision) -> None:
        """A store that takes no record must not keep a slice: the records wait in the status, all else of the decision
        is not done."""
        if decision.deletions:
            status = job.get("status") or {}
            records = {**dict(pending_records(status)), **dict(decision.records)}
            await self._write_status_then_delete(
                job, with_pending(status, records.items()), decision.deletions
            )

    async def _write_status_then_delete(
        self, job: Object, status: Object, deletions: Sequence[Deletion]
    ) -> None:
        """What the status records is stored before its evidence goes.

        Neither an API server that refuses the status nor a user who edits the job all the time keeps the JobSets; that
        is reported afterwards. Conflict with nothing deleted: the status has been written by somebody else.
        """
        for edits_left in reversed(range(_EDITS)):
            try:
                await self.write_status(job, status)
                break
            except Rejected:
                await self._delete(job, deletions)
                raise
            except Conflict:
                edited = await self._cluster.get(JOBS, job["metadata"]["namespace"], job["metadata"]["name"])
                if edited["metadata"]["uid"] != job["metadata"]["uid"] or edited.get("status") != job.get(
                    "status"
                ):
                    raise
                if not edits_left:
                    await self._delete(job, deletions)
                    raise
                job = edited
        await self._delete(job, deletions)

    async def _delete(self, job: Object, deletions: Sequence[Deletion]) -> None:
        namespace = job["metadata"]["namespace"]
        for deletion in deletions:
            await self._cluster.delete(JOBSETS, namespace, deletion.name, uid=deletion.uid, foreground=True)

    async def _write_records(self, observation: Observation, decision: Decision) -> None:
        run = self._run_folder(observation, decision)
        for key, failure in decision.records:
            uri = run.failure(*key.place)
            await self._store.write(uri, failure.to_json().encode())

    def _run_folder(self, observation: Observation, decision: Decision) -> RunFolder:
        snapshot = observation.snapshot or decision.snapshot
        assert snapshot is not None, "an attempt has failed, so the job was admitted"
        return Folders.of(snapshot).run

    async def _create_jobset(self, observation: Observation, jobset: Object) -> None:
        """Conflict: it is there already, so the look was stale. NameTaken: what is there is not the job's."""
        job = observation.job
        try:
            await self._cluster.create(JOBSETS, jobset)
        except AlreadyExists as error:
            namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
            # The role lets the operator list JobSets, not get them.
            there = await self._cluster.list(JOBSETS, namespace, fields={"metadata.name": name})
            if own_jobsets(job, there, observation.snapshot):
                raise
            raise NameTaken("JobSet", namespace, name) from error

    async def _tell(self, job: Object, notice: JobEvent, now: datetime) -> None:
        """One Event. A fault that passes loses none; one that stays stops nothing: the status says it, too."""
        event = event_of(job, notice, now)
        for final in (False, True):
            try:
                await self._cluster.create(EVENTS, event)
            except AlreadyExists:
                # Its name is its content: this has been told.
                return
            except ClusterError as error:
                if final:
                    log.warning("the Event %s was not written: %s", notice.reason, error)
            else:
                return


def event_of(job: Object, notice: JobEvent, now: datetime) -> Object:
    """A core/v1 Event, which is what ``kubectl describe`` shows. The name holds a digest of what it says."""
    metadata = job["metadata"]
    told = "\n".join((metadata["uid"], notice.type, notice.reason, notice.message, notice.since))
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    event: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}.{sha256(told.encode()).hexdigest()[:16]}",
        },
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": str(notice.type),
        "reason": notice.reason,
        # The API server's limit for an Event's message.
        "message": notice.message[:1024],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    return event
