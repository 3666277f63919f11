"""The ``StageError`` for each kind of failure of storage."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from finetune_contract.exit_codes import ExitCode
from finetune_storage import access_tokens, errors
from finetune_storage.errors import InvalidUri, StorageError
from finetune_trainer.errors import StageError

_LOG = logging.getLogger(__name__)
#: Characters of an error's text in a record.
_DETAIL = 300
#: Code, reason, sentence and remedy of each kind of error; the first that matches.
_FAILURES: tuple[tuple[type[StorageError], ExitCode, str, str, str], ...] = (
    (
        errors.ObjectMissing, ExitCode.INPUT_MISSING, "InputMissing", "the file or folder does not exist",
        "Check the address, or put the file there.",
    ),
    (
        errors.StorageUnauthenticated, ExitCode.PERMISSION_DENIED, "StoragePermissionDenied",
        "Google refuses the stage's account an access token",
        (
            "If its ServiceAccount has the annotation iam.gke.io/gcp-service-account, remove it, or grant the "
            "ServiceAccount roles/iam.workloadIdentityUser on the account that it names."
        ),
    ),
    (
        errors.StorageDenied, ExitCode.PERMISSION_DENIED, "StoragePermissionDenied", "access is denied",
        "Grant the stage's service account roles/storage.objectViewer there, or objectUser to write.",
    ),
    (
        errors.TokenUnavailable, ExitCode.UNAVAILABLE, "StorageUnavailable",
        "the node's metadata server gave no access token, even after retries",
        "The operator retries. If it persists, look at the gke-metadata-server pod of the node.",
    ),
    (
        StorageError, ExitCode.UNAVAILABLE, "StorageUnavailable", "storage did not respond, even after retries",
        "No action is needed: the operator retries.",
    ),
)  # fmt: skip


def log_retry(error: Exception) -> None:
    """Logs that a request is about to be repeated."""
    silent = "the metadata server" if isinstance(error, access_tokens.ERRORS) else "object storage"
    _LOG.warning("%s does not respond, retrying: %s", silent, error)


@contextmanager
def as_stage_errors() -> Iterator[None]:
    """Raises each StorageError as the failure that a stage reports. A full disk stays an OSError."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cause from None  # reported at the end of the stage
        raise stage_error(error) from error


def stage_error(error: StorageError) -> StageError:
    """Returns the failure that a stage reports."""
    if isinstance(error, InvalidUri):
        return StageError(
            ExitCode.BAD_REQUEST, "InvalidUri", "the trainer cannot read this URI", actual=repr(error.uri),
            expected=error.EXPECTED, fix="Correct the URI.",
        )  # fmt: skip
    _, code, reason, what, fix = next(row for row in _FAILURES if isinstance(error, row[0]))
    actual = "" if code is ExitCode.INPUT_MISSING else error.detail[:_DETAIL]
    return StageError(code, reason, what, where=error.uri, actual=actual, fix=fix)
