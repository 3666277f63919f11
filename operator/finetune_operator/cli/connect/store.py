"""The object store, read with the caller's own credentials, and what its errors mean for a person."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from finetune_operator.artifacts.port import (
    BucketMissing,
    ObjectStore,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli import text
from finetune_operator.cli.errors import CliError
from finetune_operator.results.errors import ResultsError

#: Seconds of one call. On a slow line, eight parts of 2 MiB share some 60 kB/s.
_CALL_SECONDS = 300
_LOCAL_STORE = "for a local cluster, set STORAGE_EMULATOR_HOST (`python -m devcluster env` prints it)"


def caller_store() -> ObjectStore:
    """Returns the store of any URI, for reads with the caller's own credentials."""
    # A person who has logged in without a project for quotas gets a warning, which these reads do not need.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"google\.auth\b")
    return SharedStore(advice="", seconds=_CALL_SECONDS)


@contextmanager
def explained() -> Iterator[None]:
    """Converts a StorageError or ResultsError inside to a CliError with one remedy."""
    try:
        yield
    except StorageError as error:
        raise explanation(error) from error
    except ResultsError as error:
        raise CliError(text.one_line(error.message), fix=error.fix) from error


def explanation(error: StorageError) -> CliError:
    """Returns what to report of an error of the store, with one remedy."""
    where, why = text.one_line(error.uri), text.one_line(error.message)[:400]
    remote = where.startswith("gs://")
    if isinstance(error, StorageUnauthenticated):
        return CliError(
            f"{where} cannot be read: {why}",
            fix=f"Log in: `gcloud auth application-default login`; {_LOCAL_STORE}.",
        )
    if isinstance(error, StorageDenied):
        return CliError(
            f"{where} cannot be read: {why}",
            fix="Ask the bucket's owner for roles/storage.objectViewer on that folder, or log in as another user: "
            "`gcloud auth application-default login`."
            if remote
            else "Run the command as a user that may read this folder.",
        )
    if isinstance(error, BucketMissing):
        return CliError(str(error), fix=f"Check the bucket's name; {_LOCAL_STORE}.")
    if isinstance(error, StorageUnavailable):
        return CliError(
            f"The store does not respond: {where}: {why}",
            fix=f"Check the network and run the command again; {_LOCAL_STORE}."
            if remote
            else "Check the disk and run the command again.",
        )
    return CliError(f"{where} cannot be read: {why}")
