"""How long training waited before its processes ran, which only the operator can observe."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.pods import all_scheduled_at, running_span


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Waiting times in seconds."""

    queued: float = 0.0
    """Until Kueue granted quota."""
    provisioning: float = 0.0
    """From then until all processes ran: for nodes and images."""
    pods: float = 0.0
    """The part of ``provisioning`` after every pod was scheduled."""


def training_wait_times(attempts: Iterable[Attempt], now: datetime) -> WaitTimes:
    """Returns the sum over all attempts at training: a lower bound, without JobSets that another client has deleted."""
    every = (wait_times(each, now) for each in attempts if each.key.stage is Stage.TRAIN)
    known = [each for each in every if each]
    return WaitTimes(
        queued=sum((each.queued for each in known), 0.0),
        provisioning=sum((each.provisioning for each in known), 0.0),
        pods=sum((each.pods for each in known), 0.0),
    )


def wait_times(attempt: Attempt, now: datetime) -> WaitTimes | None:
    """Returns the waits of one attempt by its failure record, else by its JobSet and pods; None if they are unknown.

    They are also unknown for a restart inside a JobSet, which keeps its slice.
    """
    recorded = attempt.recorded
    if recorded and (recorded.queued is not None or recorded.provisioning is not None):
        return WaitTimes(
            queued=recorded.queued or 0.0,
            provisioning=recorded.provisioning or 0.0,
            pods=recorded.pods or 0.0,
        )
    created = attempt.jobset.creation_timestamp if attempt.jobset else None
    if attempt.jobset is None or created is None or attempt.key.restart:
        return None
    if attempt.workload and attempt.workload.evictions:
        # The attempt may have run before the eviction, for an unknown time.
        created = None
    free = attempt.jobset.unsuspended_at(queued=attempt.jobset.queue is not None)
    if free is None:
        return WaitTimes(queued=_seconds(created, now))
    # The start of an attempt that has run and has no pods now is unknown.
    ran = attempt.files is not None and attempt.files == attempt.written
    begun = _begun(attempt) or (now if attempt.live and not ran else None)
    waited_for = _seconds(free, begun)
    return WaitTimes(
        queued=_seconds(created, free),
        provisioning=waited_for,
        pods=min(waited_for, _seconds(all_scheduled_at(attempt.pods), begun)),
    )


def recorded_waits(attempt: Attempt, now: datetime) -> dict[str, float]:
    """Returns the waits as fields of the attempt's failure record; empty if they are unknown, and for other stages."""
    found = wait_times(attempt, now) if attempt.key.stage is Stage.TRAIN else None
    return {} if found is None else asdict(found)


def _begun(attempt: Attempt) -> datetime | None:
    """Returns when the attempt's last process started; None if none has started, or the time is unknown.

    Missing pods do not count: they were deleted, or will be created.
    """
    result = attempt.result
    if span := running_span(attempt.pods):
        return span[0]
    return result.started if result else None


def _seconds(begin: datetime | None, end: datetime | None) -> float:
    """Returns the seconds between two times: 0 if one is unknown, and never negative, because clocks differ."""
    return max(0.0, (end - begin).total_seconds()) if begin and end else 0.0
