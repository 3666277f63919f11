"""The complete status of a job, built once per decision. The same observation gives the same status."""

from datetime import datetime
from typing import Any

from finetune_contract import Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus, Phase, WaitingReason
from finetune_operator.api.status import WaitingStatus
from finetune_operator.api.status_resolved import Estimate
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.pending_records import with_pending
from finetune_operator.lifecycle.attempts.wait_times import training_wait_times
from finetune_operator.lifecycle.decision import Delete, Finish, NextStep
from finetune_operator.lifecycle.fitting import fit_schema
from finetune_operator.lifecycle.job_state import PAUSED, JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.retry import acted_generation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.attempt_history import attempts_status
from finetune_operator.lifecycle.status.conditions import OUTCOME, TRUE, as_conditions, conditions
from finetune_operator.lifecycle.status.progress import (
    goodput_status,
    progress_status,
    stage_progress_status,
    with_stage_progress,
)
from finetune_operator.lifecycle.status.resolved import estimate_status, past_runs_status, resolved_status
from finetune_operator.lifecycle.status.results import (
    artifacts_status,
    checkpoints_status,
    evaluation_status,
    failure_status,
)
from finetune_operator.lifecycle.status.stage_status import stages_status
from finetune_operator.lifecycle.status.summary import summarize
from finetune_operator.lifecycle.status.usage import (
    is_due,
    monthly_budget_status,
    usage_status,
    with_unplanned_usage,
)
from finetune_operator.rendering.pod import CONTAINER

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

#: Fields that move with the time: they are reported together, with any other change or at a pace.
_MOVING = ("progress", "goodput", "checkpoints", "active_time", "cost")


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
    status = _build(observation, step.state, step.stages)
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
    status, generation = observation.status, observation.job.generation
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
    if not is_due(observation, kept, runs=stages.live is not None):
        return kept
    usage = {"active_time": status.active_time or kept.active_time, "cost": status.cost or kept.cost}
    return kept.model_copy(update=usage)


def _build(observation: Observation, state: JobState, stages: JobStages | None) -> FineTuneJobStatus:
    """Returns the status of a job. ``stages``: None if the job has no plan; fields that need one are then absent."""
    status = _decided(observation, state, stages)
    if stages is not None:
        status = status.model_copy(update=_reported(observation, stages, status))
    summary = summarize(state, stages, status.progress, status.stages or ())
    return fit_schema(status.model_copy(update={"summary": _with_pause(observation, state, summary)}))


def _reported(observation: Observation, stages: JobStages, status: FineTuneJobStatus) -> dict[str, Any]:
    """Returns the fields that move with the time, progress and usage: all of them anew, or all as they were.

    ``status``: all other fields.
    """
    previous, record, train = observation.status, observation.folder.progress, stages.findings.train
    live, shown, known, activity = stages.live, previous.progress, None, None
    if live and live.running and not live.stepped:
        before = next((stage for stage in previous.stages or () if stage.name is live.key.stage), None)
        known = before.progress if before and before.attempt == live.ordinal else None
        activity = stage_progress_status(live, observation)
    fresh = (
        record if record and (not shown or shown.last_update_time != whole_second(record.updated)) else None
    )
    at_once = (fresh and (not shown or fresh.step == fresh.total_steps)) or (activity and not known)
    news = fresh is not None or (activity is not None and activity != known)
    due = bool(at_once) or is_due(observation, status, runs=live is not None, reports=news)
    update = {name: getattr(previous, name) for name in _MOVING}
    if record and due:
        waits = training_wait_times(stages.attempts, observation.now)
        update |= {"progress": progress_status(record, train), "goodput": goodput_status(record, waits)}
    elif train and not record:
        update |= {"progress": None, "goodput": None}
    if train or (record and due):
        update["checkpoints"] = checkpoints_status(stages, record) or None
    if due:
        update["active_time"], update["cost"] = usage_status(observation, stages)
    if live and (activity := (activity if due else None) or known):
        update["stages"] = with_stage_progress(status.stages or (), live, activity)
    return update | {"monthly_budget": monthly_budget_status(observation, stages, due=due)}


