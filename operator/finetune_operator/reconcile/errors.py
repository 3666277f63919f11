"""What a reconcile that failed shows in the job's status."""

from datetime import datetime

from finetune_operator.artifacts.port import StorageDenied, StorageError
from finetune_operator.cluster.port import Conflict, Object, Rejected, ResponseTooLarge, Unavailable
from finetune_operator.lifecycle.conditions import with_error
from finetune_operator.planning.errors import Refused


class NameTaken(Conflict):
    """A child's name belongs to an object that is not the job's: it is neither adopted nor touched."""

    def __init__(self, kind: str, namespace: str, name: str) -> None:
        super().__init__(
            f'{kind} "{name}" in namespace "{namespace}" exists and does not belong to this job. Delete or rename it '
            "(that of an earlier job of this name goes by itself); the job goes on then",
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
#: What to change, by reason.
_FIX = {
    "RefusedByAPIServer": "Mend what the message names, or the operator's role.",
    "StoragePermissionDenied": "Give the operator's service account the role that the message names.",
}
#: A status condition's message may hold 32,768 characters; a person reads fewer.
_MESSAGE_LIMIT = 1024


def reason_of(error: Exception) -> str:
    """CamelCase, stable: for conditions and metrics."""
    if isinstance(error, Refused):
        return str(error.reason)
    return next((name for kind, name in _REASONS if isinstance(error, kind)), "InternalError")


def status_with_error(job: Object, error: Exception, *, now: datetime, retry_in: float) -> Object:
    """The status of a job that has not ended, saying what went wrong and when it is tried again.

    It goes on speaking of the generation that it spoke of. The next reconcile that goes through writes the status
    whole and so takes the error away.
    """
    reason = reason_of(error)
    text = str(error) or type(error).__name__
    if reason == "InternalError":
        text = f"a fault of the operator ({type(error).__name__}); its log has the details"
    parts = [text[: _MESSAGE_LIMIT - 200].rstrip("."), _FIX.get(reason, "").rstrip(".")]
    message = ". ".join(part for part in parts if part) + f". Tried again every {_spoken(retry_in)}."
    previous = job.get("status") or {}
    return {
        **previous,
        "conditions": with_error(
            previous.get("conditions", ()),
            reason,
            message,
            generation=job["metadata"]["generation"],
            now=now,
        ),
        "summary": message,
    }


def _spoken(seconds: float) -> str:
    """Rounded up to what a person would say, so that the text does not change with every try."""
    for limit, text in ((10, "few seconds"), (60, "minute"), (300, "5 minutes")):
        if seconds <= limit:
            return text
    return f"{seconds / 60:.0f} minutes"
