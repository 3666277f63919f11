"""The run folder of a job, read with the caller's own credentials: by the job's name, or by its URI.

What a bucket holds is hostile input: every read has a limit, and names in records are never used as paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from finetune_contract import RunFolder
from finetune_operator.api.uris import is_storage_uri
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.connect.options import ClusterOptions
from finetune_operator.cli.errors import CliError
from finetune_operator.objects import Object

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
    folder = _folder(str(uri))
    if folder is None:
        raise CliError(
            f"The status of {name} names {text.one_line(uri)[:200]!r} as its run folder, which is no URI."
        )
    return JobRun(name=name, folder=folder, job=job)


def run_at(uri: str) -> JobRun:
    """Returns the run at a URI. Raises BadParameter if it is none."""
    folder = _folder(uri)
    if folder is None or folder.uri.count("/") < 3:
        raise typer.BadParameter(
            f"--run {text.one_line(uri)[:200]!r} is not a run folder: expected gs://BUCKET/FOLDER or file:///FOLDER, "
            "as `finetune status` shows it."
        )
    return JobRun(name=folder.uri.rpartition("/")[2], folder=folder)


def _folder(uri: str) -> RunFolder | None:
    return RunFolder(uri.rstrip("/")) if is_storage_uri(uri.rstrip("/")) else None
