"""Retries on request: the operator acts once on each higher ``spec.retry.generation``."""

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.observation import Observation, RetryRecord
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.retry_budget import too_many_attempts
from finetune_operator.planning import Refused
from finetune_operator.planning.requests import MAX_ATTEMPT


def requested_generation(observation: Observation) -> int | None:
    """Returns the generation to act on now. None: there is none, or whether it was acted on before is unknown."""
    wanted = observation.job.control.retry_generation
    return wanted if not observation.folder.unreadable and wanted > acted_generation(observation) else None


def acted_generation(observation: Observation) -> int:
    """Returns the newest generation that was acted on."""
    recorded = observation.folder.retry.generation if observation.folder.retry else 0
    return max(recorded, observation.status.retry_generation or 0)


def retry_record(observation: Observation, stages: JobStages, generation: int) -> RetryRecord | None:
    """Returns the record to write to the run folder; None if every stage has succeeded and none is to be repeated.

    Raises Refused if a stage that is to be repeated has no attempt number left.
    """
    named = observation.job.control.retry_from
    if named is None and stages.succeeded:
        return None
    from_stage = named or stages.current.stage
    first = {stage: _first(stages, stage) for stage in Stage}
    for stage, number in first.items():
        if number > MAX_ATTEMPT and (stage.order >= from_stage.order or not stages[stage].done):
            failure = too_many_attempts(stage)
            raise Refused(Reason.TOO_MANY_ATTEMPTS, f"{failure.message} {failure.fix}")
    return RetryRecord(generation=generation, from_stage=from_stage, first=first)


def _first(stages: JobStages, stage: Stage) -> int:
    """Returns the number of the first JobSet that counts: that of the live attempt, or else the next one."""
    attempts = stages[stage].attempts
    if not attempts:
        return 1
    last = attempts[-1]
    return last.key.number if last.live else last.key.number + 1
