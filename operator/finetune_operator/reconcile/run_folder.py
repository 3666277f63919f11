"""Reads a job's run folder into what decisions see. Never takes a fault of the store for absence."""

import asyncio
import contextlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ValidationError

from finetune_contract import (
    CacheLayout,
    ConvertManifest,
    ConvertOutcome,
    Failure,
    HostProgress,
    Outcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Stage,
    StageResult,
)
from finetune_operator.artifacts.port import StorageError, Store, TooLarge
from finetune_operator.cluster.port import Object
from finetune_operator.lifecycle.classify import settled
from finetune_operator.lifecycle.observed import (
    AttemptFiles,
    AttemptKey,
    Retry,
    RunFolderView,
    Takeover,
    in_order,
    since,
)
from finetune_operator.planning.snapshot import read_snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a job's files lie."""

    run: RunFolder
    cache: CacheLayout

    @classmethod
    def of(cls, snapshot: Object) -> Self:
        """What the ConfigMap ``<job>-plan`` says. Raises Refused when it is not one of ours."""
        read = read_snapshot(snapshot)
        return cls(run=read.run_folder, cache=read.cache)


class _NotUnderstoodError(Exception):
    """A file of the contract that this operator cannot read."""


class RunFolderReader:
    """Remembers what cannot change any more, so that a long job's look costs one listing and one read.

    Args:
        store: where run folders lie.
        remembered: how many immutable files are kept, of a few KiB each.
    """

    def __init__(self, store: Store, *, remembered: int = 2000) -> None:
        self._store = store
        self._remembered = remembered
        self._known: OrderedDict[str, BaseModel] = OrderedDict()

    async def view(self, folders: Folders) -> RunFolderView:
        """One look. ``unreadable`` is set where the store or a file in it could not be read."""
        try:
            listed = await self._store.list(folders.run.attempts)
            takeovers = await self._takeovers(folders.run, listed)
            attempts = await self._attempts(folders.run, listed, takeovers)
            manifest, fault = await self._convert_manifest(folders.cache, attempts)
            return RunFolderView(
                attempts=attempts,
                takeovers=takeovers,
                retry=await self._retry(folders.run, listed),
                progress=await self._progress(folders.run, attempts, last=not takeovers),
                convert_manifest=manifest,
                convert_manifest_fault=fault,
            )
        except (StorageError, _NotUnderstoodError) as error:
            return RunFolderView(unreadable=str(error))

    async def hosts(self, run: RunFolder) -> dict[int, HostProgress]:
        """What the processes of training say of themselves, by their number. Raises StorageError. What cannot be
        understood is left out: it would only make a judgement better."""
        names = [name for name in await self._store.list(run.hosts) if _HOST.fullmatch(name)]
        contents = await asyncio.gather(*(self._store.read(f"{run.hosts}/{name}") for name in names))
        told: dict[int, HostProgress] = {}
        for content in contents:
            with contextlib.suppress(ValidationError):
                word = HostProgress.model_validate_json(content or b"")
                told[word.host] = word
        return told

    async def _takeovers(self, run: RunFolder, listed: Sequence[str]) -> tuple[Takeover, ...]:
        uids = [match[1] for name in listed if (match := _TAKEOVER.fullmatch(name))]
        notes = await asyncio.gather(*(self._immutable(run.taken_over(uid), Takeover) for uid in uids))
        return in_order(note for note in notes if note is not None)

    async def _attempts(
        self, run: RunFolder, listed: Sequence[str], takeovers: Sequence[Takeover]
    ) -> dict[AttemptKey, AttemptFiles]:
        files: dict[AttemptKey, set[str]] = {}
        for path in listed:
            folder, _, name = path.partition("/")
            key = attempt_of(folder)
            if key is not None and since(takeovers, key):
                files.setdefault(key, set()).add(name)
        keys = sorted(files)
        newest = {key.stage: key for key in keys}
        found = [self._attempt(run, key, files[key], last=key == newest[key.stage]) for key in keys]
        return dict(zip(keys, await asyncio.gather(*found), strict=True))

    async def _attempt(
        self, run: RunFolder, key: AttemptKey, names: Collection[str], *, last: bool
    ) -> AttemptFiles:
        """``last``: of its stage, so far."""
        result, failure = run.result(*key.place), run.failure(*key.place)
        return AttemptFiles(
            result=await self._result(result, last=last) if "result.json" in names else None,
            failure=await self._failure(failure) if "failure.json" in names else None,
        )

    async def _result(self, uri: str, *, last: bool) -> StageResult | None:
        """Written once, but for that of an attempt that was stopped: a JobSet that Kueue has stopped may run the same
        attempt again, to another end, for as long as no other attempt has followed."""
        return await self._once(
            uri, StageResult, final=lambda record: not last or record.outcome is not Outcome.STOPPED
        )

    async def _failure(self, uri: str) -> Failure | None:
        """A trainer's may still be replaced by the operator's own judgement, and that by nothing."""
        return await self._once(uri, Failure, final=settled)

    async def _retry(self, run: RunFolder, listed: Sequence[str]) -> Retry | None:
        generations = [int(match[1]) for name in listed if (match := _RETRY.fullmatch(name))]
        return await self._immutable(run.retry(max(generations)), Retry) if generations else None

    async def _progress(
        self, run: RunFolder, attempts: dict[AttemptKey, AttemptFiles], *, last: bool
    ) -> Progress | None:
        """``last``: no other job has trained in the folder before, whose end may be remembered."""
        trained = [files for key, files in attempts.items() if key.stage is Stage.TRAIN]
        if not trained:
            return None
        # The trainer writes its last progress before its result: after a success, the file stands still.
        if last and any(files.result and files.result.outcome is Outcome.SUCCEEDED for files in trained):
            return await self._immutable(run.progress, Progress)
        return await self._fresh(run.progress, Progress)

    async def _convert_manifest(
        self, cache: CacheLayout, attempts: dict[AttemptKey, AttemptFiles]
    ) -> tuple[ConvertManifest | None, str]:
        """What the cache has for the model, or why it cannot be read. Whoever shares the cache may have written it, so
        it says nothing about this job: it is a miss. Not read once an attempt has converted the model."""
        fingerprint = fingerprint_of(attempts)
        if fingerprint is None or _converted(attempts):
            return None, ""
        uri = cache.convert_manifest(fingerprint)
        try:
            # Not remembered: people may empty the cache, and a hit must not outlive its files.
            return await self._fresh(uri, ConvertManifest), ""
        except (TooLarge, _NotUnderstoodError) as error:
            log.warning("the converted model in the cache is not used: %s", error)
            return None, f"its manifest in the cache cannot be read: {error}"

    async def _fresh[T: BaseModel](self, uri: str, model: type[T]) -> T | None:
        """A file that may change."""
        content = await self._store.read(uri)
        return None if content is None else _parsed(uri, content, model)

    async def _immutable[T: BaseModel](self, uri: str, model: type[T]) -> T | None:
        """A file that is written once; None where it is not there (yet)."""
        return await self._once(uri, model, final=lambda _: True)

    async def _once[T: BaseModel](self, uri: str, model: type[T], *, final: Callable[[T], bool]) -> T | None:
        """A file that is not read again when what it says is ``final``."""
        known = self._known.get(uri)
        if isinstance(known, model):
            self._known.move_to_end(uri)
            return known
        record = await self._fresh(uri, model)
        if record is None or not final(record):
            return record
        self._known[uri] = record
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
        return record


