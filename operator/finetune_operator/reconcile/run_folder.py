"""Reads a job's run folder for decisions. A failing store is never mistaken for absent files."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Hashable
from dataclasses import replace
from time import monotonic
from urllib.parse import urlsplit

from finetune_contract import HostProgress, RunFolder
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import (
    PROGRESS_LIMIT,
    ListingTooLarge,
    ObjectStore,
    StorageDenied,
    StorageError,
)
from finetune_operator.artifacts.tenant_shares import share_of
from finetune_operator.lifecycle.observation import ReadFailure, RunFolderView
from finetune_operator.reconcile.run_folder_files import (
    FileCache,
    MalformedRecordError,
    NewerRecordError,
    RunFolderFiles,
    UnreadableError,
)
from finetune_operator.reconcile.run_folder_observer import AT_ONCE, Folders, Own, RunFolderObserver
from finetune_operator.reconcile.view_cache import ClusterState, Due, Reading, ViewCache, due

_NOTE_FIX = "Delete it; if it is the record of a retry, also raise spec.retry.generation."


def _confirmed(view: RunFolderView, own: Own) -> bool:
    """Whether the attempts in a view are still those that JobSets, pods and status confirm."""
    listed = view.attempts.keys() | view.foreign_attempts
    return set(own(listed, view.takeovers)) == view.attempts.keys()


class Denials:
    """The store's latest answers by bucket and job: it denies one run folder, or everything. Permissions are granted on
    a bucket or on a folder of it.

    A run folder alone is denied if it was listed but one of its files was denied, or if the run folder of another job
    in the same bucket has been read since the first denial.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self._answered: dict[str, int] = {}
        self._denied: dict[Hashable, int] = {}

    def answered(self, job: Hashable, uri: str) -> None:
        """Records that the job's run folder could be read."""
        self._denied.pop(job, None)
        self._answered[urlsplit(uri).netloc] = next(self._order)

    def alone(self, job: Hashable, uri: str, *, listed: bool) -> bool:
        """Records a denial and returns whether it concerns this run folder alone.

        ``listed`` is whether the folder's listing succeeded.
        """
        first = self._denied.setdefault(job, next(self._order))
        return listed or self._answered.get(urlsplit(uri).netloc, -1) > first

    def forget(self, job: Hashable) -> None:
        """Forgets the job, which is no longer observed."""
        self._denied.pop(job, None)


class RunFolderReader:
    """Reads run folders, to which untrusted users may write: every read and every listing is bounded.

    A folder is read only if something in it can have changed (:mod:`.view_cache`), and final files are read once.

    Args:
        remembered_bytes: size of the cache of final files in bytes, for all live jobs together.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        remembered_bytes: int = 16 * 2**20,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._remembered = FileCache(remembered_bytes)
        self._views = ViewCache()
        self._denials = Denials()
        self._clock = clock

    def answered(self, run: RunFolder) -> float | None:
        """Returns the seconds since the run folder's store has answered; None if it has not, or not since."""
        return self._store.answered(run.uri)

    async def view(
        self,
        folders: Folders,
        *,
        of: Hashable = None,
        own: Own = lambda listed, _: listed,
        retry: int | None = None,
        state: ClusterState | None = None,
        pace: float = 0.0,
    ) -> RunFolderView:
        """Returns a view of one run folder. Faults of files are part of the view; none is raised.

        Args:
            of: key of the job in the cache, until :meth:`forget`.
            own: see :data:`Own`.
            retry: ``spec.retry.generation``; records of higher generations are not the operator's and are ignored.
                None to accept any.
            state: what the cluster shows of the job. The last view is reused as far as it allows. None: everything is
                read, because what the decision is about cannot be undone, or the operator may write to the folder; the
                next view is read, too.
            pace: seconds between two readings of the progress.
        """
        job, tenant = of or folders.run.uri, share_of(folders.run.uri).tenant
        now = self._clock()
        if state is not None and (reading := self._views.get(job)):
            what = due(reading, state, now=now, pace=pace)
            if what is Due.PROGRESS:
                # Everything is read if that cannot be read.
                what, observer = Due.EVERYTHING, RunFolderObserver(self._store, self._remembered, job)
                with contextlib.suppress(StorageError, UnreadableError):
                    view = await observer.with_progress(reading.view, folders.run, state.working)
                    size = observer.progress_bytes
                    reading = replace(reading, view=view, progress_read=now, progress_bytes=size)
                    what = Due.EVERYTHING if view.progress_unknown else Due.NOTHING
            if what is Due.NOTHING and _confirmed(reading.view, own):
                # What has appeared since may end or vanish before the next reading.
                self._views.keep(tenant, job, replace(reading, state=state))
                return replace(reading.view, progress_age=now - reading.progress_read)
        self._views.forget(job)
        observer = RunFolderObserver(self._store, self._remembered, job)
        try:
            view = await observer.view(folders, own, retry, state.working if state else ())
        except (StorageError, UnreadableError) as error:
            return RunFolderView(unreadable=self._why(error, job, folders.run, listed=observer.listed))
        self._denials.answered(job, folders.run.uri)
        if state is not None:
            reading = Reading(
                view=view,
                state=state,
                listed=now,
                progress_read=now,
                json_bytes=observer.held_bytes,
                progress_bytes=observer.progress_bytes,
            )
            self._views.keep(tenant, job, reading)
        return view

    def _why(self, error: Exception, job: Hashable, run: RunFolder, *, listed: bool) -> ReadFailure:
        message = f"{error}."
        match error:
            case StorageDenied():
                alone = self._denials.alone(job, run.uri, listed=listed)
                reason = Reason.STORAGE_PERMISSION_DENIED if alone else Reason.STORE_UNAVAILABLE
            case ListingTooLarge():
                reason = Reason.RUN_FOLDER_TOO_LARGE
            case MalformedRecordError():
                reason, message = error.reason, f"{message} {_NOTE_FIX}"
            case UnreadableError():
                reason = error.reason
            case _:
                reason = Reason.STORE_UNAVAILABLE
        return ReadFailure(reason=reason, message=message)

    def reread(self, job: Hashable) -> None:
        """Has everything read for the job's next view."""
        self._views.forget(job)

    def forget(self, job: Hashable) -> None:
        """Drops everything cached for a job that is finished or deleted."""
        self._remembered.forget(job)
        self._views.forget(job)
        self._denials.forget(job)

    async def hosts(self, run: RunFolder, count: int) -> dict[int, HostProgress]:
        """Returns the progress of the first ``count`` processes of training by index. Raises StorageError or
        UnreadableError.

        Invalid records are omitted, since the classification of the attempt does not depend on them.
        """
        files, progress = RunFolderFiles(self._store, self._remembered, run.uri), dict[int, HostProgress]()

        async def read(host: int) -> HostProgress | None:
            with contextlib.suppress(MalformedRecordError, NewerRecordError):
                return await files.read(run.host(host), HostProgress, limit=PROGRESS_LIMIT)
            return None

        for some in itertools.batched(range(count), AT_ONCE):
            found = await asyncio.gather(*map(read, some))
            progress |= {record.host: record for record in found if record is not None}
        return progress
