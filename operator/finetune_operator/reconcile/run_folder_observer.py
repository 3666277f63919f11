"""Reads one run folder once."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import batched

from pydantic import BaseModel

from finetune_contract import (
    CacheLayout,
    ConvertManifest,
    ConvertOutcome,
    Failure,
    Outcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Stage,
    StageProgress,
    StageResult,
    TrainOutcome,
)
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import PROGRESS_LIMIT, ObjectStore, StorageError
from finetune_operator.lifecycle.attempts.classify import settled
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    ReadFailure,
    RetryRecord,
    RunFolderView,
    TakeoverRecord,
    in_order,
)
from finetune_operator.reconcile.listing import files_by_attempt, retry_generations, taken_over_by
from finetune_operator.reconcile.run_folder_files import (
    FileCache,
    MalformedRecordError,
    NewerRecordError,
    RunFolderFiles,
    UnreadableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    run: RunFolder
    cache: CacheLayout


#: Maximum number of concurrent requests of one observation.
AT_ONCE = 16
#: Maximum number of takeover records in a run folder.
_MOST_TAKEOVERS = 100
#: Fingerprints that are safe in a URI.
_FINGERPRINT = re.compile(r"[0-9A-Za-z]{1,128}")

type Own = Callable[[Collection[AttemptKey], tuple[TakeoverRecord, ...]], Collection[AttemptKey]]
"""Selects the job's own attempts among those that are listed."""


