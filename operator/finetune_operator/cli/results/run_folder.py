"""The run folder of a job, read with the caller's own credentials: by the job's name, or by its URI.

What a bucket holds is hostile input: every read has a limit, and names in records are never used as paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from finetune_contract import RunFolder
from finetune_operator.api.uris import is_storage_uri
from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.connect.options import ClusterOptions
from finetune_operator.cli.connect.store import explained
from finetune_operator.cli.errors import CliError
from finetune_operator.objects import Object
from finetune_operator.results.reader import records_at, records_of_job
from finetune_operator.results.records import RunRecords

_DELETED = "The run folder of a deleted job is still there: give it with --run URI."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job's run folder, with the job if the cluster still has it."""

    name: str
    """The job's name; without a job that of the folder."""
    folder: RunFolder
    job: Object | None = None


def find_run(name: str | None, uri: str | None, cluster: ClusterOptions) -> JobRun:
    """Returns the run of the job ``name``, or that at ``uri``. Raises CliError; BadParameter unless one is given."""
    require_one(name, uri)
    (found,) = find_runs([name] if name else [], [uri] if uri else [], cluster)
    return found


def require_one(name: str | None, uri: str | None) -> None:
    """Raises BadParameter unless either a job or a run folder is given, and named."""
    if (name is None) == (uri is None) or not (name or uri):
        raise typer.BadParameter(
            "give either the NAME of a job or --run URI, the run folder of a deleted one."
        )


def find_runs(names: Sequence[str], uris: Sequence[str], cluster: ClusterOptions) -> list[JobRun]:
    """Returns the runs of the jobs, then those at the URIs. Without names no cluster is called. Raises CliError."""
    at_uris = [run_at(uri) for uri in dict.fromkeys(uris)]

    async def jobs(connection: Connection) -> list[Object]:
        return [await existing_job(connection, name) for name in dict.fromkeys(names)]

    found = cluster.run(jobs) if names else []
    return [*map(run_of, found), *at_uris]


async def existing_job(connection: Connection, name: str, advice: str = _DELETED) -> Object:
    """Returns the job. Raises CliError with ``advice`` for a deleted one."""
    try:
        return await connection.job(name)
    except CliError as error:
        raise CliError(error.message, fix=f"{error.fix} {advice}".lstrip()) from error


def run_of(job: Object) -> JobRun:
    """Returns the run of a job. Raises CliError if the job has no run folder yet."""
    name = str(job["metadata"]["name"])
    uri = (job_status.status_of(job).get("resolved") or {}).get("runFolder")
    if not uri:
        raise CliError(
            f"{name} has no run folder yet.",
            fix=f"`finetune status {name}` shows what it waits for, or why it failed.",
        )
    folder = folder_at(str(uri))
    if folder is None:
        raise CliError(
            f"The status of {name} names {text.one_line(uri)[:200]!r} as its run folder, which is no URI."
        )
    return JobRun(name=name, folder=folder, job=job)


def run_at(uri: str) -> JobRun:
    """Returns the run at a URI. Raises BadParameter if it is none."""
    folder = folder_at(uri)
    if folder is None:
        raise typer.BadParameter(
            f"--run {text.one_line(uri)[:200]!r} is not a run folder: expected gs://BUCKET/FOLDER or file:///FOLDER, "
            "as `finetune status` shows it."
        )
    return JobRun(name=folder.uri.rpartition("/")[2], folder=folder)


def folder_at(uri: str) -> RunFolder | None:
    """Returns the run folder at a URI; None if it is not the URI of a folder in a bucket or on a disk."""
    folder = RunFolder(uri.rstrip("/"))
    return folder if is_storage_uri(folder.uri) and folder.uri.count("/") >= 3 else None


async def run_records(
    name: str,
    connection: Connection | None,
    store: ObjectStore,
    *,
    whole: bool = False,
    advice: str = _DELETED,
) -> RunRecords:
    """Returns the records of a job by name, or of a run folder by URI, for which ``connection`` may be None.

    Args:
        name: the job's name, or the URI of a run folder.
        connection: the cluster that has the job.
        store: object store, with the caller's credentials.
        whole: whether to read also what only reports show.
        advice: how to name a deleted job instead.

    Raises:
        CliError: there is no such job or folder, or the store does not return it.
        ClusterError: the cluster does not return the job.
    """
    with explained():
        if "://" in name:
            return await records_at(name, store, whole=whole)
        assert connection is not None, "jobs are read from a cluster"
        return await records_of_job(await existing_job(connection, name, advice), store, whole=whole)
