"""Calendar months in UTC, and the budget that a profile gives each of its namespaces for one."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Self

_LAST: Final = 12


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month in UTC."""

    year: int
    number: int
    """From 1 to 12."""

    @classmethod
    def of(cls, moment: date) -> Self:
        """Returns the month of a day (UTC), or of a moment with a time zone."""
        day = moment.astimezone(UTC) if isinstance(moment, datetime) else moment
        return cls(day.year, day.month)

    @property
    def first(self) -> date:
        return date(self.year, self.number, 1)

    @property
    def previous(self) -> Self:
        return type(self).of(self.first - timedelta(days=1))

    @property
    def begin(self) -> datetime:
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """When the next month begins."""
        year, number = (self.year + 1, 1) if self.number == _LAST else (self.year, self.number + 1)
        return datetime(year, number, 1, tzinfo=UTC)

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyBudget:
    """What the jobs of a namespace may use under a profile in a month, and what the operator knows of their usage,
    apart from what one job, whose budget this is, has used since its last record. Amounts are chip hours."""

    profile: str
    month: Month
    limit: float
    recorded: float | None
    """Usage that the ledger contains. None: unknown, because the operator has not read the month's records."""
    others: float = 0.0
    """What other jobs have used since their last records, until now."""
    chips: int = 0
    """Chips on which processes of other jobs run now."""
    own: float = 0.0
    """Usage of the job that is recorded, of all months. Its status may show less after a crash of the operator."""