class RunFolderObserver:
    def __init__(self, store: ObjectStore, remembered: FileCache, job: Hashable) -> None:
        self._store = store
        self._files = RunFolderFiles(store, remembered, job)
        self._warnings: list[str] = []
        self.listed = False
        """Whether the store has answered the folder's listing."""
        self.progress_bytes = 0
        """Size of the progress records as JSON."""

    async def view(
        self, folders: Folders, own: Own, retry: int | None, working: Collection[AttemptKey] = ()
    ) -> RunFolderView:
        """Returns what the run folder contains. The arguments are those of :meth:`RunFolderReader.view`.

        ``working``: the attempts that may be running, of which what they do is read, except for trainings: so no view
        takes more than three requests beside those for final records.

        Faults of single records are part of the view. Raises StorageError or UnreadableError if the folder as a whole
        cannot be read.
        """
        run = folders.run
        names = await self._store.list(run.attempts)
        self.listed = True
        takeovers = await self._takeovers(run, names)
        retries = [each for each in retry_generations(names) if retry is None or each <= retry]
        listed = files_by_attempt(names, takeovers)
        own_keys = own(listed.keys(), takeovers)
        foreign_attempts = frozenset(listed.keys() - set(own_keys))
        files = {key: listed[key] for key in sorted(own_keys)}
        # Releases the listing, which may have thousands of other names, before the files are read.
        del names, listed
        attempts = await self._attempts(run, files)
        held = self._files.held_bytes
        progress, unknown = await self._progress(run, attempts, last=not takeovers)
        others = [key for key in working if key.stage is not Stage.TRAIN]
        stage_progress = await self._stage_progress(run, attempts, others)
        self.progress_bytes = self._files.held_bytes - held
        manifest, fault = await self._convert_manifest(folders.cache, attempts)
        return RunFolderView(
            attempts=attempts,
            takeovers=takeovers,
            retry=await self._retry(run, max(retries)) if retries else None,
            progress=progress,
            progress_unknown=unknown,
            stage_progress=stage_progress,
            convert_manifest=manifest,
            convert_manifest_fault=fault,
            foreign_attempts=foreign_attempts,
            warnings=tuple(self._warnings),
        )

    async def with_progress(
        self, view: RunFolderView, run: RunFolder, working: Collection[AttemptKey]
    ) -> RunFolderView:
        """Returns a view with the progress of the attempts in ``working`` read again. Raises StorageError or
        UnreadableError."""
        progress, unknown = view.progress, view.progress_unknown
        if any(key.stage is Stage.TRAIN for key in working):
            progress, unknown = await self._progress(run, view.attempts, last=not view.takeovers)
        if unknown:
            # Everything is about to be read again.
            return replace(view, progress_unknown=unknown)
        reports_steps = {(progress.attempt, progress.restart)} if progress else set()
        others = [
            key
            for key in working
            if key.stage is not Stage.TRAIN or (key.number, key.restart) not in reports_steps
        ]
        stage_progress = await self._stage_progress(run, view.attempts, others)
        self.progress_bytes = self._files.held_bytes
        return replace(view, progress=progress, progress_unknown=unknown, stage_progress=stage_progress)

    @property
    def held_bytes(self) -> int:
        """Size of the records of the view as JSON, without the progress."""
        return self._files.held_bytes - self.progress_bytes

    async def _takeovers(self, run: RunFolder, names: Sequence[str]) -> tuple[TakeoverRecord, ...]:
        uids = taken_over_by(names)
        if len(uids) > _MOST_TAKEOVERS:
            text = f"{run.attempts} holds {len(uids)} files taken-over-*.json; at most {_MOST_TAKEOVERS} are read"
            raise UnreadableError(Reason.RUN_FOLDER_TOO_LARGE, text)
        # Errors propagate: a record that cannot be read may say that another job owns the folder now.
        notes = [await self._takeover(run.taken_over(uid), uid) for uid in uids]
        return in_order(note for note in notes if note is not None)

    async def _takeover(self, uri: str, uid: str) -> TakeoverRecord | None:
        """Reads a takeover record. ``uid`` is the first characters of the job's uid, from the file's name."""

        return await self._named(uri, TakeoverRecord, "uid", lambda note: note.uid[: len(uid)] == uid)

    async def _retry(self, run: RunFolder, generation: int) -> RetryRecord | None:
        uri = run.retry(generation)
        return await self._named(uri, RetryRecord, "generation", lambda note: note.generation == generation)

    async def _named[T: BaseModel](
        self, uri: str, model: type[T], field: str, named: Callable[[T], bool]
    ) -> T | None:
        """Reads a record with a field that the file's name contains, as ``named`` says. Raises MalformedRecordError."""
        note = await self._files.read(uri, model, final=named)
        if note is not None and not named(note):
            raise MalformedRecordError(
                f"{uri} is not a valid {model.__name__}: {field} differs from the file's name"
            )
        return note

    async def _attempts(
        self, run: RunFolder, files: Mapping[AttemptKey, Collection[str]]
    ) -> dict[AttemptKey, AttemptFiles]:
        newest = {key.stage: key for key in files}
        found: dict[AttemptKey, AttemptFiles] = {}
        for some in batched(files, AT_ONCE):
            reads = (self._attempt(run, key, files[key], last=key == newest[key.stage]) for key in some)
            found |= zip(some, await asyncio.gather(*reads), strict=True)
        return found

    async def _attempt(
        self, run: RunFolder, key: AttemptKey, names: Collection[str], *, last: bool
    ) -> AttemptFiles:
        """Reads the records of one attempt. ``last`` is whether it is the newest attempt of its stage."""
        result, malformed, newer = None, None, None
        if "result.json" in names:
            try:
                result = await self._result(run.result(*key.place), last=last)
            except MalformedRecordError as error:
                malformed = str(error)
            except NewerRecordError as error:
                newer = str(error)
        failure = None
        if "failure.json" in names:
            try:
                failure = await self._failure(run.failure(*key.place), last=last)
            except NewerRecordError as error:
                newer = newer or str(error)
        return AttemptFiles(result=result, failure=failure, malformed=malformed, newer=newer)

    async def _result(self, uri: str, *, last: bool) -> StageResult | None:
        """Reads a result, which is final unless it is that of a stopped newest attempt.

        A JobSet that Kueue has suspended may run the same attempt again, with a different result, until another attempt
        follows.
        """

        def final(record: StageResult) -> bool:
            return not last or record.outcome is not Outcome.STOPPED

        return await self._files.read(
            uri, StageResult, final=final, settled_if_bad=not last, kept=None if last else result_in_brief
        )

    async def _failure(self, uri: str, *, last: bool) -> Failure | None:
        """Reads a failure record, which is final once the operator has settled it and another attempt has followed.

        The operator's classification replaces the trainer's record, and is rewritten while the attempt's pods are
        ending. None for a malformed record: the attempt is then classified from its other traces.
        """

        def final(record: Failure) -> bool:
            return not last and settled(record)

        try:
            return await self._files.read(uri, Failure, final=final, kept=None if last else failure_in_brief)
        except MalformedRecordError as error:
            self._warnings.append(str(error))
            return None

    async def _progress(
        self, run: RunFolder, attempts: Mapping[AttemptKey, AttemptFiles], *, last: bool
    ) -> tuple[Progress | None, ReadFailure | None]:
        """Reads training's progress. ``last`` is whether no other job has used the folder before.

        Otherwise the progress is not cached, as it could be the final one of the earlier job.
        """
        trained = [files for key, files in sorted(attempts.items()) if key.stage is Stage.TRAIN]
        if not trained:
            return None, None
        result = trained[-1].result
        # The trainer writes its last progress before its result, so the file is final after a success.
        done = last and result is not None and result.outcome is Outcome.SUCCEEDED
        final = (lambda _: True) if done else None
        try:
            return await self._files.read(run.progress, Progress, limit=PROGRESS_LIMIT, final=final), None
        except (MalformedRecordError, NewerRecordError) as error:
            return None, ReadFailure(reason=error.reason, message=f"{error}.")

    async def _stage_progress(
        self, run: RunFolder, attempts: Collection[AttemptKey], working: Collection[AttemptKey]
    ) -> dict[AttemptKey, StageProgress]:
        """Reads what the attempts that have started report. A record that cannot be read is left out."""
        found: dict[AttemptKey, StageProgress] = {}
        for key in working:
            if key not in attempts:
                continue
            with contextlib.suppress(MalformedRecordError, NewerRecordError, StorageError):
                uri = run.stage_progress(*key.place)
                if record := await self._files.read(uri, StageProgress, limit=PROGRESS_LIMIT):
                    found[key] = record
        return found

    async def _convert_manifest(
        self, cache: CacheLayout, attempts: Mapping[AttemptKey, AttemptFiles]
    ) -> tuple[ConvertManifest | None, str]:
        """Reads the manifest of the converted model in the cache; the second value says why it cannot be read.

        Any user of the shared cache may have written an invalid manifest, so it is a cache miss and not a fault of the
        job. The manifest is not read after an attempt has converted the model.
        """
        fingerprint = fingerprint_of(attempts)
        if fingerprint is None or not _FINGERPRINT.fullmatch(fingerprint) or _converted(attempts):
            return None, ""
        try:
            # Not cached here: users may empty the shared cache, and a hit must not outlive its files.
            return await self._files.read(cache.convert_manifest(fingerprint), ConvertManifest), ""
        except (MalformedRecordError, NewerRecordError) as error:
            self._warnings.append(f"{error}; the model is treated as not converted")
            return None, f"its manifest in the cache cannot be read: {error}"


