"""Observes a job and everything that belongs to it: from the watches' cache, or with live reads."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from finetune_contract import HostProgress, RunFolder
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import StorageError
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    PROFILES,
    QUOTAS,
    KubernetesClient,
    NotFound,
    Object,
    Rejected,
    ResourceKind,
)
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.children.object_events import ObjectEvent, read_event
from finetune_operator.lifecycle.children.ownership import own_pods
from finetune_operator.lifecycle.children.quotas import Quota
from finetune_operator.lifecycle.decide import finished
from finetune_operator.lifecycle.decision import DetailRequest, ObjectReference
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView, pace
from finetune_operator.lifecycle.reduced_job import job_texts, reduced_job
from finetune_operator.lifecycle.status.fitting import read_status
from finetune_operator.planning.admission import may_resume
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.resumption import FolderUser, blocks, namespace_of, owner_of, resumed_folder
from finetune_operator.planning.sections.chat_template import template_ref
from finetune_operator.planning.source_job import source_name
from finetune_operator.planning.stored_plan import StoredPlan, stored_plan_in
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.children import ChildReader, list_kept
from finetune_operator.reconcile.nodes import ListedNodes, failed_kinds, list_nodes
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.record_writer import run_folder
from finetune_operator.reconcile.run_folder import Folders, Own, RunFolderReader
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.shared_read import SharedRead
from finetune_operator.reconcile.view_cache import ClusterState
from finetune_operator.reconcile.watch_cache import WatchCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """Key of a FineTuneJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Observer:
    """Observes jobs.

    Args:
        cluster: client for live reads.
        plans: store of the jobs' plans.
        folder: reader of run folders.
        cache: jobs and children as the watches deliver them.
        utc_now: the wall clock.
        live_jobs: returns the number of known unfinished jobs.
        served: the namespaces that the operator serves; None: all.
        ledger: URI of the operator's ledger; None if it keeps none.
        budgets: the budgets of namespaces; None: there are none.
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
        self._all_profiles = SharedRead(partial(cluster.list, PROFILES, None))
        self._children = ChildReader(cluster, plans, cache)
        self._folder = folder
        self._cache = cache
        self._utc_now = utc_now
        self._live_jobs = live_jobs
        self._served = served or ServedNamespaces(utc_now=utc_now)

    async def observe(
        self, key: JobKey, *, large: bool = False, earlier: ListedNodes | None = None
    ) -> Observation | None:
        """Returns the complete observation of one job; None if the job does not exist.

        Job, JobSets, pods and plan come from caches where these are complete, and from live reads otherwise; profiles
        are always read live. Of objects that tenants create only what decisions read is held.

        The run folder is read after the JobSets and pods: a stage writes its record before it ends, so for every stage
        that is observed as ended, the record is observed, too. If the JobSets and pods come from the cache, the last
        view is reused while nothing has ended since (:mod:`.view_cache`).

        Args:
            key: the job.
            large: whether its children may take much memory.
            earlier: nodes that were listed for a cached observation of the same reconcile. All else is then read live.

        Raises:
            ManyChildren: the children take much memory, and ``large`` is false.
            ClusterError: any other error.
        """
        live = large or earlier is not None
        cached = None if live else await self._cache.job(key.namespace, key.name)
        texts: Mapping[str, Mapping[str, str]] = {}
        if cached is not None:
            job = cached.job
            config_map, found = await self._children.cached(cached)
        else:
            whole = await self._find(JOBS, key.namespace, key.name)
            if whole is None:
                self._folder.forget(key)
                self._cache.forget(key.namespace, key.name)
                return None
            job, texts = reduced_job(whole), job_texts(whole)
            del whole
            config_map, found = await self._children.live(job, large=large)
        stored = stored_plan_in(config_map)
        if isinstance(stored, Refused):
            # It may be restored.
            self._plans.forget(job["metadata"]["uid"])
        status, jobsets = read_status(job.get("status")), found.jobsets
        pods = own_pods(found.pods, jobsets, self._utc_now())
        profiles: Sequence[Object] = ()
        template, source, quotas = None, None, tuple[Quota, ...]()
        if not isinstance(stored, StoredPlan):
            # Live: the plan is immutable, so no later event could correct the use of an outdated profile. Jobs that are
            # admitted at the same time share a list that begins after each of them has asked.
            profiles = await self._all_profiles()
            template, source, quotas = await asyncio.gather(
                self._template(job), self._source(job), self._quotas(key.namespace)
            )
        own = partial(own_attempts, job=job, status=status, jobsets=jobsets, pods=pods)
        if found.excess is not None and stored is not None:
            # Without their pods it is unknown how attempts have ended.
            view = RunFolderView(unreadable=ReadFailure(reason=Reason.TOO_MANY_OBJECTS, message=found.excess))
        else:
            view = await self._view(
                key, job, stored, own, ClusterState.of(job, jobsets, pods) if cached else None
            )
        resumes = stored is not None or may_resume(job, profiles)
        neighbours, unserved = await self._neighbours(job, view) if resumes else ((), None)
        now = self._utc_now()
        kinds = failed_kinds(pods, jobsets, view, now)
        if earlier is not None and kinds == earlier.kinds:
            nodes = earlier.nodes
        else:
            nodes = await list_nodes(self._cluster, kinds)
        return Observation(
            now=now,
            job=job,
            status=status,
            profiles=tuple(profiles),
            stored=stored,
            jobsets=jobsets,
            pods=pods,
            folder=view,
            template=template,
            source=source,
            quotas=quotas,
            neighbours=neighbours,
            unserved_namespace=unserved,
            unobserved_until=self._served.unobserved_until(key.namespace),
            nodes=nodes,
            workloads=found.workloads,
            planner=self._plans.made,
            job_texts=texts,
            ledger=self._ledger,
            month=self._budgets.of(job, stored) if self._budgets else None,
            past_trainings=self._budgets.past_trainings(key.namespace) if self._budgets else None,
            paused=self._paused,
            cached=cached is not None,
            live_jobs=self._jobs(),
        )

    def _jobs(self) -> int:
        """Returns the number of unfinished jobs: at least one, which the watch may not have delivered yet."""
        return max(1, self._live_jobs())

    async def confirmed(self, observation: Observation) -> Observation | None:
        """Reads the job live. Returns the observation with what watches lack of it; None if the job has changed since.

        Raises ClusterError.
        """
        metadata = observation.job["metadata"]
        found = await self._find(JOBS, metadata["namespace"], metadata["name"])
        if found is None or any(
            found["metadata"][field] != metadata[field] for field in ("uid", "resourceVersion")
        ):
            return None
        return replace(observation, job_texts=job_texts(found))

    def distrust(self, observation: Observation) -> None:
        """Has the job read live the next time."""
        self._cache.distrust(observation.job["metadata"]["uid"])

    def reread(self, key: JobKey) -> None:
        """Has the job's run folder read the next time."""
        self._folder.reread(key)

    async def admitted(self, key: JobKey, observation: Observation, config_map: Object) -> Observation:
        """Returns the observation of a job without children after its plan was stored. Raises ClusterError.

        Only what the plan adds is read: the run folder and, if the job continues in it, its other users. Storing the
        plan has failed if another client had admitted the job, so no child can have been created since.
        """
        stored = stored_plan_in(config_map)
        own = partial(own_attempts, job=observation.job, status=observation.status, jobsets=(), pods=())
        state = ClusterState.of(observation.job, (), ()) if observation.cached else None
        view = await self._view(key, observation.job, stored, own, state)
        neighbours, unserved = await self._neighbours(observation.job, view)
        return replace(
            observation,
            now=self._utc_now(),
            stored=stored,
            month=self._budgets.of(observation.job, stored) if self._budgets else None,
            folder=view,
            neighbours=neighbours,
            unserved_namespace=unserved,
            profiles=(),
            template=None,
            source=None,
            quotas=(),
        )

    async def with_details(self, observation: Observation, at: DetailRequest) -> Observation:
        """Returns the observation with the requested details added. Raises ClusterError."""
        run = run_folder(observation)
        namespace = observation.job["metadata"]["namespace"]
        return replace(
            observation,
            hosts=await self._hosts(run, at.hosts) if at.hosts else observation.hosts,
            events=await self._events(namespace, at.events) if at.events else observation.events,
        )

    async def _hosts(self, run: RunFolder, count: int) -> Mapping[int, HostProgress]:
        """Returns the progress of each host. Empty if it cannot be read: detection of a hang does not depend on it."""
        try:
            return await self._folder.hosts(run, count)
        except StorageError as error:
            log.warning("the slowest host cannot be determined: %s", error)
            return {}

    async def job(self, key: JobKey) -> Object | None:
        """Returns the FineTuneJob alone; None if it does not exist. Raises ClusterError."""
        found = await self._find(JOBS, key.namespace, key.name)
        return found and reduced_job(found)

    async def _find(self, kind: ResourceKind, namespace: str, name: str) -> Object | None:
        try:
            return await self._cluster.get(kind, namespace, name)
        except NotFound:
            return None

    async def _view(
        self,
        key: JobKey,
        job: Object,
        stored: StoredPlan | Refused | None,
        own: Own,
        state: ClusterState | None,
    ) -> RunFolderView:
        """Returns the view of the job's run folder. ``state``: None if everything is to be read."""
        if stored is None:
            return RunFolderView()
        if isinstance(stored, Refused):
            return RunFolderView(unreadable=ReadFailure(reason=stored.reason, message=stored.message))
        view = await self._folder.view(
            Folders(run=stored.run_folder, cache=stored.cache),
            of=key,
            own=own,
            retry=job["spec"].get("retry", {}).get("generation", 0),
            state=state,
            pace=pace(self._jobs()),
        )
        if finished(job):
            self._folder.forget(key)
            self._plans.forget(job["metadata"]["uid"])
        return view

    async def _events(self, namespace: str, about: ObjectReference) -> tuple[ObjectEvent, ...]:
        """Returns the Events about an object; empty if the operator may not list them."""
        fields = {"involvedObject.kind": about.kind, "involvedObject.name": about.name}
        try:
            return tuple(await list_kept(self._cluster, EVENTS, namespace, keep=read_event, fields=fields))
        except Rejected as error:
            log.warning("Events cannot be listed, so the autoscaler's messages are missing: %s", error)
            return ()

    async def _quotas(self, namespace: str) -> tuple[Quota, ...]:
        """Returns the namespace's ResourceQuotas; none if the operator may not list them."""
        try:
            return tuple(await list_kept(self._cluster, QUOTAS, namespace, keep=Quota.parse))
        except Rejected as error:
            log.warning("ResourceQuotas cannot be listed, so they are not compared with slices: %s", error)
            return ()

    async def _template(self, job: Object) -> Object | None:
        """Returns the ConfigMap of the chat template."""
        reference = template_ref(job["spec"])
        if reference is None:
            return None
        return await self._find(CONFIG_MAPS, job["metadata"]["namespace"], reference["name"])

    async def _neighbours(self, job: Object, view: RunFolderView) -> tuple[tuple[Object, ...], str | None]:
        """Returns the jobs that may still use the run folder in which this job is to continue.

        These are the job that the folder was created for and the last one that took it over. The second value is the
        namespace of the last one, if the operator does not serve it. Empty after this job has taken the folder over.
        Each is read by name, so that the cost does not grow with the number of jobs. Among jobs that only request the
        folder, the first to write its takeover record gets it (:class:`.apply.Applier`).
        """
        folder, metadata = resumed_folder(job["spec"]), job["metadata"]
        if folder is None or view.unreadable or any(n.uid == metadata["uid"] for n in view.takeovers):
            return (), None
        note = view.takeovers[-1] if view.takeovers else None
        users = [owner_of(folder)]
        if note is not None:
            users.append(FolderUser(note.namespace, note.job, note.uid))
        last = note.namespace if note else namespace_of(folder)
        read = [
            (user, await self.job(JobKey(user.namespace, user.name)))
            for user in users
            if user is not None and self._served.serves(user.namespace)
        ]
        found = tuple(
            other
            for user, other in read
            if other and other["metadata"]["uid"].startswith(user.uid) and blocks(other, job)
        )
        return found, last if last is not None and not self._served.serves(last) else None

    async def _source(self, job: Object) -> Object | None:
        """Returns the job whose model this one starts from."""
        name = source_name(job["spec"])
        if name is None:
            return None
        return await self.job(JobKey(job["metadata"]["namespace"], name))
