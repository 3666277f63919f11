"""How a failed reconcile appears in the job's status."""

from datetime import datetime

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.artifacts.port import StorageDenied, StorageError
from finetune_operator.cluster.port import Conflict, Object, Rejected, ResponseTooLarge, Unavailable
from finetune_operator.lifecycle.status.conditions import with_error
from finetune_operator.lifecycle.status.fitting import read_status
from finetune_operator.planning.errors import Refused


class NameTaken(Conflict):
    """An object that does not belong to the job has the name of its child. It is neither adopted nor modified."""

    def __init__(self, kind: str, namespace: str, name: str) -> None:
        super().__init__(
            f'{kind} "{name}" in namespace "{namespace}" exists and does not belong to this job. Delete or rename it '
            "(one of an earlier job of this name is deleted automatically); the job then continues",
            status=409,
        )


_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (NameTaken, "NameTaken"),
    (Conflict, "ChangedMeanwhile"),
    (ResponseTooLarge, "TooManyObjects"),
    (Rejected, "RefusedByAPIServer"),
    (Unavailable, "APIServerUnavailable"),
    (StorageDenied, "StoragePermissionDenied"),
    (StorageError, "StorageUnavailable"),
)
#: Reason -> remedy.
_FIX = {
    "RefusedByAPIServer": "Fix what the message names, or the operator's role.",
    "StoragePermissionDenied": "Grant the operator's service account the role that the message names.",
}
#: Characters. A condition's message may have 32,768, which is too long to read.
_MESSAGE_LIMIT = 1024
#: Characters of the limit that the remedy and the time of the next retry may take.
_REMEDY_LIMIT = 200


def reason_of(error: Exception) -> str:
    """Returns the stable CamelCase reason of an error, for conditions and metrics."""
    if isinstance(error, Refused):
        return str(error.reason)
    return next((name for kind, name in _REASONS if isinstance(error, kind)), "InternalError")


def status_with_error(
    job: Object,
    error: Exception,
    *,
    now: datetime,
    retry_in: float,
    usage: FineTuneJobStatus | None = None,
) -> FineTuneJobStatus:
    """Returns the status of an unfinished job with the error of a failed reconcile in its conditions and summary.

    ``usage``: a newer status of the job, from which the usage and what the ledger contains of it are taken.

    ``retry_in`` is the interval of the retries in seconds. An internal error is named by its type only. The observed
    generation is unchanged. The next successful reconcile writes the whole status and so removes the error.
    """
    reason = reason_of(error)
    text = str(error) or type(error).__name__
    if reason == "InternalError":
        text = f"internal error of the operator ({type(error).__name__}); its log has the details"
    parts = [text[: _MESSAGE_LIMIT - _REMEDY_LIMIT].rstrip("."), _FIX.get(reason, "").rstrip(".")]
    message = ". ".join(part for part in parts if part) + f". Retried every {_rounded_duration(retry_in)}."
    previous = read_status(job.get("status"))
    conditions = with_error(
        previous.conditions or (), reason, message, generation=job["metadata"]["generation"], now=now
    )
    shown = {"conditions": conditions, "summary": message}
    if usage is not None:
        shown |= {name: getattr(usage, name) for name in ("active_time", "cost", "ledger")}
    return previous.model_copy(update=shown)


def _rounded_duration(seconds: float) -> str:
    """Returns a duration rounded up to a common phrase, so that the text does not change with every retry."""
    for limit, text in ((10, "few seconds"), (60, "minute"), (300, "5 minutes")):
        if seconds <= limit:
            return text
    return f"{seconds / 60:.0f} minutes"
