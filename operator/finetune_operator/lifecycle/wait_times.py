"""How long training waited before its processes ran: what the trainer cannot know, and the operator alone can."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.kueue import evictions
from finetune_operator.lifecycle.times import parse
from finetune_operator.planning.queueing import QUEUE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Seconds."""

    queued: float = 0.0
    """For quota."""
    provisioning: float = 0.0
    """From then until all processes ran: nodes, images."""
    pods: float = 0.0
    """Of these, from the time at which every pod had its node."""

    def __add__(self, other: "WaitTimes") -> "WaitTimes":
        return WaitTimes(
            queued=self.queued + other.queued,
            provisioning=self.provisioning + other.provisioning,
            pods=self.pods + other.pods,
        )


def training_wait_times(attempts: Iterable[Attempt], now: datetime) -> WaitTimes:
    """Over all attempts at training; at least, since nobody tells of a JobSet that was deleted by somebody else."""
    waits = (wait_times(each, now) for each in attempts if each.key.stage is Stage.TRAIN)
    return sum((each for each in waits if each), start=WaitTimes())


def wait_times(attempt: Attempt, now: datetime) -> WaitTimes | None:
    """Of one attempt: as its JobSet and pods tell it, or the record of its end where they are gone. None where nobody
    tells, as of a restart inside a JobSet, which keeps its place."""
    noted = attempt.files.failure if attempt.files else None
    if noted and (noted.queued is not None or noted.provisioning is not None):
        return WaitTimes(
            queued=noted.queued or 0.0, provisioning=noted.provisioning or 0.0, pods=noted.pods or 0.0
        )
    made = attempt.jobset["metadata"].get("creationTimestamp") if attempt.jobset else None
    if attempt.jobset is None or made is None or attempt.key.restart:
        return None
    created: datetime | None = parse(made)
    in_queue = QUEUE_LABEL in attempt.jobset["metadata"].get("labels", {})
    if evictions(attempt.workload):
        # It has run in between, and nobody tells for how long.
        created = None
    free = children.unsuspended_at(attempt.jobset, queued=in_queue)
    if free is None:
        return WaitTimes(queued=_seconds(created, now))
    # Of one that has run and has no pods now, nobody can tell any more.
    ran = attempt.files is not None and attempt.files == attempt.written
    begun = _begun(attempt) or (now if attempt.live and not ran else None)
    waited_for = _seconds(free, begun)
    return WaitTimes(
        queued=_seconds(created, free),
        provisioning=waited_for,
        pods=min(waited_for, _seconds(children.all_on_nodes_at(attempt.pods), begun)),
    )


def to_note(attempt: Attempt, now: datetime) -> dict[str, float]:
    """The same, as the record of its end holds it."""
    found = wait_times(attempt, now) if attempt.key.stage is Stage.TRAIN else None
    if found is None:
        return {}
    return {"queued": found.queued, "provisioning": found.provisioning, "pods": found.pods}


def _begun(attempt: Attempt) -> datetime | None:
    """When its last process began; None where none has, or nobody can tell any more. A pod that is missing once others
    have begun is gone, or about to come."""
    result = attempt.files.result if attempt.files else None
    if span := children.running_span(attempt.pods):
        return span[0]
    return result.started if result else None


def _seconds(begin: datetime | None, end: datetime | None) -> float:
    """0 where one is not known; never negative, for the clocks of several machines take part."""
    return max(0.0, (end - begin).total_seconds()) if begin and end else 0.0