def _decided(observation: Observation, state: JobState, stages: JobStages | None) -> FineTuneJobStatus:
    """Returns the part of the status that does not depend on the training's progress and on the time."""
    previous, planned = observation.status, dict[str, Any]()
    if stages is not None:
        planned = {
            "stage": stages.live.key.stage if stages.live else stages.current.stage,
            "resolved": resolved_status(stages.plan, stages.findings, _trainer_id(observation)),
            "estimate": _estimate(observation, stages),
            "stages": stages_status(observation, state, stages),
            # Before admission the run folder has not been read, so the cluster may not show all attempts.
            "attempts": attempts_status(stages, previous.attempts) if observation.stored else None,
            "evaluation": evaluation_status(stages),
            "artifacts": artifacts_status(stages, trains=observation.folder.progress is not None) or None,
            "start_time": previous.start_time or _started(observation),
        }
    completed = previous.completion_time or whole_second(observation.now)
    return FineTuneJobStatus.model_construct(
        observed_generation=observation.job.generation,
        phase=_phase(state, stages),
        retry_generation=acted_generation(observation) or None,
        conditions=conditions(observation, state, stages),
        waiting=_waiting(observation, state),
        completion_time=completed if state.phase.finished else None,
        ledger=previous.ledger,
        failure=failure_status(state, stages) if state.phase is JobPhase.FAILED else None,
        **planned,
    )


def _started(observation: Observation) -> datetime:
    """The first status may follow the first JobSet by seconds."""
    created = (jobset.creation_timestamp for jobset in observation.jobsets)
    return whole_second(min((time for time in created if time), default=observation.now))


def _trainer_id(observation: Observation) -> str | None:
    """The first one that was reported stays, as the pod is gone later. Preflight always runs the trainer's image."""
    resolved = observation.status.resolved
    if resolved and resolved.images and resolved.images.trainer_id:
        return resolved.images.trainer_id
    started = [
        container.image_id
        for pod in observation.pods
        if pod.key is not None and pod.key.stage in (Stage.PREFLIGHT, Stage.TRAIN, Stage.EVALUATE)
        for container in pod.containers
        if container.name == CONTAINER and container.image_id
    ]
    return min(started, default=None)


def _estimate(observation: Observation, stages: JobStages) -> Estimate | None:
    """Past runs are those known before the training began, and stay as they were first reported: later ones would have
    the status of each waiting job written again."""
    previous = observation.status.estimate
    shown = previous.past_runs if previous else None
    if shown is None and all(attempt.key.stage is not Stage.TRAIN for attempt in stages.attempts):
        shown = past_runs_status(stages.plan, stages.findings, observation.past_trainings)
    return estimate_status(stages.plan, stages.findings, shown)


def _with_pause(observation: Observation, state: JobState, summary: str) -> str:
    """Returns the summary, which says of every live job that the operator is paused."""
    said = state.wait and state.wait.reason is WaitingReason.PAUSED
    return f"{summary} {PAUSED}" if observation.paused and not state.phase.finished and not said else summary


def _phase(state: JobState, stages: JobStages | None) -> Phase:
    fixed = {
        JobPhase.INVALID: Phase.VALIDATING,
        JobPhase.SUSPENDED: Phase.SUSPENDED,
        JobPhase.PLANNED: Phase.PLANNED,
        JobPhase.SUCCEEDED: Phase.SUCCEEDED,
        JobPhase.FAILED: Phase.FAILED,
    }.get(state.phase)
    if fixed is not None:
        return fixed
    waits_for = state.wait.reason if state.wait else None
    if (state.queue and state.queue.without_quota) or waits_for in (
        WaitingReason.BUDGET,
        WaitingReason.PAUSED,
    ):
        return Phase.QUEUED
    if waits_for is WaitingReason.PODS_REFUSED and not (stages and stages.live):
        return Phase.QUEUED
    if stages is None or stages.current.stage is Stage.PREFLIGHT:
        return Phase.VALIDATING
    if state.running:
        return Phase.RUNNING
    return Phase.RECOVERING if state.recovering else Phase.PROVISIONING


def _waiting(observation: Observation, state: JobState) -> WaitingStatus | None:
    wait, previous = state.wait, observation.status.waiting
    if wait is None:
        return None
    same = previous is not None and previous.reason == wait.reason
    return WaitingStatus.model_construct(
        reason=wait.reason,
        since=previous.since if previous and same else whole_second(wait.since or observation.now),
        message=wait.message,
    )
