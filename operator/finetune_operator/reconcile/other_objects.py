"""Reads the objects of others that decisions about a job need: profiles, quotas, and other jobs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache, partial

from finetune_operator.cluster.port import CONFIG_MAPS, JOBS, PROFILES, QUOTAS, KubernetesClient, Rejected
from finetune_operator.lifecycle.children.quotas import Quota
from finetune_operator.lifecycle.job import Job, reduced_job
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.objects import Object
from finetune_operator.planning.resumption import FolderUser, blocks, namespace_of, owner_of, resumed_folder
from finetune_operator.planning.sections.chat_template import template_ref
from finetune_operator.planning.source_job import source_name
from finetune_operator.reconcile.children import find, list_kept
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_streams import WatchStreams

log = logging.getLogger(__name__)

#: Maximum age in seconds of what jobs are admitted by. An edit that comes later than the job may be missed for so long,
#: as it is missed while a job is being admitted.
FRESH_SECONDS = 1.0
#: Namespaces whose quotas are remembered for that time.
_MOST_QUOTAS = 64


class SharedRead[T]:
    """A read whose answer many callers share, for each of whom it is fresh enough.

    A caller says since when what it needs the answer for is known. It gets the answer of a read that began after that
    and at most FRESH_SECONDS ago, if what is read has the same ``version`` as then; otherwise, that of the next read,
    which all share who wait for it. So a burst of calls costs a read for each time that something new is known. At most
    one read is in progress at a time. What ``read`` returns is shared, so it must not be changed.

    Args:
        clock: monotonic clock in seconds.
        version: returns what changes when what is read is known to have changed.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        clock: Callable[[], float],
        version: Callable[[], object] = lambda: None,
    ) -> None:
        self._read, self._clock, self._version = read, clock, version
        self._begun: asyncio.Task[T] | None = None
        self._begun_at = float("-inf")
        self._begun_version: object = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self, since: float) -> T:
        """Returns the answer of a read that began after ``since``, by the clock. Raises what that read raises."""
        read = self._begun if self._suffices(since) else None
        if read is None:
            read = self._next = self._next or asyncio.create_task(self._after(self._begun))
        # The others still need the answer if this caller is cancelled.
        return await asyncio.shield(read)

    def _suffices(self, since: float) -> bool:
        """Whether the last read that has begun is fresh enough, and has not failed."""
        begun = self._begun
        if begun is None or (begun.done() and (begun.cancelled() or begun.exception())):
            return False
        recent = since < self._begun_at and self._clock() - self._begun_at <= FRESH_SECONDS
        return recent and self._begun_version == self._version()

    async def _after(self, earlier: asyncio.Task[T] | None) -> T:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._begun, self._next = self._next, None
        self._begun_at, self._begun_version = self._clock(), self._version()
        return await self._read()


class OtherObjects:
    """Reads them live, each only where it is needed.

    ``streams``: the watches, of which that of profiles shows that they have changed.
    """

    def __init__(self, cluster: KubernetesClient, served: ServedNamespaces, streams: WatchStreams) -> None:
        self._cluster = cluster
        self._served = served
        self._clock = streams.now
        self._profiles = SharedRead(
            lambda: list_kept(cluster, PROFILES, None, keep=lambda profile: profile),
            clock=streams.now,
            version=lambda: streams.version(PROFILES),
        )
        self._quotas = lru_cache(_MOST_QUOTAS)(
            lambda namespace: SharedRead(partial(self._list_quotas, namespace), clock=streams.now)
        )
        """By namespace."""

    async def job(self, key: JobKey) -> Object | None:
        """Returns the FineTuneJob alone; None if it does not exist. Raises ClusterError."""
        found = await find(self._cluster, JOBS, key.namespace, key.name)
        return found and reduced_job(found)

    async def admitting(self, observation: Observation, *, known_since: float | None) -> Observation:
        """Adds what only admission needs, read live: a plan is immutable, so no later event could correct the use of an
        outdated profile. Jobs share lists that begin after the job was delivered as it is. Raises ClusterError.

        ``known_since``: when the job was delivered, by the clock of the watches; None: now.
        """
        job = observation.job
        since = self._clock() if known_since is None else known_since
        profiles = await self._profiles(since)
        template, source, quotas = await asyncio.gather(
            self._template(job), self._source(job), self._quotas(job.namespace)(since)
        )
        return replace(observation, profiles=tuple(profiles), template=template, source=source, quotas=quotas)

    async def neighbours(self, job: Job, view: RunFolderView) -> tuple[tuple[Object, ...], str | None]:
        """Returns the jobs that may still use the run folder in which this job is to continue.

        These are the job that the folder was created for and the last one that took it over. The second value is the
        namespace of the last one, if the operator does not serve it. Empty after this job has taken the folder over.
        Each is read by name, so that the cost does not grow with the number of jobs. Among jobs that only request the
        folder, the first to write its takeover record gets it (:class:`.apply.Applier`).
        """
        folder = resumed_folder(job.document["spec"])
        if folder is None or view.unreadable or any(note.uid == job.uid for note in view.takeovers):
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
            if other and other["metadata"]["uid"].startswith(user.uid) and blocks(other, job.document)
        )
        return found, last if last is not None and not self._served.serves(last) else None

    async def _list_quotas(self, namespace: str) -> tuple[Quota, ...]:
        """Returns the namespace's ResourceQuotas; none if the operator may not list them."""
        try:
            return tuple(await list_kept(self._cluster, QUOTAS, namespace, keep=Quota.parse))
        except Rejected as error:
            log.warning("ResourceQuotas cannot be listed, so they are not compared with slices: %s", error)
            return ()

    async def _template(self, job: Job) -> Object | None:
        reference = template_ref(job.document["spec"])
        if reference is None:
            return None
        return await find(self._cluster, CONFIG_MAPS, job.namespace, reference["name"])

    async def _source(self, job: Job) -> Object | None:
        name = source_name(job.document["spec"])
        return None if name is None else await self.job(JobKey(job.namespace, name))
