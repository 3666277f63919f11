"""A number of rows that no memory determines, in place of ``DeviceRowCapacity``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRowCapacity:
    """A fixed number of rows, regardless of their size."""

    number: int
    groups: int = 1

    def rows(self, *, tokens: int, logits: int) -> int:
        return self.number
