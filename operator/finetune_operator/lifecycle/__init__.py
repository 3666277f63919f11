"""What is observed of a job, and what is decided from it. Pure: no I/O, no clock."""

from finetune_operator.lifecycle.decide import decide, finished
from finetune_operator.lifecycle.decision import (
    Decision,
    Deletion,
    DetailRequest,
    EventType,
    JobEvent,
    ObjectReference,
)
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    AttemptKey,
    Observation,
    ReadFailure,
    RetryRecord,
    RunFolderView,
    TakeoverRecord,
)

__all__ = [
    "AttemptFiles",
    "AttemptKey",
    "Decision",
    "Deletion",
    "DetailRequest",
    "EventType",
    "JobEvent",
    "ObjectReference",
    "Observation",
    "ReadFailure",
    "RetryRecord",
    "RunFolderView",
    "TakeoverRecord",
    "decide",
    "finished",
]
