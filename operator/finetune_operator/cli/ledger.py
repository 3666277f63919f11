"""Access of commands to the operator's ledger, with the caller's credentials."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta

from finetune_contract import Stage
from finetune_operator.artifacts.port import RecordStore, StorageError
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.errors import CliError
from finetune_operator.planning.estimate.past_runs import DAYS, PastTrainings
from finetune_operator.reconcile.ledger_reader import LedgerReader

_LEDGER = re.compile(r"gs://[a-z0-9]\S*|file:///\S+")


def is_ledger(uri: str) -> bool:
    """Whether the text is the URI of a folder that can be a ledger."""
    return _LEDGER.fullmatch(uri) is not None


def ledger_named(uri: str) -> str:
    """Checks the URI of a ledger and returns it. Raises ValueError."""
    if not is_ledger(uri):
        raise ValueError(f"{uri!r} is not the URI of a folder: gs://bucket/folder or file:///folder.")
    return uri.rstrip("/")


def ledger_store() -> RecordStore:
    """Returns a store with the caller's credentials, for many small reads of one bucket."""
    # All calls are of one tenant, which has an eighth of the threads.
    return SharedStore(advice="Ask for roles/storage.objectViewer on the ledger.", threads=256)


@contextmanager
def ledger_errors(advice: str) -> Iterator[None]:
    """Raises CliError for StorageError. ``advice``: what to do without the ledger."""
    try:
        yield
    except StorageError as error:
        raise CliError(
            f"The ledger cannot be read: {error}",
            fix=f"Check its URI and your credentials (gcloud auth application-default login). {advice}",
        ) from error


async def past_trainings(store: RecordStore, ledger: str, today: date) -> PastTrainings:
    """Returns the trainings of all namespaces. Raises CliError."""
    reader = LedgerReader(store, ledger)
    with ledger_errors("Without --ledger, finetune plan shows no past runs."):
        since = today - timedelta(days=DAYS)
        return PastTrainings([record async for record in reader.records(since, today, stage=Stage.TRAIN)])
