"""What is observed of a job, and what is decided from it. Pure: no I/O, no clock."""

from finetune_operator.lifecycle.decide import decide, finished
from finetune_operator.lifecycle.decision import CloserLook, Concerned, Decision, Deletion, EventType, Notice
from finetune_operator.lifecycle.observed import (
    AttemptFiles,
    AttemptKey,
    Observed,
    Retry,
    RunFolderView,
    Takeover,
    Unreadable,
)

__all__ = [
    "AttemptFiles",
    "AttemptKey",
    "CloserLook",
    "Concerned",
    "Decision",
    "Deletion",
    "EventType",
    "Notice",
    "Observed",
    "Retry",
    "RunFolderView",
    "Takeover",
    "Unreadable",
    "decide",
    "finished",
]
