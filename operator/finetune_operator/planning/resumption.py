"""Whose run folder a job may go on in (``spec.resumeFrom``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup

type Object = Mapping[str, Any]

_PATH = "spec.resumeFrom.runFolder"


def resumed_folder(spec: Object) -> str | None:
    """The run folder that a job's spec goes on in, if it does."""
    folder = lookup(spec, "resumeFrom.runFolder")
    return folder.rstrip("/") if isinstance(folder, str) else None


def refuse_folder_in_use(job: Object, neighbours: Sequence[Object]) -> None:
    """Raise Refused where another job of the namespace may still write into the folder.

    Of two that want to go on in it the older one may.
    """
    folder = resumed_folder(job["spec"])
    if folder is None:
        return
    for other in neighbours:
        if other["metadata"]["uid"] == job["metadata"]["uid"] or _ended(other):
            continue
        runs = lookup(other, "status.resolved.runFolder") == folder
        wants = resumed_folder(other["spec"]) == folder and _age(other) < _age(job)
        if runs or wants:
            raise Refused(
                Reason.RUN_FOLDER_IN_USE,
                f'{_PATH}: FineTuneJob "{other["metadata"]["name"]}" {"uses" if runs else "is to go on in"} {folder} '
                "and has not ended. Delete it, or wait: the job goes on by itself when it has ended.",
            )


def _age(job: Object) -> tuple[str, str]:
    return job["metadata"].get("creationTimestamp", ""), job["metadata"]["uid"]


def _ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)
