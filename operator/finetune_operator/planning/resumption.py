"""Checks whose run folder a job may resume from (``spec.resumeFrom``)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from finetune_operator.api import Reason
from finetune_operator.api.conditions import is_true
from finetune_operator.objects import Object
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RUN = re.compile(r"(?P<name>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)-(?P<uid>[^/]{8})")
_PATH = "spec.resumeFrom.runFolder"


def resumed_folder(spec: Object) -> str | None:
    """Returns the run folder from which a job's spec resumes; None if it resumes from none."""
    folder = lookup(spec, "resumeFrom.runFolder")
    return folder.rstrip("/") if isinstance(folder, str) else None


def namespace_of(folder: str) -> str | None:
    """Returns the namespace in a run folder's URI ``<artifacts>/<namespace>/<job>-<uid8>``; None if it has none."""
    parts = folder.rsplit("/", 2)
    return parts[1] if len(parts) == 3 and _NAMESPACE.fullmatch(parts[1]) else None


@dataclass(frozen=True, slots=True)
class FolderUser:
    """A job that has used a run folder."""

    namespace: str
    name: str
    uid: str
    """At least the first characters of the uid."""


def owner_of(folder: str) -> FolderUser | None:
    """Returns the job for which the run folder was created, according to its URI; None if the URI names none."""
    namespace, run = namespace_of(folder), _RUN.fullmatch(folder.rpartition("/")[2])
    return FolderUser(namespace, run["name"], run["uid"]) if namespace and run else None


def blocks(other: Object, job: Object) -> bool:
    """Returns whether ``other``, which has used the run folder from which ``job`` resumes, may still write there."""
    folder = resumed_folder(job["spec"])
    if folder is None or other["metadata"]["uid"] == job["metadata"]["uid"] or is_true(other, "Finished"):
        return False
    return _runs_in(folder, other)


def refuse_folder_in_use(job: Object, neighbours: Sequence[Object]) -> None:
    """Raises Refused if any of ``neighbours``, which use the folder from any namespace, :func:`blocks` the job."""
    folder = resumed_folder(job["spec"])
    for other in neighbours:
        if blocks(other, job):
            raise Refused(
                Reason.RUN_FOLDER_IN_USE,
                f"{_PATH}: FineTuneJob {_named(other, job)} uses {folder} and has not ended. Delete it, or wait: the "
                "job starts by itself when it has ended.",
            )


def _runs_in(folder: str, job: Object) -> bool:
    """Returns whether it is the run folder of a job, according to its status or, if that names none, its spec."""
    reported = lookup(job.get("status") or {}, "resolved.runFolder")
    if reported is not None:
        return bool(reported == folder)
    metadata = job["metadata"]
    own = f"/{metadata.get('namespace', 'default')}/{metadata['name']}-{metadata['uid'][:8]}"
    resumed = resumed_folder(job["spec"])
    return folder.endswith(own) if resumed is None else resumed == folder


def _named(other: Object, job: Object) -> str:
    name, namespace = other["metadata"]["name"], other["metadata"].get("namespace")
    return (
        f'"{name}"' if namespace == job["metadata"].get("namespace") else f'"{name}" in namespace {namespace}'
    )
