"""Chip hours and money, exact to six decimals, as ``status.cost`` and the ledger contain them."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal, InvalidOperation

from finetune_operator.api.status_stages import CostStatus, LedgerStatus
from finetune_operator.ledger.record import LedgerRecord

_NOTHING = Decimal(0)
_UNIT = Decimal("0.000001")
#: Of ``status.cost``: more is no usage that this operator has reported.
_MOST = Decimal(10) ** 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Chip hours and money."""

    chip_hours: Decimal = _NOTHING
    cost: Decimal = _NOTHING

    @classmethod
    def of(cls, reported: CostStatus | LedgerStatus | None) -> "Amounts":
        """Returns the amounts of ``status.cost`` or ``status.ledger``; what is absent is 0."""
        if reported is None:
            return cls()
        return cls(chip_hours=amount(reported.chip_hours), cost=amount(reported.amount))

    @classmethod
    def of_document(cls, reported: Mapping[str, object]) -> "Amounts":
        """Returns the amounts of ``cost`` or ``ledger`` in a status as it is stored; what is absent is 0."""
        return cls(chip_hours=amount(reported.get("chipHours")), cost=amount(reported.get("amount")))

    @classmethod
    def of_record(cls, record: LedgerRecord) -> "Amounts":
        """Returns the amounts of a record of the ledger."""
        return cls(chip_hours=record.chip_hours, cost=record.cost or _NOTHING)

    def __bool__(self) -> bool:
        return bool(self.chip_hours or self.cost)

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(chip_hours=self.chip_hours + other.chip_hours, cost=self.cost + other.cost)

    def __sub__(self, other: "Amounts") -> "Amounts":
        """Returns the difference, of each amount at least 0."""
        return Amounts(
            chip_hours=max(_NOTHING, self.chip_hours - other.chip_hours),
            cost=max(_NOTHING, self.cost - other.cost),
        )

    def at_most(self, other: "Amounts") -> "Amounts":
        return Amounts(chip_hours=min(self.chip_hours, other.chip_hours), cost=min(self.cost, other.cost))

    def at_least(self, other: "Amounts") -> "Amounts":
        return Amounts(chip_hours=max(self.chip_hours, other.chip_hours), cost=max(self.cost, other.cost))


def amount(text: object) -> Decimal:
    """Returns hours or money of a status; 0 if it is none that the operator has reported."""
    return reported(text) or _NOTHING


def reported(text: object) -> Decimal | None:
    """Returns hours or money of a status; None if it is none that the operator has reported."""
    try:
        found = Decimal(text) if isinstance(text, str) else None
        # Six decimals, as the operator reports: never rounded up.
        return found.quantize(_UNIT, ROUND_DOWN) if found is not None and 0 <= found < _MOST else None
    except InvalidOperation:
        return None


def text_of(amount: Decimal) -> str:
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
