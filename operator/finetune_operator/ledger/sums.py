"""Sums over records of the ledger, or over the statuses of jobs. Exact: amounts are decimals and are never rounded."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from finetune_operator.ledger.amounts import amount, reported
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.objects import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """What is summed: one record, or the status of one job."""

    namespace: str
    uid: str
    """UID of the job."""
    profile: str
    model: str
    labels: Mapping[str, str]
    capacity: str
    """Kind of TPU capacity; empty if there was none."""
    attempts: int
    """Number of attempts that have ended."""
    chip_hours: Decimal
    cost: Decimal | None
    """None if the price is unknown."""
    currency: str


@dataclass(slots=True)
class CostSum:
    """The sum of a group."""

    jobs: set[str] = field(default_factory=set)
    """UIDs."""
    attempts: int = 0
    chip_hours: Decimal = Decimal(0)
    by_capacity: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """Chip hours by kind of TPU capacity."""
    cost: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """By currency."""
    unpriced: Decimal = Decimal(0)
    """Chip hours without a known price."""

    def add(self, item: CostItem) -> None:
        self.jobs.add(item.uid)
        self.attempts += item.attempts
        self.chip_hours += item.chip_hours
        if item.chip_hours:
            self.by_capacity[item.capacity] += item.chip_hours
        if item.cost is None:
            self.unpriced += item.chip_hours
        else:
            self.cost[item.currency] += item.cost


def item_of(record: LedgerRecord) -> CostItem:
    """Returns a record as it is summed."""
    return CostItem(
        namespace=record.namespace,
        uid=record.uid,
        profile=record.profile,
        model=record.model,
        labels=record.labels,
        capacity=str(record.capacity or ""),
        attempts=int(record.ends_attempt),
        chip_hours=record.chip_hours,
        cost=record.cost,
        currency=record.currency or "",
    )


def item_of_status(job: Object) -> CostItem | None:
    """Returns the usage in the status of a job; None if it has used nothing yet. Never raises."""
    metadata, status = _part(job, "metadata"), _part(job, "status")
    cost, resolved = _part(status, "cost"), _part(status, "resolved")
    attempts = _part(status, "attempts").get("total")
    if not cost and not attempts:
        return None
    return CostItem(
        namespace=str(metadata.get("namespace", "")),
        uid=str(metadata.get("uid", "")),
        profile=str(_part(resolved, "profile").get("name", "")),
        model=str(_part(resolved, "model").get("source", "")),
        labels=_part(metadata, "labels"),
        capacity=str(_part(resolved, "resources").get("capacity", "")),
        attempts=attempts if isinstance(attempts, int) else 0,
        chip_hours=amount(cost.get("chipHours")),
        cost=reported(cost.get("amount")),
        currency=str(cost.get("currency", "")),
    )


def summed(items: Iterable[CostItem], group: Callable[[CostItem], str]) -> tuple[dict[str, CostSum], CostSum]:
    """Returns the sum of each group, the most chip hours first, and that of all."""
    groups: defaultdict[str, CostSum] = defaultdict(CostSum)
    total = CostSum()
    for item in items:
        groups[group(item)].add(item)
        total.add(item)
    ordered = sorted(groups.items(), key=lambda pair: (-pair[1].chip_hours, pair[0]))
    return dict(ordered), total


def _part(found: Object, key: str) -> Object:
    value = found.get(key)
    return value if isinstance(value, Mapping) else {}
