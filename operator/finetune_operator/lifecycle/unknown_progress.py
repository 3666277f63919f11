"""How long a job may run while its run folder, or the progress in it, cannot be read: ``spec.hangPolicy.blindSeconds``.

It counts from the transition of the condition RunFolderReadable.
"""

from datetime import datetime

from finetune_contract import ExitCode, Failure
from finetune_operator.api import ConditionStatus, ConditionType, Reason
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.attempts.stop_records import RUN_FOLDER_UNREADABLE
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.stages.spending import ForcedSuspension


def blind_left(observation: Observation, most: int | None, why: ReadFailure | None) -> float | None:
    """Returns how many of the ``most`` seconds are left. None: there is no limit, or the cause is not this run folder.

    Nothing runs while the job's pods are unknown: neither budgets nor deadlines could end it.
    """
    if why is not None and why.excess:
        return 0.0
    if most is None or why is None or not why.alone:
        return None
    known = observation.status.condition(ConditionType.RUN_FOLDER_READABLE)
    since = known.last_transition_time if known and known.status is ConditionStatus.FALSE else observation.now
    return (after(since, most) - observation.now).total_seconds()


def readable_since(observation: Observation) -> datetime | None:
    """Returns the time since which the run folder, which can be read now, could be read; None if the status does not
    say."""
    if observation.folder.progress_unknown:
        return observation.now
    known = observation.status.condition(ConditionType.RUN_FOLDER_READABLE)
    if known is None:
        return None
    return known.last_transition_time if known.status is ConditionStatus.TRUE else observation.now


def unseen(most: int | None, why: ReadFailure) -> Failure:
    """Returns the record of an attempt that is stopped because its progress cannot be read. No failure is counted."""
    when = "" if why.excess else f" after the {most} s of spec.hangPolicy.blindSeconds"
    return Failure(
        code=ExitCode.STOPPED,
        reason=RUN_FOLDER_UNREADABLE,
        message=f"Stopped{when} without knowledge of its progress: {why.message}"[:1024],
    )


def halted(why: ReadFailure) -> ForcedSuspension:
    """Returns why the operator suspends the job although its user has not."""
    if why.excess:
        return ForcedSuspension(
            reason=Reason.TOO_MANY_OBJECTS,
            message=f"The job's pods are unknown: {why.message}",
            fix="The job then continues automatically from its last checkpoint.",
        )
    return ForcedSuspension(
        reason=Reason.RUN_FOLDER_UNREADABLE,
        message=f"The progress of the training cannot be read: {why.message}",
        fix="Repair the run folder: the job then continues automatically from its last checkpoint.",
    )
