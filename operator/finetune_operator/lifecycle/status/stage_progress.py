"""``status.stages[].progress``: what a running stage reports that it is doing, for people."""

from datetime import datetime

from finetune_contract import StageProgress
from finetune_operator.api.status_stages import StageProgressStatus, StageStatus
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.deadlines import stepped
from finetune_operator.lifecycle.children.pods import last_start
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages


def with_stage_progress(
    statuses: tuple[StageStatus, ...], observation: Observation, stages: JobStages, *, moved: bool
) -> tuple[StageStatus, ...]:
    """Returns ``status.stages`` with the progress of the running attempt; ``statuses`` itself if there is none.

    ``moved``: whether the status is written anyway.
    """
    attempt = stages.live
    if attempt is None or not attempt.running or stepped(attempt, observation.folder.progress):
        return statuses
    before = next((each for each in observation.status.stages or () if each.name is attempt.key.stage), None)
    known = before.progress if before and before.attempt == attempt.ordinal else None
    progress = _progress(attempt, observation, known, moved=moved)
    if progress is None:
        return statuses
    return tuple(
        each.model_copy(update={"progress": progress}) if each.name is attempt.key.stage else each
        for each in statuses
    )


def described(progress: StageProgressStatus) -> str:
    """Returns the progress for a sentence: ``converting the weights, 12 of 37 tensors``."""
    if progress.unit is None:
        return progress.doing
    total = "" if progress.total is None else f" of {progress.total:,}"
    return f"{progress.doing}, {progress.done:,}{total} {progress.unit}"


def _progress(
    attempt: Attempt, observation: Observation, known: StageProgressStatus | None, *, moved: bool
) -> StageProgressStatus | None:
    """Returns the newest progress, or ``known`` if there is no newer one, or it is too early to report it."""
    record, begun = observation.folder.stage_progress.get(attempt.key), last_start(attempt.pods)
    # A run before an eviction or a replaced pod may have written the record.
    if record is None or (begun is not None and record.updated < begun):
        return known
    # No later than now: whatever times a trainer writes, they have the status written no more often.
    updated = min(record.updated, observation.now)
    early = known and (updated - known.last_update_time).total_seconds() < observation.status_pace()
    return known if early and not moved else _status(record, updated)


def _status(record: StageProgress, updated: datetime) -> StageProgressStatus | None:
    """Returns the record as a status. Its texts are a trainer's, so they may be anything."""
    doing, unit = _one_line(record.doing), _one_line(record.unit)
    if not doing:
        return None
    sized = record.total_bytes is not None
    return StageProgressStatus.model_construct(
        doing=doing,
        done=record.done,
        total=record.total if unit else None,
        unit=unit or None,
        done_bytes=record.done_bytes if sized else None,
        total_bytes=record.total_bytes,
        since=whole_second(min(record.since, updated)),
        last_update_time=whole_second(updated),
    )


def _one_line(text: str) -> str:
    return "".join(each for each in " ".join(text.split()) if each.isprintable())
