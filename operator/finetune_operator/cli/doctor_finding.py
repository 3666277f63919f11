"""What a check of ``finetune doctor`` finds."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Result of one check."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The caller may not read it, or the cluster cannot show it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    state: State
    message: str
    fix: str = ""
    """The command that mends it, or that shows what is unknown. Empty if nothing is to be done."""


type Findings = Iterator[Finding]
