"""What a job has exported: the folders ``model``, ``adapter`` and ``orbax`` of its run folder, and their manifests."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from finetune_contract import ExportOutcome
from finetune_operator.artifacts.port import ObjectStore, ObjectTooLarge
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.options import ExportName
from finetune_operator.cli.connect.store import explained, explanation
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.run_folder import JobRun
from finetune_operator.objects import Object
from finetune_operator.results.model_manifest import (
    MANIFEST,
    MANIFEST_LIMIT,
    ManifestError,
    ModelManifest,
    sha256_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFolder:
    """An exported folder, whose manifest has the digest that the job reported."""

    name: ExportName
    uri: str
    content: bytes
    """The manifest as it is stored."""
    manifest: ModelManifest


async def open_export(run: JobRun, wanted: ExportName | None, store: ObjectStore) -> ExportedFolder:
    """Returns the folder ``wanted``; with None the model, or else what the job exported.

    Raises CliError if the job has not exported it, with the reason, and if its manifest cannot be used.
    """
    digests = _of_status(run, run.job) if run.job is not None else await _of_record(run, store)
    name = next((each for each in ExportName if each in digests), None) if wanted is None else wanted
    if name is None or name not in digests:
        raise _not_exported(run, wanted, list(digests))
    uri = run.folder.exported(name)
    content = await _manifest(run, f"{uri}/{MANIFEST}", store)
    found = f"sha256:{sha256_of(content)}"
    if found != digests[name]:
        raise CliError(
            f"{uri}/{MANIFEST} is not the one that {run.name} reported: it has {found}, not "
            f"{text.one_line(digests[name])[:80]}.",
            fix=f"{_again(run)} If an export is running, wait for it.",
        )
    try:
        manifest = ModelManifest.parse(content)
    except ManifestError as error:
        raise CliError(f"{uri}/{MANIFEST} cannot be used: {error}.", fix=_again(run)) from error
    return ExportedFolder(name=name, uri=uri, content=content, manifest=manifest)


def _of_status(run: JobRun, job: Object) -> Mapping[ExportName, str]:
    """Returns the digests of the exported folders that the status names."""
    known = {run.folder.exported(name): name for name in ExportName}
    return {
        known[each["uri"]]: str(each.get("digest"))
        for each in job_status.status_of(job).get("artifacts") or []
        if each.get("uri") in known
    }


async def _of_record(run: JobRun, store: ObjectStore) -> Mapping[ExportName, str]:
    """Returns the digests of the exported folders that the run folder's own record names."""
    uri = run.folder.export_manifest
    with explained():
        content = await store.read(uri)
    if content is None:
        raise CliError(
            f"{run.folder.uri} holds no finished export: there is no export/{MANIFEST}.",
            fix="Check the URI: a run folder is …/NAMESPACE/JOB-UID, as `finetune status` shows it.",
        )
    try:
        outcome = ExportOutcome.model_validate_json(content)
    except ValidationError as error:
        raise CliError(f"{uri} is not the record of an export.", fix=_again(run)) from error
    names = {each.value: each for each in ExportName}
    # Copies at destinations have the same names and come later.
    return {names[each.name]: each.digest for each in reversed(outcome.artifacts) if each.name in names}


async def _manifest(run: JobRun, uri: str, store: ObjectStore) -> bytes:
    with explained():
        try:
            content = await store.read(uri, limit=MANIFEST_LIMIT)
        except ObjectTooLarge as error:
            raise CliError(explanation(error).message, fix=_again(run)) from error
    if content is None:
        raise CliError(
            f"The export is incomplete: there is no {uri}.",
            fix=f"{_again(run)} If one is running, wait for it.",
        )
    return content


def _again(run: JobRun) -> str:
    if run.job is None:
        return "The folder was changed after the export; export again from a job with resumeFrom."
    return f"Export again: `finetune retry {run.name} --from-stage Export`."


def _not_exported(run: JobRun, wanted: ExportName | None, exported: list[ExportName]) -> CliError:
    if exported:
        return CliError(
            f"{run.name} exported {' and '.join(sorted(exported))}, not {wanted}.",
            fix=f"Choose --what {exported[0]}; spec.export selects what a job exports.",
        )
    if run.job is None:
        return CliError(f"The record of the export in {run.folder.uri} names no folder.")
    return why_not_exported(run.job)


def why_not_exported(job: Object) -> CliError:
    """Returns why a job has exported nothing, and what to do."""
    name, phase, status = job["metadata"]["name"], job_status.phase_of(job), job_status.status_of(job)
    failure = status.get("failure") or {}
    if phase == "Failed" and failure.get("reason") == "GateNotMet" and not job["spec"].get("cancel"):
        return CliError(
            f"{name} has not met its gates, so nothing was exported.",
            fix=f"`finetune status {name}` shows them. To export it nevertheless, set spec.export.onGateFailure: "
            f"Export and run `finetune retry {name} --from-stage Export`.",
        )
    if phase == "Failed":
        return _failed(job, failure)
    if phase == "Planned":
        return CliError(f"{name} is only planned.", fix="Create a job of another name without spec.planOnly.")
    if phase == "Suspended":
        return CliError(f"{name} is suspended and has exported nothing yet.", fix=f"`finetune resume {name}`")
    if phase == "Succeeded":
        folder = text.one_line((status.get("resolved") or {}).get("runFolder"))
        return CliError(f"{name} succeeded, but its status names no exported folder in {folder}.")
    stage = f", stage {status['stage']}" if status.get("stage") else ""
    return CliError(
        f"{name} has exported nothing yet: it is {phase}{stage}.",
        fix=f"`finetune wait {name}` returns when it has ended; `finetune status {name}` shows how far it is.",
    )


def _failed(job: Object, failure: Mapping[str, object]) -> CliError:
    name, reason = job["metadata"]["name"], text.one_line(failure.get("reason") or "no reason")
    where = f" in {failure['stage']}" if failure.get("stage") else ""
    if not job["spec"].get("cancel"):
        return CliError(
            f"{name} failed{where} ({reason}) and has exported nothing.",
            fix=f"`finetune status {name}` shows what to change, and whether in this job, before "
            f"`finetune retry {name}`, or in a copy of it.",
        )
    folder = job_status.run_folder(job)
    return CliError(
        f"{name} was cancelled{where} and has exported nothing.",
        fix="A cancelled job cannot be retried; another job continues it with spec.resumeFrom.runFolder"
        f"{f': {folder}' if folder else '.'}",
    )