def attempt_of(folder: str) -> AttemptKey | None:
    """``train-2`` -> (Train, 2, 0), ``train-2.1`` -> (Train, 2, 1); None for a name that is no attempt's."""
    match = _ATTEMPT.fullmatch(folder)
    return AttemptKey(_STAGES[match[1]], int(match[2]), int(match[3] or 0)) if match else None


_RETRY = re.compile(r"retry-([1-9][0-9]{0,9})\.json")
_TAKEOVER = re.compile(r"taken-over-([^/]{1,8})\.json")
_HOST = re.compile(r"[0-9]{1,5}\.json")
_STAGES = {stage.short: stage for stage in Stage}
#: 999 JobSets at most: what fits the names of pods.
_ATTEMPT = re.compile(f"({'|'.join(_STAGES)})-([1-9][0-9]{{0,2}})(?:\\.([1-9][0-9]{{0,8}}))?")


def _converted(attempts: dict[AttemptKey, AttemptFiles]) -> bool:
    return any(
        files.result and isinstance(files.result.details, ConvertOutcome) for files in attempts.values()
    )


def fingerprint_of(attempts: dict[AttemptKey, AttemptFiles]) -> str | None:
    """Of the converted model, as the latest preflight that succeeded found it."""
    for key in sorted(attempts, reverse=True):
        result = attempts[key].result
        if key.stage is Stage.PREFLIGHT and result and isinstance(result.details, PreflightOutcome):
            return result.details.fingerprint
    return None


def _parsed[T: BaseModel](uri: str, content: bytes, model: type[T]) -> T:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise _NotUnderstoodError(
            f"{uri} is not a {model.__name__} that this operator understands: {where}: {first['msg']}. "
            "Was it written by a trainer image of another version?"
        ) from error
