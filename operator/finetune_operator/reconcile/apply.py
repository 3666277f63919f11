"""Applies decisions. Every write is safe to repeat, so a crash between any two writes is harmless.

Names are deterministic, and objects are created, never applied: a JobSet is treated as immutable, and a
server-side apply to one that is being deleted would succeed. A taken name means that the observation
was stale: this raises Conflict, and the job is observed again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from weakref import WeakValueDictionary

from finetune_contract import RunFolder
from finetune_operator.api import API_VERSION, FineTuneJobStatus
from finetune_operator.api.timestamps import stamp
from finetune_operator.artifacts.port import ObjectStore, StorageError
from finetune_operator.cluster.port import (
    EVENTS,
    JOBS,
    JOBSETS,
    AlreadyExists,
    ClusterError,
    Conflict,
    KubernetesClient,
    NotFound,
    Rejected,
    Unavailable,
)
from finetune_operator.lifecycle.attempts.pending_records import pending_records, with_pending
from finetune_operator.lifecycle.changes import Changes, changes
from finetune_operator.lifecycle.children.ownership import may_be_jobset_of
from finetune_operator.lifecycle.decision import (
    Admit,
    Create,
    Decision,
    Delete,
    Deletion,
    Finish,
    JobEvent,
)
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, RetryRecord, TakeoverRecord
from finetune_operator.objects import Object
from finetune_operator.reconcile.children import list_kept
from finetune_operator.reconcile.errors import NameTaken
from finetune_operator.reconcile.keys import PlanKey
from finetune_operator.reconcile.listing import taken_over_by
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.record_writer import RecordWriter, attempt_labels, run_folder
from finetune_operator.reconcile.watch_cache import WatchCache

log = logging.getLogger(__name__)

COMPONENT = "finetune-operator"


class Applier:
    """Applies decisions in the order that :class:`Decision` states.

    Args:
        cache: receives what the operator writes.
        created: called with each JobSet after its creation, as it is stored.
        changed: called after each write of a job's status, with the job as it was before.
        unwritten: called with a job and the status that the API server has not taken.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        plans: Plans,
        store: ObjectStore,
        cache: WatchCache,
        *,
        created: Callable[[Object], None] = lambda _: None,
        changed: Callable[[Object, Changes], None] = lambda *_: None,
        unwritten: Callable[[Object], None] = lambda _: None,
    ) -> None:
        self._unwritten = unwritten
        self._changed = changed
        self._cluster = cluster
        self.plans = plans
        self._store = store
        self._cache = cache
        self._created = created
        self.records = RecordWriter(store)
        self._taking_over: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(self, observation: Observation, decision: Decision) -> Decision:
        """Carries out a decision. :meth:`announce` and :meth:`report` then say so.

        Returns the decision with the status to report, which says so if the record of the job's end could not be
        written. Raises ClusterError or StorageError at the first other write that fails. No later write is attempted
        then, except that deletions are still made if a record of an attempt could not be written.
        """
        job = observation.job
        action = decision.action
        if isinstance(action, Admit):
            await self._admit(observation, action)
        if action.records:
            try:
                await self.records.write_failures(observation, action.records)
            except StorageError:
                if isinstance(action, Delete):
                    # A failing store must not hold a slice: the status keeps the records until they can be stored.
                    records = {**dict(pending_records(observation.status)), **dict(action.records)}
                    status = with_pending(observation.status, records.items())
                    stop = replace(action, status_first=True)
                    await self.report(observation, replace(decision, action=stop, status=status))
                raise
        if isinstance(action, Delete) and not action.status_first:
            await self._delete(job, action.jobsets)
        await self._delete(job, decision.obsolete)
        if isinstance(action, Create):
            create = self._create_and_record if decision.reported else self._create_jobset
            created = await create(observation, action.jobset)
            log.info("created JobSet %s", created["metadata"]["name"], extra=attempt_labels(action.jobset))
            self._created(created)
        if isinstance(action, Finish) and action.ends_now:
            status = await self.records.write_end(observation, decision.status)
            decision = replace(decision, status=status)
        return decision

    async def announce(self, observation: Observation, decision: Decision) -> None:
        """Creates the Events of a decision, before :meth:`report` writes the status that they follow from."""
        for event in decision.events:
            await self._create_event(observation.job, event, observation.now)

    async def report(self, observation: Observation, decision: Decision) -> None:
        """Writes the status of a decision after :meth:`announce`, and carries out deletions that it must precede.

        JobSets are deleted even if the API server does not take the status; the error is raised afterwards. Raises
        ClusterError; Conflict, without deleting anything, if the job has changed since it was observed.
        """
        action = decision.action
        deletions = action.jobsets if isinstance(action, Delete) and action.status_first else ()
        try:
            await self.write_status(observation.job, decision.status)
        except (Rejected, Unavailable):
            await self._delete(observation.job, deletions)
            raise
        await self._delete(observation.job, deletions)

    async def _admit(self, observation: Observation, action: Admit) -> None:
        match action.write:
            case RetryRecord() as record:
                run = run_folder(observation)
                await self._store.write(run.retry(record.generation), record.model_dump_json().encode())
            case TakeoverRecord() as record:
                await self._take_over(observation, run_folder(observation), record)
            case plan:
                await self.plans.create(plan)

    async def _take_over(self, observation: Observation, run: RunFolder, note: TakeoverRecord) -> None:
        """Records that this job continues in the run folder. The first of several such jobs wins.

        Raises Conflict if another job has taken the folder over since the observation. Only one process holds the
        Lease, so a lock within this process is sufficient.
        """
        async with self._taking_over.setdefault(run.uri, asyncio.Lock()):
            noted = taken_over_by(await self._store.list(run.attempts))
            if set(noted) != {each.uid[:8] for each in observation.folder.takeovers}:
                raise Conflict(f"{run.uri} has been taken over by another job since the observation")
            await self._store.write(run.taken_over(note.uid), note.model_dump_json().encode())

    async def write_status(self, job: Job, status: FineTuneJobStatus) -> None:
        """Writes the status if it differs from the job's.

        An edit of the job since it was observed is reported by the next status. Raises Conflict if another client has
        written the status, or the job was deleted; then so is its plan, which may have been stored after the deletion's
        event was handled.
        """
        document = status.to_document()
        if job.document.get("status") == document:
            return
        namespace, name = job.namespace, job.name
        try:
            try:
                written = await self._cluster.patch_status(
                    JOBS, namespace, name, document, resource_version=job.resource_version
                )
            except Conflict:
                edited = await self._cluster.get(JOBS, namespace, name)
                if (edited["metadata"]["uid"], edited.get("status")) != (job.uid, job.document.get("status")):
                    raise
                # Who edits the job all the time must not keep what it has used from being known. Only the holder of the
                # Lease writes statuses.
                written = await self._cluster.patch_status(
                    JOBS, namespace, name, document, resource_version=None, uid=job.uid
                )
        except NotFound as error:
            await self.plans.delete_orphan(PlanKey(namespace, name, job.uid))
            raise Conflict(f"{error}: deleted since it was observed", status=error.status) from error
        except (Rejected, Unavailable):
            self._unwritten({**job.document, "status": document})
            raise
        self._cache.wrote(JOBS, written)
        self._changed(job.document, changes(job.status, status))

    async def _delete(self, job: Job, deletions: Sequence[Deletion]) -> None:
        for deletion in deletions:
            left = await self._cluster.delete(
                JOBSETS, job.namespace, deletion.name, uid=deletion.uid, foreground=True
            )
            if left is not None:
                self._cache.wrote(JOBSETS, left)

    async def _create_and_record(self, observation: Observation, jobset: Object) -> Object:
        """Creates the JobSet and returns it as stored; meanwhile writes ``jobset.json`` of its attempt, which does not
        wait for that and starts without it."""
        created, recorded = await asyncio.gather(
            self._create_jobset(observation, jobset),
            self.records.write_jobset(run_folder(observation), jobset),
            return_exceptions=True,
        )
        for each in (created, recorded):
            if isinstance(each, BaseException):
                raise each
        assert isinstance(created, Mapping)
        return created

    async def _create_jobset(self, observation: Observation, jobset: Object) -> Object:
        """Creates the JobSet and returns it as stored.

        Raises AlreadyExists (a Conflict) if the job already has it, so that the observation was stale, and NameTaken if
        an object that is not the job's has the name.
        """
        try:
            created = await self._cluster.create(JOBSETS, jobset)
        except AlreadyExists as error:
            namespace, name = jobset["metadata"]["namespace"], jobset["metadata"]["name"]
            # The role lets the operator list JobSets, not get them.
            if await list_kept(
                self._cluster,
                JOBSETS,
                namespace,
                keep=lambda found: may_be_jobset_of(observation.job.document, found) or None,
                fields={"metadata.name": name},
            ):
                raise
            raise NameTaken("JobSet", namespace, name) from error
        self._cache.wrote(JOBSETS, created)
        return created

    async def _create_event(self, job: Job, event: JobEvent, now: datetime) -> None:
        """Creates one Event, with one retry.

        A persistent error is logged and does not stop the reconcile, since the status contains the same information.
        """
        manifest = event_of(job, event, now)
        for final in (False, True):
            try:
                # The name is derived from the content, so a taken one is that of this Event.
                with suppress(AlreadyExists):
                    await self._cluster.create(EVENTS, manifest)
                return
            except ClusterError as error:
                if final:
                    log.warning("the Event %s was not written: %s", event.reason, error)


def event_of(job: Job, event: JobEvent, now: datetime) -> Object:
    """Returns a core/v1 Event, the kind that ``kubectl describe`` shows. Its name contains a digest of its content."""
    content = "\n".join((job.uid, event.type, event.reason, event.message, event.since))
    time = stamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": job.namespace,
            "name": f"{job.name}.{sha256(content.encode()).hexdigest()[:16]}",
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "FineTuneJob",
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        },
        "type": str(event.type),
        "reason": event.reason,
        # The API server's limit for the message of an Event.
        "message": event.message[:1024],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