def fingerprint_of(attempts: Mapping[AttemptKey, AttemptFiles]) -> str | None:
    """Returns the fingerprint of the converted model from the latest successful preflight; None if there is none."""
    for key in sorted(attempts, reverse=True):
        result = attempts[key].result
        if key.stage is Stage.PREFLIGHT and result and isinstance(result.details, PreflightOutcome):
            return result.details.fingerprint
    return None


def _converted(attempts: Mapping[AttemptKey, AttemptFiles]) -> bool:
    return any(
        files.result and isinstance(files.result.details, ConvertOutcome) for files in attempts.values()
    )


def result_in_brief(record: StageResult) -> StageResult:
    """Returns the part of a result that is still needed after a later attempt has started.

    That is everything of a success; otherwise, the failure without its evidence, and the steps that training reached.
    """
    if record.outcome is Outcome.SUCCEEDED:
        return record
    details = record.details
    reached = (
        TrainOutcome(
            step=details.step, total_steps=details.total_steps, start_step=details.start_step, end_ids=[]
        )
        if isinstance(details, TrainOutcome)
        else None
    )
    failure = record.failure and failure_in_brief(record.failure)
    return record.model_copy(update={"details": reached, "failure": failure})


def failure_in_brief(record: Failure) -> Failure:
    """Returns the record without its evidence, the last lines of a log."""
    return record.model_copy(update={"evidence": ""}) if record.evidence else record
