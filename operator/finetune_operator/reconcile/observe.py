"""Observes a job and everything that belongs to it: from the watches' cache, or with live reads."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from finetune_contract import HostProgress, RunFolder
from finetune_operator.api import Reason
from finetune_operator.api.timestamps import parse
from finetune_operator.artifacts.port import StorageError
from finetune_operator.cluster.port import EVENTS, JOBS, KubernetesClient, Rejected
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.children.object_events import ObjectEvent, read_event
from finetune_operator.lifecycle.children.ownership import own_pods
from finetune_operator.lifecycle.decision import DetailRequest, ObjectReference
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView
from finetune_operator.objects import Object
from finetune_operator.planning.admission import may_resume
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.stored_plan import StoredPlan, stored_plan_in
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.children import JobReader, find, list_kept
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.nodes import ListedNodes, failed_kinds, list_nodes
from finetune_operator.reconcile.other_objects import OtherObjects
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.record_writer import run_folder
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.run_folder_files import UnreadableError
from finetune_operator.reconcile.run_folder_observer import Folders
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.view_cache import ClusterState
from finetune_operator.reconcile.watch_cache import WatchCache

log = logging.getLogger(__name__)

#: View of the run folder of a new job, in which nothing can be.
UNREAD = RunFolderView()
#: Age in seconds up to which a job that was just admitted has not run before.
_NEW_SECONDS = 60.0


class Observer:
    """Observes jobs.

    Args:
        live_jobs: returns the number of known unfinished jobs.
        served: the namespaces that the operator serves; None: all.
        ledger: URI of the operator's ledger; None if it keeps none.
        paused: whether no stage is started.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        plans: Plans,
        folder: RunFolderReader,
        cache: WatchCache,
        *,
        utc_now: Callable[[], datetime],
        live_jobs: Callable[[], int],
        served: ServedNamespaces | None = None,
        ledger: str | None = None,
        budgets: Budgets | None = None,
        paused: bool = False,
    ) -> None:
        self._cluster = cluster
        self._paused = paused
        self._ledger = ledger
        self._budgets = budgets
        self._plans = plans
        self._jobs = JobReader(cluster, plans, cache)
        self._folder = folder
        self._cache = cache
        self._utc_now = utc_now
        self._live_jobs = live_jobs
        self._served = served or ServedNamespaces(utc_now=utc_now)
        self._others = OtherObjects(cluster, self._served, cache.streams)

    async def observe(
        self, key: JobKey, *, large: bool = False, earlier: ListedNodes | None = None
    ) -> Observation | None:
        """Returns the complete observation of one job; None if the job does not exist.

        Job, JobSets, pods and plan come from caches where these are complete, and from live reads otherwise; profiles
        are read live, after the job was delivered. Of objects that tenants create only what decisions read is held.

        The run folder is read after the JobSets and pods: a stage writes its record before it ends, so for every stage
        that is observed as ended, the record is observed, too. If the JobSets and pods come from the cache, the last
        view is reused while nothing has ended since (:mod:`.view_cache`).

        ``large``: whether its children may take much memory; if not, ManyChildren is raised where they do.
        ``earlier``: nodes that were listed for a cached observation of the same reconcile; all else is then read live.
        Raises ClusterError.
        """
        read = None if large or earlier is not None else await self._jobs.cached(key)
        read = read or await self._jobs.live(key, large=large)
        if read is None:
            self._folder.forget(key)
            self._cache.forget(key.namespace, key.name)
            return None
        job, stored = read.job, stored_plan_in(read.config_map)
        if isinstance(stored, Refused):
            # It may be restored.
            self._plans.forget(job.uid)
        jobsets, now = tuple(read.jobsets), self._utc_now()
        observation = Observation(
            now=now,
            job=job,
            profiles=(),
            stored=stored,
            jobsets=jobsets,
            pods=own_pods(read.pods, jobsets, now),
            folder=UNREAD,
            unobserved_until=self._served.unobserved_until(key.namespace),
            workloads=read.workloads,
            planner=self._plans.made,
            ledger=self._ledger,
            past_trainings=self._budgets.past_trainings(key.namespace) if self._budgets else None,
            paused=self._paused,
            cached=read.cached_since is not None,
            # At least this one, which the watch may not have delivered yet.
            live_jobs=max(1, self._live_jobs()),
        )
        if not isinstance(stored, StoredPlan):
            observation = await self._others.admitting(observation, known_since=read.cached_since)
        view = await self._view(key, observation, excess=read.excess)
        return await self._with_folder(observation, view, earlier)

    async def _with_folder(
        self, observation: Observation, view: RunFolderView, earlier: ListedNodes | None = None
    ) -> Observation:
        """Adds the run folder, and what depends on it or on the plan. Raises ClusterError."""
        job, stored, pods = observation.job, observation.stored, observation.pods
        resumes = stored is not None or may_resume(job.document, observation.profiles)
        neighbours, unserved = await self._others.neighbours(job, view) if resumes else ((), None)
        now = self._utc_now()
        return replace(
            observation,
            now=now,
            folder=view,
            neighbours=neighbours,
            unserved_namespace=unserved,
            nodes=await list_nodes(
                self._cluster, failed_kinds(pods, observation.jobsets, view, now), earlier
            ),
            month=self._budgets.of(job, stored) if self._budgets else None,
        )

    async def job(self, key: JobKey) -> Job | None:
        """Reads the job alone, live; None if it does not exist. Raises ClusterError."""
        found = await find(self._cluster, JOBS, key.namespace, key.name)
        return None if found is None else Job.parse(found)

    async def confirmed(self, observation: Observation) -> Observation | None:
        """Reads the job live. Returns the observation with what watches lack of it; None if the job has changed since.

        Raises ClusterError.
        """
        job = observation.job
        live = await self.job(JobKey(job.namespace, job.name))
        if live is None or (live.uid, live.resource_version) != (job.uid, job.resource_version):
            return None
        return replace(observation, job=live)

    def distrust(self, observation: Observation | None) -> None:
        """Has the job read live after an error, whose cause may be an outdated cache. None: it was not observed."""
        if observation is not None:
            self._cache.distrust(observation.job.uid)

    def reread(self, key: JobKey) -> None:
        """Has the job's run folder read the next time."""
        self._folder.reread(key)

    async def admitted(
        self, key: JobKey, observation: Observation, config_map: Object, *, unread: bool = False
    ) -> Observation:
        """Returns the observation of a job without children after its plan was stored. Raises ClusterError.

        Only what the plan adds is read: the run folder and, if the job continues in it, its other users. Storing the
        plan has failed if another client had admitted the job, so no child can have been created since. ``unread``: the
        run folder of a new job is not read, since nothing can be in it.
        """
        stored = stored_plan_in(config_map)
        observation = replace(observation, stored=stored, profiles=(), template=None, source=None, quotas=())
        if unread and isinstance(stored, StoredPlan) and self._is_new(observation.job, stored, config_map):
            return await self._with_folder(observation, UNREAD)
        return await self._with_folder(observation, await self._view(key, observation))

    def _is_new(self, job: Job, stored: StoredPlan, config_map: Object) -> bool:
        """Whether nothing can be in the job's run folder, whose name has its uid. An older job without a status may be
        one of a restored etcd; its age is by the API server's clock. Where the store has not answered since the job
        exists, a read says why.
        """
        planned = config_map["metadata"].get("creationTimestamp")
        if not job.creation_timestamp or not planned or "resumeFrom" in stored.spec:
            return False
        age = (parse(planned) - job.creation_timestamp).total_seconds()
        answered = self._folder.answered(stored.run_folder)
        # Both times are whole seconds.
        return answered is not None and answered < age - 1 and age < _NEW_SECONDS

    async def with_details(self, observation: Observation, at: DetailRequest) -> Observation:
        """Returns the observation with the requested details added. Raises ClusterError."""
        run = run_folder(observation)
        namespace = observation.job.namespace
        return replace(
            observation,
            hosts=await self._hosts(run, at.hosts) if at.hosts else observation.hosts,
            events=await self._events(namespace, at.events) if at.events else observation.events,
        )

    async def _hosts(self, run: RunFolder, count: int) -> Mapping[int, HostProgress]:
        """Returns the progress of each host. Empty if it cannot be read: detection of a hang does not depend on it."""
        try:
            return await self._folder.hosts(run, count)
        except (StorageError, UnreadableError) as error:
            log.warning("the slowest host cannot be determined: %s", error)
            return {}

    async def _view(
        self, key: JobKey, observation: Observation, *, excess: str | None = None
    ) -> RunFolderView:
        """Returns the view of the job's run folder."""
        job, stored, jobsets, pods = (
            observation.job,
            observation.stored,
            observation.jobsets,
            observation.pods,
        )
        if stored is None:
            return RunFolderView()
        if excess is not None:
            # Without their pods it is unknown how attempts have ended.
            return RunFolderView(unreadable=ReadFailure(reason=Reason.TOO_MANY_OBJECTS, message=excess))
        if isinstance(stored, Refused):
            return RunFolderView(unreadable=ReadFailure(reason=stored.reason, message=stored.message))
        view = await self._folder.view(
            Folders(run=stored.run_folder, cache=stored.cache),
            of=key,
            own=partial(own_attempts, job=job, jobsets=jobsets, pods=pods),
            retry=job.control.retry_generation,
            # Before what cannot be undone, everything is read.
            state=ClusterState.of(job, jobsets, pods) if observation.cached else None,
            pace=observation.pace(),
        )
        if job.finished:
            self._folder.forget(key)
            self._plans.forget(job.uid)
        return view

    async def _events(self, namespace: str, about: ObjectReference) -> tuple[ObjectEvent, ...]:
        """Returns the Events about an object; empty if the operator may not list them."""
        fields = {"involvedObject.kind": about.kind, "involvedObject.name": about.name}
        try:
            return tuple(await list_kept(self._cluster, EVENTS, namespace, keep=read_event, fields=fields))
        except Rejected as error:
            log.warning("Events cannot be listed, so the autoscaler's messages are missing: %s", error)
            return ()
