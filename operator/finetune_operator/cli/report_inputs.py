"""Reads the records that ``finetune report`` takes in addition to those of ``finetune compare``.

Tenants write run folders, so every read is bounded, and an unreadable record is noted and left out.
"""

import asyncio
import hashlib

from pydantic import BaseModel

from finetune_contract import DataReport, ExportOutcome, Failure, RunFolder, StageResult
from finetune_operator.artifacts.port import RECORD_LIMIT, ObjectStore
from finetune_operator.cli.model_manifest import MANIFEST, MANIFEST_LIMIT, ManifestError, ModelManifest
from finetune_operator.cli.options import ExportName
from finetune_operator.cli.record_reader import (
    LINES_LIMIT,
    MOST_LINES,
    AttemptPlace,
    RecordReader,
    files_by_attempt,
)
from finetune_operator.comparison import RunRecords
from finetune_operator.report import AttemptRecords, ExportedFile, ExportManifest, ReportRecords
from finetune_operator.report.attempts import MOST_ATTEMPTS
from finetune_operator.report.metrics import TrainingMetrics, training_metrics

#: Bytes of the data report: it contains some whole rows.
_DATA_LIMIT = 8 * 2**20
#: Records that are read at the same time.
_AT_ONCE = 16


async def report_records(run: RunRecords, store: ObjectStore) -> ReportRecords:
    """Returns all records of a run; those of the job alone if it has no run folder. Raises CliError."""
    if run.run_folder is None:
        return ReportRecords(run=run)
    return await _Reader(RunFolder(run.run_folder), store).records(run)


class _Reader:
    def __init__(self, folder: RunFolder, store: ObjectStore) -> None:
        self._folder = folder
        self._reader = RecordReader(store)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def records(self, run: RunRecords) -> ReportRecords:
        folder = self._folder
        metrics, data, names, export = await asyncio.gather(
            self._metrics(),
            self._reader.record(folder.data_report, DataReport, _DATA_LIMIT),
            self._reader.names(folder.attempts),
            self._reader.record(folder.export_manifest, ExportOutcome),
        )
        found = files_by_attempt(names)
        newest = sorted(found, key=lambda key: (key[0].order, *key[1:]))[-MOST_ATTEMPTS:]
        manifests = {name: await self._manifest(name) for name in ExportName} if export else {}
        return ReportRecords(
            run=run,
            metrics=metrics,
            data=data,
            attempts=await asyncio.gather(*(self._attempt(key, found[key]) for key in newest)),
            attempts_left_out=len(found) - len(newest),
            export=export,
            manifests={name.value: each for name, each in manifests.items() if each},
            # Reads end in any order. The comparison's reader lists the attempts, too.
            unreadable=tuple(sorted({*self._reader.unreadable} - {*run.unreadable})),
        )

    async def _metrics(self) -> TrainingMetrics | None:
        uri = self._folder.metrics
        content = await self._reader.read(uri, LINES_LIMIT)
        if content is None:
            return None
        try:
            found = training_metrics(content, most_lines=MOST_LINES)
        except ValueError as error:
            self._reader.unreadable.append(f"{uri} is not read: it has {error}.")
            return None
        self._reader.note_rejected(uri, found.rejected, found.first_fault)
        return found

    async def _attempt(self, key: AttemptPlace, kinds: set[str]) -> AttemptRecords:
        stage, number, restart = key
        place = stage.short, number, restart

        async def read[T: BaseModel](kind: str, uri: str, model: type[T]) -> T | None:
            if kind not in kinds:
                return None
            async with self._slots:
                return await self._reader.record(uri, model, RECORD_LIMIT)

        return AttemptRecords(
            stage=stage,
            number=number,
            restart=restart,
            result=await read("result", self._folder.result(*place), StageResult),
            failure=await read("failure", self._folder.failure(*place), Failure),
        )

    async def _manifest(self, name: ExportName) -> ExportManifest | None:
        uri = f"{self._folder.exported(name.value)}/{MANIFEST}"
        content = await self._reader.read(uri, MANIFEST_LIMIT)
        if content is None:
            return None
        digest = hashlib.sha256(content).hexdigest()
        try:
            files = ModelManifest.parse(content).files
        except ManifestError as error:
            self._reader.unreadable.append(f"{uri} is not the manifest of an export: {str(error)[:200]}.")
            return ExportManifest(digest=digest, files=())
        return ExportManifest(
            digest=digest,
            files=[ExportedFile(path=each.path, size=each.size, sha256=each.sha256) for each in files],
        )
