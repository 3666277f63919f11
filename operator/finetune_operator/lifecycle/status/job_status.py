"""The complete status of a job, built once per decision."""

from finetune_operator.api import ConditionType, FineTuneJobStatus, Phase
from finetune_operator.lifecycle.attempts.pending_records import with_pending
from finetune_operator.lifecycle.decision import Delete, Finish, NextStep
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.build import (
    build_status,
    moving_parts,
    usage_is_old,
    with_unplanned_usage,
)
from finetune_operator.lifecycle.status.conditions import OUTCOME, TRUE, as_conditions

#: Conditions that do not depend on the run folder.
_WITHOUT_FOLDER = (
    ConditionType.VALID,
    ConditionType.QUOTA_RESERVED,
    ConditionType.RUNNING,
    ConditionType.WITHIN_BUDGET,
    ConditionType.RUN_FOLDER_READABLE,
    ConditionType.SUSPENDED,
    *OUTCOME,
)


def job_status(observation: Observation, step: NextStep) -> FineTuneJobStatus:
    """Returns the status. The same observation and step give the same status."""
    status = _base(observation, step)
    if step.retry_generation is not None:
        status = status.model_copy(update={"retry_generation": step.retry_generation})
    if step.summary is not None:
        status = status.model_copy(update={"summary": step.summary})
    if step.not_retried is not None:
        status = status.model_copy(update={"summary": f"Not retried: {step.not_retried.message}"})
    return status if step.pending is None else with_pending(status, step.pending)


def _base(observation: Observation, step: NextStep) -> FineTuneJobStatus:
    previous = observation.status
    if step.state is None:
        return _finished(observation) if isinstance(step.action, Finish | Delete) else previous
    status = build_status(observation, step.state, step.stages)
    if step.stages is None:
        # Without a plan, what was known of stages, attempts and results stays.
        fresh = {name: value for name, value in status if value is not None or name == "waiting"}
        status = previous.model_copy(update=fresh)
        return status if step.used is None else with_unplanned_usage(observation, status, step.used)
    if observation.folder.unreadable:
        return _without_folder(observation, step.stages, status)
    return status


def _finished(observation: Observation) -> FineTuneJobStatus:
    """The status of a finished job, for the newest generation of its spec."""
    status, generation = observation.status, observation.job["metadata"].get("generation", 1)
    known = {
        each.type: each.model_copy(update={"observed_generation": generation})
        for each in status.conditions or ()
    }
    if ConditionType.FINISHED not in known:
        # The stored condition has an invalid field. Without it the job would start again.
        known |= as_conditions(
            {ConditionType.FINISHED: (TRUE, status.phase or Phase.FAILED, "The job has ended.")},
            (),
            generation=generation,
            now=status.completion_time or observation.now,
        )
    return status.model_copy(update={"observed_generation": generation, "conditions": tuple(known.values())})


def _without_folder(
    observation: Observation, stages: JobStages, status: FineTuneJobStatus
) -> FineTuneJobStatus:
    """What was known from the run folder stays."""
    previous = observation.status
    if previous.resolved is None:
        # The attempts that the cluster shows may not be all, so they are not counted.
        return status.model_copy(update={"stages": None, "attempts": None})
    fresh = {each.type: each for each in status.conditions or ()}
    known = {each.type: each for each in previous.conditions or ()}
    kept = previous.model_copy(
        update={
            "observed_generation": status.observed_generation,
            "phase": status.phase,
            "summary": status.summary,
            "waiting": status.waiting,
            "conditions": tuple(
                fresh[kind] if kind in _WITHOUT_FOLDER else known.get(kind, fresh[kind])
                for kind in ConditionType
            ),
        }
    )
    if moving_parts(kept) == moving_parts(previous) and not usage_is_old(observation, stages):
        return kept
    usage = {"active_time": status.active_time or kept.active_time, "cost": status.cost or kept.cost}
    return kept.model_copy(update=usage)
