"""``finetune costs``: chip hours and money, from the operator's ledger or from the statuses of jobs."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from finetune_operator.artifacts.port import RecordStore, StorageDenied, StorageError
from finetune_operator.cli import text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.ledger import is_ledger, ledger_errors
from finetune_operator.cli.printing import json_text, table
from finetune_operator.cluster.port import DEPLOYMENTS, Rejected
from finetune_operator.ledger.amounts import text_of
from finetune_operator.ledger.sums import CostItem, CostSum, item_of, item_of_status, summed
from finetune_operator.objects import Object
from finetune_operator.reconcile.ledger_reader import LedgerReader

type Write = Callable[[str], None]

#: Labels of the chart's Deployment.
_OPERATOR = {"app.kubernetes.io/name": "finetune-operator", "app.kubernetes.io/component": "operator"}
_VARIABLE = "FINETUNE_LEDGER"
_FIELDS: Mapping[str, Callable[[CostItem], str]] = {
    "namespace": lambda item: item.namespace,
    "profile": lambda item: item.profile,
    "model": lambda item: item.model,
}
_LABEL = "label="
#: Format of the JSON.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuery:
    """What is summed, and how it is shown."""

    by: str
    """``namespace``, ``profile``, ``model`` or ``label=KEY``."""
    since: date
    """First day (UTC)."""
    until: date
    """Last day (UTC), included."""
    namespace: str | None = None
    """The only namespace; None: all."""
    output: str | None = None
    """``json``, ``wide``, or None for a table."""

    @property
    def group(self) -> Callable[[CostItem], str]:
        """Returns the group of an item."""
        if self.by.startswith(_LABEL):
            key = self.by.removeprefix(_LABEL)
            return lambda item: str(item.labels.get(key, ""))
        return _FIELDS[self.by]


def parse_by(value: str) -> str:
    """Checks the value of ``--by``. Raises ValueError."""
    if value in _FIELDS or (value.startswith(_LABEL) and len(value) > len(_LABEL)):
        return value
    raise ValueError(f"{value!r} is not one of {', '.join(map(repr, _FIELDS))}, 'label=KEY'.")


def day_named(value: str, today: date) -> date:
    """Returns a day of ``--since`` or ``--until``: a date, or a number of days before today. Raises ValueError."""
    if days := re.fullmatch(r"([0-9]{1,4})d", value):
        return today - timedelta(days=int(days[1]))
    try:
        found = date.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither a date such as 2026-11-01 nor days such as 30d.") from None
    if found > today:
        raise ValueError(f"{value} is in the future.")
    return found


async def show_ledger(store: RecordStore, ledger: str, query: CostQuery, write: Write) -> None:
    """Prints the sums of a ledger. Raises CliError."""
    advice = "Without a ledger, finetune costs sums the statuses of existing jobs."
    with ledger_errors(advice):
        await _show_ledger(store, ledger, query, write)


async def show_costs(  # noqa: PLR0917  as the command passes them
    connection: Connection,
    store: RecordStore,
    operator_namespace: str,
    everywhere: bool,
    query: CostQuery,
    write: Write,
) -> None:
    """Prints the sums of the ledger of the operator in ``operator_namespace``, if the caller may read both.

    Otherwise prints the sums of the statuses of jobs, of the connection's namespace or of all (``everywhere``), and
    says so. Raises CliError.
    """
    try:
        ledger = await _operators_ledger(connection, operator_namespace)
    except Rejected as error:
        ledger, why = (
            None,
            f"you may not read the Deployments of namespace {operator_namespace} ({error.status})",
        )
    else:
        why = f"no operator in namespace {operator_namespace} names a ledger"
    if ledger is not None:
        try:
            await _show_ledger(store, ledger, query, write)
        except StorageDenied:
            why = f"you may not read the ledger {ledger}"
        except StorageError as error:
            raise CliError(f"The ledger does not respond: {error}", fix="Try again later.") from error
        else:
            return
    scope = query.namespace or (None if everywhere else connection.namespace)
    items = [
        item
        async for job in connection.jobs(everywhere=scope is None)
        if _may_have_used(job, query) and (item := item_of_status(job)) is not None
    ]
    where = f"namespace {scope}" if scope else "all namespaces"
    source = {"source": "statuses", "namespace": scope, "why": why}
    head = (
        f"Statuses of the existing jobs of {where}, created by {query.until} (UTC), that ran since {query.since}. "
        "A status has no days: deleted jobs are missing, and usage of these jobs before and after these days is "
        f"included, because {why}."
    )
    _show(items, query, source, head, write)


async def _show_ledger(store: RecordStore, ledger: str, query: CostQuery, write: Write) -> None:
    reader = LedgerReader(store, ledger)
    items = [item_of(each) async for each in reader.records(query.since, query.until, query.namespace)]
    where = f", namespace {query.namespace}" if query.namespace else ""
    source = {
        "source": "ledger",
        "ledger": ledger,
        "namespace": query.namespace,
        "unreadable": reader.unreadable,
    }
    days = f"{query.since} to {query.until} (UTC)"
    head = f"Ledger {ledger}{where}, {days}. Attempts that still run count up to yesterday."
    _show(items, query, source, head, write)
    if reader.unreadable and query.output != "json":
        write(f"{reader.unreadable} objects in the ledger are no records that this release reads.")


async def _operators_ledger(connection: Connection, namespace: str) -> str | None:
    """Returns the ledger of the operator in that namespace. Raises CliError if there are several."""
    found = {
        str(variable.get("value") or "")
        for deployment in await connection.list(DEPLOYMENTS, namespace, labels=_OPERATOR)
        for container in deployment["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env") or ()
        if variable.get("name") == _VARIABLE
    }
    ledgers = sorted(uri.rstrip("/") for uri in found if is_ledger(uri))
    if len(ledgers) > 1:
        raise CliError(
            f"The operators in namespace {namespace} have several ledgers: {', '.join(ledgers)}.",
            fix="Choose one with --ledger.",
        )
    return ledgers[0] if ledgers else None


def _may_have_used(job: Object, query: CostQuery) -> bool:
    """Whether a job existed and ran in the period, or ran after it: a status does not tell on which days."""
    active = (job.get("status") or {}).get("activeTime") or {}
    last = text.instant(active.get("asOf"))
    created = text.instant((job.get("metadata") or {}).get("creationTimestamp"))
    began = created is None or created.date() <= query.until
    return last is not None and last.date() >= query.since and began


def _show(items: list[CostItem], query: CostQuery, source: Object, head: str, write: Write) -> None:
    groups, total = summed(items, query.group)
    if query.output == "json":
        write(_json(groups, total, query, source))
        return
    write(text.cell(head))
    for line in table(list(_rows(groups, total, query))):
        write(line)


def _json(groups: Mapping[str, CostSum], total: CostSum, query: CostQuery, source: Object) -> str:
    document = {
        "format": _FORMAT,
        **source,
        "by": query.by,
        "since": query.since.isoformat(),
        "until": query.until.isoformat(),
        "groups": [{"group": name, **_document(each)} for name, each in groups.items()],
        "total": _document(total),
    }
    return json_text(document)


def _document(each: CostSum) -> Object:
    return {
        "jobs": len(each.jobs),
        "attempts": each.attempts,
        "chipHours": text_of(each.chip_hours),
        "chipHoursByCapacity": {name: text_of(hours) for name, hours in sorted(each.by_capacity.items())},
        "cost": {currency: text_of(amount) for currency, amount in sorted(each.cost.items()) if currency},
        "unpricedChipHours": text_of(each.unpriced),
    }


def _rows(groups: Mapping[str, CostSum], total: CostSum, query: CostQuery) -> Iterator[tuple[str, ...]]:
    capacities = sorted(total.by_capacity) if query.output == "wide" else []
    title = query.by.removeprefix(_LABEL).upper()
    more = [f"{name or 'unknown'} hours".upper() for name in capacities]
    yield tuple(map(text.cell, (title, "JOBS", "ATTEMPTS", "CHIP HOURS", *more, "COST")))
    for name, each in groups.items():
        yield _row(name, each, capacities)
    yield _row("TOTAL", total, capacities)


def _row(name: str, each: CostSum, capacities: list[str]) -> tuple[str, ...]:
    return (
        text.cell(name),
        str(len(each.jobs)),
        str(each.attempts),
        f"{each.chip_hours:,.2f}",
        *(f"{each.by_capacity.get(capacity, Decimal(0)):,.2f}" for capacity in capacities),
        text.cell(_money(each)),
    )


def _money(each: CostSum) -> str:
    known = [f"{amount:,.2f} {currency}" for currency, amount in sorted(each.cost.items()) if currency]
    return " + ".join([*known, *([f"{each.unpriced:,.2f} h unpriced"] if each.unpriced else [])])
