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

    check: "Check"
    state: State
    message: str
    fix: str = ""
    """The command that mends it, or that shows what is unknown. Empty if nothing is to be done."""


type Findings = Iterator[Finding]


class Check(StrEnum):
    """What is checked, in the order in which it should be mended."""

    CRDS = "crds"
    OPERATOR = "operator"
    JOBSET = "jobset"
    PROFILES = "profiles"
    ACCOUNTS = "accounts"
    QUEUES = "queues"
    NODES = "nodes"
    QUOTAS = "quotas"
    RIGHTS = "rights"
    STORAGE = "storage"
    IMAGES = "images"

    def ok(self, message: str) -> Finding:
        return Finding(self, State.OK, message)

    def missing(self, message: str, fix: str) -> Finding:
        return Finding(self, State.MISSING, message, fix)

    def unknown(self, message: str, fix: str = "") -> Finding:
        return Finding(self, State.UNKNOWN, message, fix)
