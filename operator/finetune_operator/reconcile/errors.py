"""How a failed reconcile appears in the job's status."""

from datetime import datetime
from typing import Any

from finetune_operator.api import ConditionType, FineTuneJobStatus, Phase
from finetune_operator.artifacts.port import StorageDenied, StorageError
from finetune_operator.cluster.port import Conflict, NotFound, Rejected, ResponseTooLarge, Unavailable
from finetune_operator.lifecycle.children.webhook_failure import webhook_failure
from finetune_operator.lifecycle.decision import Admit, Decision
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import RetryRecord
from finetune_operator.lifecycle.status.conditions import with_error
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
    (NotFound, "RefusedByAPIServer"),
    (Unavailable, "APIServerUnavailable"),
    (StorageDenied, "StoragePermissionDenied"),
    (StorageError, "StorageUnavailable"),
)
#: Reason -> remedy.
_FIX = {
    "RefusedByAPIServer": "Fix what the message names, or the operator's role.",
    "StoragePermissionDenied": "Grant the operator's service account the role that the message names.",
}
#: What holds of a job although the decision was not carried out. Stages and attempts may be those after its writes.
_DECIDED = ("observed_generation", "resolved", "active_time", "cost", "ledger")
#: The same, unless the decision ends the job.
_POSITION = ("phase", "stage", "waiting")
#: Characters. A condition's message may have 32,768, which is too long to read.
_MESSAGE_LIMIT = 1024
#: Characters of the limit that the remedy and the time of the next retry may take.
_REMEDY_LIMIT = 200


def reason_of(error: Exception) -> str:
    """Returns the stable CamelCase reason of an error, for conditions and metrics."""
    if isinstance(error, Refused):
        return str(error.reason)
    if _webhook(error):
        return "WebhookUnavailable"
    return next((name for kind, name in _REASONS if isinstance(error, kind)), "InternalError")


def status_with_error(
    job: Job,
    error: Exception,
    *,
    now: datetime,
    retry_in: float,
    decision: Decision | None = None,
) -> FineTuneJobStatus:
    """Returns the status of an unfinished job with the error of a failed reconcile in its conditions and summary.

    ``decision``: what could not be carried out; None: nothing was decided, and
    all else in the status is unchanged. ``retry_in`` is the interval of the retries in seconds. An internal error is
    named by its type only. The next successful reconcile writes the whole status and so removes the error.
    """
    reason = reason_of(error)
    text = str(error) or type(error).__name__
    if webhook := _webhook(error):
        text = f"{text.partition(': ')[0]}: {webhook}"
    if reason == "InternalError":
        text = f"internal error of the operator ({type(error).__name__}); its log has the details"
    parts = [text[: _MESSAGE_LIMIT - _REMEDY_LIMIT].rstrip("."), _FIX.get(reason, "").rstrip(".")]
    message = ". ".join(part for part in parts if part) + f". Retried every {_rounded_duration(retry_in)}."
    previous, generation = job.status, job.generation
    decided, valid = _decided(previous, decision, generation) if decision else ({}, False)
    conditions = with_error(
        previous.conditions or (), reason, message, valid=valid, generation=generation, now=now
    )
    return previous.model_copy(update={**decided, "conditions": conditions, "summary": message})


def _decided(previous: FineTuneJobStatus, decision: Decision, generation: int) -> tuple[dict[str, Any], bool]:
    """Returns the fields of the status that the decision sets although it was not carried out, and whether it has found
    the job valid."""
    status = decision.status
    if isinstance(decision.action, Admit):
        # Decided on before anything else is known of the job. Only a retry may be that of a spec that is refused now.
        shown = {"observed_generation": generation, "phase": previous.phase or Phase.VALIDATING}
        return shown, not isinstance(decision.action.write, RetryRecord)
    ends = status.phase is not None and status.phase.finished
    shown = {name: getattr(status, name) for name in (*_DECIDED, *(() if ends else _POSITION))}
    return shown, status.is_true(ConditionType.VALID)


def _webhook(error: Exception) -> str | None:
    return webhook_failure(str(error)) if isinstance(error, Unavailable) else None


def _rounded_duration(seconds: float) -> str:
    """Returns a duration rounded up to a common phrase, so that the text does not change with every retry."""
    for limit, text in ((10, "few seconds"), (60, "minute"), (300, "5 minutes")):
        if seconds <= limit:
            return text
    return f"{seconds / 60:.0f} minutes"
