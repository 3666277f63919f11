"""Retries by hand: ``spec.retry.generation`` acts once for each higher number."""

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.observation import Observation, RetryRecord
from finetune_operator.lifecycle.retry_budget import too_many_attempts
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.planning import Refused
from finetune_operator.planning.requests import MAX_ATTEMPT


def requested_generation(observation: Observation) -> int | None:
    """The generation that is to be acted on now; None: none, or it cannot be told whether it was acted on already."""
    wanted = observation.job["spec"].get("retry", {}).get("generation", 0)
    return wanted if not observation.folder.unreadable and wanted > acted_generation(observation) else None


def acted_generation(observation: Observation) -> int:
    """The newest generation that was acted on."""
    noted = observation.folder.retry.generation if observation.folder.retry else 0
    return max(noted, reported_generation(observation))


def reported_generation(observation: Observation) -> int:
    """The newest generation that the status speaks of."""
    found: int = (observation.job.get("status") or {}).get("retryGeneration", 0)
    return found


def revived(observation: Observation) -> bool:
    """Whether an ended job was asked to go on, and its status does not show it yet."""
    return observation.folder.retry is not None and observation.folder.retry.generation > reported_generation(
        observation
    )


def retry_record(observation: Observation, stages: JobStages, generation: int) -> RetryRecord | None:
    """What to leave in the run folder; None where everything was done, and no stage is named to be done again.

    Raises Refused where a stage that is to be done again has no number left.
    """
    named = observation.job["spec"]["retry"].get("fromStage")
    if named is None and stages.succeeded:
        return None
    from_stage = Stage(named) if named else stages.current.stage
    first = {stage: _first(stages, stage) for stage in Stage}
    for stage, number in first.items():
        if number > MAX_ATTEMPT and (stage.order >= from_stage.order or not stages[stage].done):
            failure = too_many_attempts(stage)
            raise Refused(Reason.TOO_MANY_ATTEMPTS, f"{failure.message} {failure.fix}")
    return RetryRecord(generation=generation, from_stage=from_stage, first=first)


def _first(stages: JobStages, stage: Stage) -> int:
    """The number from which on JobSets count: the next one's, or that of the one that runs."""
    attempts = stages[stage].attempts
    if not attempts:
        return 1
    last = attempts[-1]
    return last.key.number if last.live else last.key.number + 1
