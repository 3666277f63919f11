"""Where a ledger has its records: ``<ledger>/v1/<day>/<namespace>/<uid>/<stage>-<number>[.<restart>]-<sequence>.json``.

A name depends only on the job as it is stored, and on what has ended since. So a record that is written again after a
crash has the same name, and an object of that name is never replaced.
"""

from datetime import date

from finetune_operator.ledger.record import LedgerRecord


def day_folder(ledger: str, day: date, namespace: str | None = None) -> str:
    """Returns the URI of the folder with the records of one day, of all namespaces or of one."""
    folder = f"{ledger.rstrip('/')}/v1/{day.isoformat()}"
    return folder if namespace is None else f"{folder}/{namespace}"


def record_uri(ledger: str, record: LedgerRecord) -> str:
    """Returns the URI of a record."""
    restart = f".{record.restart}" if record.restart else ""
    name = f"{record.stage.short}-{record.number}{restart}-{record.sequence}.json"
    return f"{day_folder(ledger, record.day, record.namespace)}/{record.uid}/{name}"


def overlaps(ledger: str, folder: str) -> bool:
    """Whether one of two URIs of folders is, or is inside, the other one."""
    one, other = (f"{uri.rstrip('/')}/" for uri in (ledger, folder))
    return one.startswith(other) or other.startswith(one)
