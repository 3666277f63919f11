"""``finetune report``: reads the records of a run and writes them as one HTML file."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.connect.options import ClusterOptions
from finetune_operator.cli.output_file import save
from finetune_operator.cli.connect.store import explained
from finetune_operator.cli.results.run_folder import existing_job, run_at
from finetune_operator.results.reader import records_at, records_of_job
from finetune_operator.results.records import RunRecords
from finetune_operator.results.report.build import report_of
from finetune_operator.results.report.model import Report

#: ``--output`` for stdout.
STDOUT = Path("-")


def read_report(name: str | None, uri: str | None, cluster: ClusterOptions, store: ObjectStore) -> Report:
    """Returns the report on the job ``name``, or on the run folder at ``uri``, for which no cluster is called.

    Raises:
        BadParameter: the URI is none of a run folder.
        CliError: there is no such job or folder, or cluster or store do not return it.
    """
    with explained():
        if name is None:
            assert uri is not None, "one of them is given"
            records = asyncio.run(records_at(run_at(uri).folder.uri, store, whole=True))
        else:
            records = cluster.run(lambda connection: records_by_name(name, connection, store))
    return report_of(records, datetime.now(UTC))


async def records_by_name(name: str, connection: Connection, store: ObjectStore) -> RunRecords:
    """Returns the records of a live job. Raises CliError, ClusterError and StorageError."""
    return await records_of_job(await existing_job(connection, name), store, whole=True)


def file_of(name: str | None, uri: str | None) -> Path:
    """Returns the file for a report without ``--output``: that of the job, or of the run folder, in this folder."""
    return Path(f"{name or (uri or '').rstrip('/').rpartition('/')[2]}-report.html")


def write_page(page: str, output: Path, *, force: bool) -> None:
    """Writes the page as a whole to a file or stdout. Raises CliError."""
    if output == STDOUT:
        sys.stdout.buffer.write(page.encode(errors="replace"))
        sys.stdout.buffer.flush()
    else:
        save(page, output, force=force)
