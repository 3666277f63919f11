"""Decides what is done about a job, and what its status says. Pure: no I/O, no clock.

``decide`` is the only entry: it turns an :class:`Observation` into a :class:`Decision` with one action and one status.
"""

from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide, finished
from finetune_operator.lifecycle.decision import (
    Action,
    Admit,
    Create,
    Decision,
    Delete,
    Deletion,
    DetailRequest,
    EventType,
    Finish,
    JobEvent,
    ObjectReference,
    Wait,
)
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    Observation,
    ReadFailure,
    RetryRecord,
    RunFolderView,
    TakeoverRecord,
)

__all__ = [
    "Action",
    "Admit",
    "AttemptFiles",
    "AttemptKey",
    "Create",
    "Decision",
    "Delete",
    "Deletion",
    "DetailRequest",
    "EventType",
    "Finish",
    "JobEvent",
    "ObjectReference",
    "Observation",
    "ReadFailure",
    "RetryRecord",
    "RunFolderView",
    "TakeoverRecord",
    "Wait",
    "decide",
    "finished",
]
