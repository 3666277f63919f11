"""Reads the records that ``finetune compare`` and ``finetune report`` take, from jobs and from run folders.

Tenants write run folders, so every read is bounded, and an unreadable record is reported and left out.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from finetune_contract import (
    EvaluatedRow,
    EvaluateOutcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Sample,
    Stage,
    StageRequest,
)
from finetune_operator.artifacts.port import PROGRESS_LIMIT, ObjectStore
from finetune_operator.cli.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.record_reader import RecordReader, files_by_attempt
from finetune_operator.cli.text import one_line
from finetune_operator.comparison import RunRecords
from finetune_operator.comparison.records import lookup

type Object = Mapping[str, Any]

#: Bytes of status.json: a job and its status have at most 1.5 MiB in the API server.
_STATUS_LIMIT = 2 * 2**20
#: Bytes of a line of the rows' measurements and of the answers.
_ROW_BYTES, _SAMPLE_BYTES = 16 * 2**10, 2**20
#: Stages whose requests name the settings that a comparison shows.
_MEASURED = tuple(stage for stage in Stage if stage is not Stage.EXPORT)


def is_run_folder(name: str) -> bool:
    """Whether an argument is the URI of a run folder rather than the name of a job."""
    return "://" in name


def is_run_folder_uri(text: str) -> bool:
    """Whether a URI can be that of a run folder."""
    return re.fullmatch(r"(gs://[^/]+|file://)/[^\0]+", text) is not None and len(text) <= 1024


async def run_records(name: str, connection: Connection | None, store: ObjectStore) -> RunRecords:
    """Returns the records of a job by name, or of a run folder by URI.

    Args:
        name: name or URI.
        connection: connection to the job's cluster. None suffices for a URI.
        store: object store, with the caller's credentials.

    Raises:
        CliError: there is no such job or run folder, the store does not return it, or rows.jsonl contains no row.
        ClusterError: from the cluster.
    """
    if is_run_folder(name):
        return await records_at(name, store)
    assert connection is not None, "jobs are read from a cluster"
    try:
        job = await connection.job(name)
    except CliError as error:
        advice = "A deleted job is compared by the URI of its run folder (gs://... or file:///...)."
        raise CliError(error.message, fix=f"{error.fix} {advice}".strip()) from error
    return await records_of_job(job, store)


async def records_of_job(job: Object, store: ObjectStore, *, require_rows: bool = True) -> RunRecords:
    """Returns the records of a live FineTuneJob: those of the job alone if it has no run folder yet.

    Args:
        job: the FineTuneJob.
        store: object store, with the caller's credentials.
        require_rows: whether a rows.jsonl without any valid row is an error, or is noted.

    Raises:
        CliError: the store does not return the run folder, or rows.jsonl contains no row.
    """
    uri = lookup(job, "status", "resolved", "runFolder")
    if not isinstance(uri, str) or not uri:
        return _facts(job, None, live=True)
    return await _Reader(RunFolder(uri.rstrip("/")), store, require_rows=require_rows).records(job)


async def records_at(uri: str, store: ObjectStore, *, require_rows: bool = True) -> RunRecords:
    """Returns the records of a run folder, as :func:`records_of_job`. Raises CliError if there is none."""
    return await _Reader(RunFolder(uri.rstrip("/")), store, require_rows=require_rows).records(None)


def _facts(document: Object, uri: str | None, *, live: bool, **records: Any) -> RunRecords:
    """Returns the records of a run.

    Args:
        document: the FineTuneJob, or the operator's copy of it in status.json (``job`` there).
        uri: the run folder.
        live: whether the FineTuneJob exists.
        records: further fields of RunRecords.
    """
    identity = _section(document, "metadata")
    name, namespace = identity.get("name"), identity.get("namespace")
    return RunRecords(
        name=str(name)[:253] if name else (uri or "").rpartition("/")[2],
        namespace=str(namespace)[:253] if namespace else None,
        run_folder=uri,
        live=live,
        metadata=identity,
        spec=_section(document, "spec"),
        status=_section(document, "status"),
        **records,
    )


def _section(document: Object, name: str) -> Object:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


async def last_request(reader: RecordReader, folder: RunFolder) -> StageRequest | None:
    """Returns the request of the newest attempt of the last stage that ran, one with a result if there is one."""
    names = await reader.names(folder.attempts)
    attempts = {place: kinds for place, kinds in files_by_attempt(names).items() if place[0] in _MEASURED}
    started = [place for place, kinds in attempts.items() if "request" in kinds]
    if not started:
        return None
    stage, number, restart = max(
        started, key=lambda place: (place[0].order, "result" in attempts[place], *place[1:])
    )
    return await reader.record(folder.request(stage.short, number, restart), StageRequest)


class _Reader:
    """Reads the records of one run folder."""

    def __init__(self, folder: RunFolder, store: ObjectStore, *, require_rows: bool) -> None:
        self._folder = folder
        self._reader = RecordReader(store)
        self._require_rows = require_rows

    async def records(self, job: Object | None) -> RunRecords:
        """Returns all records. ``job``: the live FineTuneJob; None to read its last copy. Raises CliError."""
        folder = self._folder
        document = await self._status() if job is None else job
        request, preflight, progress = await asyncio.gather(
            last_request(self._reader, folder),
            self._reader.record(folder.preflight_report, PreflightOutcome),
            self._reader.record(folder.progress, Progress, PROGRESS_LIMIT),
        )
        evaluation, rows, samples = await asyncio.gather(
            self._reader.record(folder.evaluation_results, EvaluateOutcome), self._rows(), self._samples()
        )
        found = (document, request, preflight, progress, evaluation, rows, samples)
        if job is None and not any(found) and not self._reader.unreadable:
            raise CliError(
                f"There is no run folder at {folder.uri}.",
                fix="Give the folder <artifacts>/<namespace>/<job>-<uid>, as in status.resolved.runFolder.",
            )
        return _facts(
            document or {},
            folder.uri,
            live=job is not None,
            request=request,
            preflight=preflight,
            progress=progress,
            evaluation=evaluation,
            rows=rows,
            samples=samples,
            # Reads end in any order.
            unreadable=tuple(sorted(self._reader.unreadable)),
        )

    async def _status(self) -> Object | None:
        content = await self._reader.read(self._folder.status, _STATUS_LIMIT)
        if content is None:
            return None
        try:
            document = from_json(content, allow_inf_nan=False)
        except ValueError:
            document = None
        job = document.get("job") if isinstance(document, dict) else None
        if not isinstance(job, dict):
            self._reader.unreadable.append(f"{self._folder.status} is not the record of a job.")
            return None
        return job

    async def _rows(self) -> Sequence[EvaluatedRow]:
        uri = self._folder.evaluation_rows
        found = await self._reader.lines(uri, EvaluatedRow, _ROW_BYTES)
        if found.rejected and not found.records and self._require_rows:
            raise CliError(
                f"{uri} contains no evaluation row: none of its {found.rejected:,} lines is a valid record "
                f"({one_line(found.first_fault)}).",
                fix="Repeat the evaluation: `finetune retry NAME --from-stage Evaluate`.",
            )
        return found.records

    async def _samples(self) -> Sequence[Sample]:
        return (await self._reader.lines(self._folder.evaluation_samples, Sample, _SAMPLE_BYTES)).records
