"""Reads the records of runs, from jobs and from run folders, for commands.

Tenants write run folders: every read is bounded, and a record that is unreadable is noted and left out. The operator
observes the folder of a live job by readers of its own (``reconcile/run_folder.py``), which cache what is final and
tell an absent file from a failing store.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from finetune_contract import (
    DataReport,
    EvaluatedRow,
    EvaluateOutcome,
    ExportOutcome,
    Failure,
    PreflightOutcome,
    Progress,
    RunFolder,
    Sample,
    Stage,
    StageRequest,
    StageResult,
)
from finetune_operator.artifacts.port import (
    PROGRESS_LIMIT,
    RECORD_LIMIT,
    ListingTooLarge,
    ObjectStore,
    ObjectTooLarge,
)
from finetune_operator.objects import Object
from finetune_operator.results.errors import ResultsError
from finetune_operator.results.lines import RejectedLines, fault_of, parse_lines
from finetune_operator.results.model_manifest import MANIFEST, MANIFEST_LIMIT, ManifestError, ModelManifest
from finetune_operator.results.records import (
    MOST_ATTEMPTS,
    AttemptPlace,
    AttemptRecords,
    ExportManifest,
    RunRecords,
    lookup,
)
from finetune_operator.results.training_metrics import TrainingMetrics

#: Bytes of status.json: a job and its status have at most 1.5 MiB in the API server.
_STATUS_LIMIT = 2 * 2**20
#: Bytes of the data report: it contains some whole rows.
_DATA_LIMIT = 8 * 2**20
#: Bytes of a file with one record per line, and its lines. 100,000 evaluation rows have 30 MB.
_LINES_LIMIT, _MOST_LINES = 64 * 2**20, 500_000
#: Bytes of a line of the rows' measurements, of the answers, and of a step's measurements.
_ROW_BYTES, _SAMPLE_BYTES, _METRICS_BYTES = 16 * 2**10, 2**20, 8 * 2**10
#: Bytes of the samples of which only the first are shown.
_FIRST_SAMPLES = 4 * 2**20
#: Attempts whose records are read at the same time.
_AT_ONCE = 16
#: Names of exported folders.
_EXPORTS = ("model", "adapter", "orbax")
#: Stages whose requests name the settings that a comparison shows.
_MEASURED = tuple(stage for stage in Stage if stage is not Stage.EXPORT)
#: A record of an attempt: its folder's name, of stage, number and restart, and what it is.
_ATTEMPT = re.compile(
    f"({'|'.join(stage.short for stage in Stage)})-([0-9]{{1,3}})(?:\\.([0-9]{{1,6}}))?/(request|result|failure)\\.json"
)


async def records_of_job(job: Object, store: ObjectStore, *, whole: bool = False) -> RunRecords:
    """Returns the records of a live FineTuneJob: those of the job alone if it has no run folder yet.

    Args:
        job: the FineTuneJob.
        store: object store, with the caller's credentials.
        whole: whether to read also what only reports show. Comparisons, which read the rest, need rows: for them a
            rows.jsonl without any valid row is an error.

    Raises:
        ResultsError: rows.jsonl contains no row, and ``whole`` is false.
        StorageError: the store does not return the run folder.
    """
    uri = lookup(job, "status", "resolved", "runFolder")
    if not isinstance(uri, str) or not uri:
        return _run(job, None, live=True)
    return await RunReader(RunFolder(uri.rstrip("/")), store).records(job, whole=whole)


async def records_at(uri: str, store: ObjectStore, *, whole: bool = False) -> RunRecords:
    """Returns the records of a run folder, as :func:`records_of_job`. Raises ResultsError if there is none."""
    return await RunReader(RunFolder(uri.rstrip("/")), store).records(None, whole=whole)


def _run(document: Object, uri: str | None, *, live: bool, **records: Any) -> RunRecords:
    """Returns the records of a run.

    Args:
        document: the FineTuneJob, or the operator's copy of it in status.json (``job`` there).
        uri: the run folder.
        live: whether the FineTuneJob exists.
        records: further fields of RunRecords.
    """
    metadata, spec, status = (_section(document, name) for name in ("metadata", "spec", "status"))
    name, namespace = metadata.get("name"), metadata.get("namespace")
    return RunRecords(
        name=str(name)[:253] if name else (uri or "").rpartition("/")[2],
        namespace=str(namespace)[:253] if namespace else None,
        run_folder=uri,
        live=live,
        metadata=metadata,
        spec=spec,
        status=status,
        **records,
    )


def _section(document: Object, name: str) -> Object:
    section = document.get(name)
    return section if isinstance(section, dict) else {}


def _files_by_attempt(names: Sequence[str]) -> dict[AttemptPlace, set[str]]:
    """Returns which of ``request``, ``result`` and ``failure`` each attempt has, by the names below ``attempts/``.

    Names of anything else are ignored.
    """
    attempts: dict[AttemptPlace, set[str]] = {}
    for match in filter(None, map(_ATTEMPT.fullmatch, names)):
        short, number, restart, kind = match.groups()
        attempts.setdefault((Stage.from_short(short), int(number), int(restart or 0)), set()).add(kind)
    return attempts


class RunReader:
    """Reads one run folder, and collects in ``unreadable`` a sentence for each record, or part of one, that is not.

    Methods raise StorageError if the store does not respond as expected.
    """

    def __init__(self, folder: RunFolder, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.unreadable: list[str] = []

    async def records(self, job: Object | None, *, whole: bool) -> RunRecords:
        """Returns all records. ``job``: the live FineTuneJob; None to read its last copy. Raises ResultsError."""
        folder = self._folder
        document = await self._status() if job is None else job
        attempts = await self._attempts()
        request, preflight, progress = await asyncio.gather(
            self._last_request(attempts),
            self.preflight(),
            self._record(folder.progress, Progress, PROGRESS_LIMIT),
        )
        metrics = TrainingMetrics()
        evaluation, rows, (samples, _), _ = await asyncio.gather(
            self._record(folder.evaluation_results, EvaluateOutcome),
            self._rows(required=not whole),
            self._records(folder.evaluation_samples, Sample, _SAMPLE_BYTES),
            self._lines(folder.metrics, metrics.take, _METRICS_BYTES),
        )
        measured = (document, request, preflight, progress, evaluation, rows, samples)
        if job is None and not any(measured) and not self.unreadable:
            raise ResultsError(
                f"There is no run folder at {folder.uri}.",
                fix="Give the folder <artifacts>/<namespace>/<job>-<uid>, as in status.resolved.runFolder.",
            )
        more = await self._more(attempts) if whole else {}
        return _run(
            document or {},
            folder.uri,
            live=job is not None,
            request=request,
            preflight=preflight,
            progress=progress,
            evaluation=evaluation,
            rows=rows,
            samples=samples,
            metrics=metrics,
            # Reads end in any order.
            unreadable=tuple(sorted(self.unreadable)),
            **more,
        )

    async def last_request(self) -> StageRequest | None:
        """Returns the request of the newest attempt of the last stage that ran, one with a result if there is one."""
        return await self._last_request(await self._attempts())

    async def preflight(self) -> PreflightOutcome | None:
        """Returns the result of Preflight."""
        return await self._record(self._folder.preflight_report, PreflightOutcome)

    async def first_samples(self, number: int) -> list[Sample]:
        """Returns the first samples of Evaluate, at most ``number``; the rest of their file is not read."""
        content = await self._store.read_part(self._folder.evaluation_samples, start=0, size=_FIRST_SAMPLES)
        samples: list[Sample] = []
        for line in (content or b"").splitlines():
            if len(samples) == number:
                break
            # The last line may be cut.
            with suppress(ValidationError):
                samples.append(Sample.model_validate_json(line))
        return samples

    async def _last_request(self, attempts: Mapping[AttemptPlace, set[str]]) -> StageRequest | None:
        started = [place for place, kinds in attempts.items() if "request" in kinds and place[0] in _MEASURED]
        if not started:
            return None
        stage, number, restart = max(
            started, key=lambda place: (place[0].order, "result" in attempts[place], *place[1:])
        )
        return await self._record(self._folder.request(stage.short, number, restart), StageRequest)

    async def _status(self) -> Object | None:
        content = await self._read(self._folder.status, _STATUS_LIMIT)
        if content is None:
            return None
        try:
            document = from_json(content, allow_inf_nan=False)
        except ValueError:
            document = None
        job = document.get("job") if isinstance(document, dict) else None
        if not isinstance(job, dict):
            self.unreadable.append(f"{self._folder.status} is not the record of a job.")
            return None
        return job

    async def _rows(self, *, required: bool) -> Sequence[EvaluatedRow]:
        uri = self._folder.evaluation_rows
        rows, rejected = await self._records(uri, EvaluatedRow, _ROW_BYTES)
        if rejected.number and not rows and required:
            raise ResultsError(
                f"{uri} contains no evaluation row: none of its {rejected.number:,} lines is a valid record "
                f"({rejected.first_fault}).",
                fix="Repeat the evaluation: `finetune retry NAME --from-stage Evaluate`.",
            )
        return rows

    async def _records[T: BaseModel](
        self, uri: str, model: type[T], line_bytes: int
    ) -> tuple[list[T], RejectedLines]:
        """Returns the records of a file with one per line of at most ``line_bytes``."""
        records: list[T] = []
        rejected = await self._lines(
            uri, lambda line: records.append(model.model_validate_json(line)), line_bytes
        )
        return records, rejected

    async def _more(self, attempts: Mapping[AttemptPlace, set[str]]) -> Mapping[str, Any]:
        """Returns what only reports show, by the fields of RunRecords."""
        newest = sorted(attempts, key=lambda place: (place[0].order, *place[1:]))[-MOST_ATTEMPTS:]
        data, export = await asyncio.gather(
            self._record(self._folder.data_report, DataReport, _DATA_LIMIT),
            self._record(self._folder.export_manifest, ExportOutcome),
        )
        manifests = {name: await self._manifest(name) for name in _EXPORTS if export}
        return {
            "data": data,
            "attempts": await asyncio.gather(*(self._attempt(place, attempts[place]) for place in newest)),
            "attempts_left_out": len(attempts) - len(newest),
            "export": export,
            "manifests": {name: manifest for name, manifest in manifests.items() if manifest},
        }

    async def _attempt(self, place: AttemptPlace, kinds: set[str]) -> AttemptRecords:
        stage, number, restart = place
        path = stage.short, number, restart
        async with self._slots:
            return AttemptRecords(
                stage=stage,
                number=number,
                restart=restart,
                result=await self._record(self._folder.result(*path), StageResult)
                if "result" in kinds
                else None,
                failure=await self._record(self._folder.failure(*path), Failure)
                if "failure" in kinds
                else None,
            )

    async def _manifest(self, name: str) -> ExportManifest | None:
        uri = f"{self._folder.exported(name)}/{MANIFEST}"
        content = await self._read(uri, MANIFEST_LIMIT)
        if content is None:
            return None
        try:
            files = ModelManifest.parse(content).files
        except ManifestError as error:
            self.unreadable.append(f"{uri} is not the manifest of an export: {str(error)[:200]}.")
            files = []
        return ExportManifest(digest=hashlib.sha256(content).hexdigest(), files=files)

    async def _read(self, uri: str, limit: int) -> bytes | None:
        """Returns a file; None if it does not exist, or is larger than ``limit`` bytes."""
        try:
            return await self._store.read(uri, limit=limit)
        except ObjectTooLarge as error:
            self.unreadable.append(f"{uri} is not read: {error.message}.")
            return None

    async def _record[T: BaseModel](self, uri: str, model: type[T], limit: int = RECORD_LIMIT) -> T | None:
        """Returns a record; None if there is none, or no valid one."""
        content = await self._read(uri, limit)
        if content is None:
            return None
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            self.unreadable.append(f"{uri} is not a valid record: {fault_of(error, 'the document')}.")
            return None

    async def _lines(self, uri: str, take: Callable[[bytes], object], line_bytes: int) -> RejectedLines:
        """Calls ``take`` with each line of a file, of at most ``line_bytes``; with none if it is unreadable."""
        content = await self._read(uri, _LINES_LIMIT)
        try:
            rejected = parse_lines(content or b"", take, most_lines=_MOST_LINES, line_bytes=line_bytes)
        except ValueError as error:
            self.unreadable.append(f"{uri} is not read: it has {error}.")
            return RejectedLines()
        if rejected.number:
            self.unreadable.append(
                f"{uri}: lines that are not valid records are left out: {rejected.number:,} "
                f"({rejected.first_fault})."
            )
        return rejected

    async def _attempts(self) -> Mapping[AttemptPlace, set[str]]:
        """Returns the records that each attempt has; none if there are too many names."""
        try:
            return _files_by_attempt(await self._store.list(self._folder.attempts))
        except ListingTooLarge as error:
            self.unreadable.append(f"{error.uri} is not read: {error.message}.")
            return {}
