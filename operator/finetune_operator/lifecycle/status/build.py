"""The whole status of a job. The same observation gives the same status."""

from datetime import datetime

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus, Phase, WaitingReason
from finetune_operator.api.status import WaitingStatus
from finetune_operator.api.status_resolved import Estimate
from finetune_operator.api.status_stages import (
    ActiveTime,
    CostStatus,
    GoodputStatus,
    ProgressStatus,
    StageProgressStatus,
    StageStatus,
)
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.usage import Usage, active_time, rate_of
from finetune_operator.lifecycle.attempts.wait_times import training_wait_times
from finetune_operator.lifecycle.job_state import PAUSED, JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.retry import acted_generation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.attempt_history import attempts_status
from finetune_operator.lifecycle.status.conditions import conditions
from finetune_operator.lifecycle.status.cost import cost_status, grown_cost
from finetune_operator.lifecycle.status.fitting import fit_schema
from finetune_operator.lifecycle.status.monthly_budget import monthly_budget_status
from finetune_operator.lifecycle.status.progress import goodput_status, progress_status
from finetune_operator.lifecycle.status.resolved import estimate_status, past_runs_status, resolved_status
from finetune_operator.lifecycle.status.results import (
    artifacts_status,
    checkpoints_status,
    evaluation_status,
    failure_status,
)
from finetune_operator.lifecycle.status.stage_progress import with_stage_progress
from finetune_operator.lifecycle.status.stage_status import stages_status
from finetune_operator.lifecycle.status.summary import summarize
from finetune_operator.rendering.pod import CONTAINER

#: Seconds between two reports of the usage while nothing else in the status changes.
_USAGE_SECONDS = 60.0


def build_status(observation: Observation, state: JobState, stages: JobStages | None) -> FineTuneJobStatus:
    """Returns the status of a job. ``stages``: None if the job has no plan; fields that need one are then absent."""
    previous = observation.status
    status = _decided(observation, state, stages)
    moved = moving_parts(status) != moving_parts(previous)
    progress = progress_status(
        observation.folder.progress,
        stages.findings.train if stages else None,
        previous.progress,
        pace=observation.status_pace(),
        moved=moved,
    )
    reported = status.stages
    if stages is not None and reported is not None:
        reported = with_stage_progress(reported, observation, stages, moved=moved)
    kept = progress is previous.progress
    workers = sum(each.worker_restarts or 0 for each in status.stages or ())
    status = status.model_copy(
        update={
            "stages": reported,
            "progress": progress,
            "goodput": _goodput(observation, stages, progress),
            "summary": _with_pause(observation, state, summarize(state, stages, progress, reported, workers)),
        }
    )
    if stages is not None:
        changed = moved or not kept or _activity(reported) != _activity(previous.stages)
        elapsed, cost = _usage(observation, stages, changed=changed)
        status = status.model_copy(
            update={
                "checkpoints": checkpoints_status(stages, observation, kept=kept) or None,
                "active_time": elapsed,
                "cost": cost,
                "monthly_budget": monthly_budget_status(
                    observation, stages, changed=changed or usage_is_old(observation, stages)
                ),
            }
        )
    return fit_schema(status)


def _activity(stages: tuple[StageStatus, ...] | None) -> list[StageProgressStatus | None]:
    return [each.progress for each in stages or ()]


def _decided(observation: Observation, state: JobState, stages: JobStages | None) -> FineTuneJobStatus:
    """Returns the part of the status that does not depend on the training's progress and on the time."""
    previous = observation.status
    completed = state.phase.finished
    status = FineTuneJobStatus.model_construct(
        observed_generation=observation.job["metadata"].get("generation", 1),
        phase=_phase(state, stages),
        retry_generation=acted_generation(observation) or None,
        conditions=conditions(observation, state, stages),
        waiting=_waiting(observation, state),
        completion_time=(previous.completion_time or whole_second(observation.now)) if completed else None,
        ledger=previous.ledger,
    )
    if state.phase is JobPhase.FAILED:
        status = status.model_copy(update={"failure": failure_status(state, stages)})
    if stages is None:
        return status
    findings = stages.findings
    return status.model_copy(
        update={
            "stage": stages.live.key.stage if stages.live else stages.current.stage,
            "resolved": resolved_status(stages.plan, findings, _trainer_id(observation)),
            "estimate": _estimate(observation, stages),
            "stages": stages_status(observation, state, stages),
            # Before admission the run folder has not been read, so the cluster may not show all attempts.
            "attempts": attempts_status(stages, previous.attempts, observation.folder.progress)
            if observation.stored
            else None,
            "evaluation": evaluation_status(stages),
            "artifacts": artifacts_status(stages, trains=observation.folder.progress is not None) or None,
            "start_time": previous.start_time or _started(observation),
        }
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
    if (
        not observation.paused
        or state.phase.finished
        or (state.wait and state.wait.reason is WaitingReason.PAUSED)
    ):
        return summary
    return f"{summary} {PAUSED}"


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
    if (state.queue and state.queue.without_quota) or (
        state.wait and state.wait.reason in (WaitingReason.BUDGET, WaitingReason.PAUSED)
    ):
        return Phase.QUEUED
    if state.wait and state.wait.reason is WaitingReason.PODS_REFUSED and not (stages and stages.live):
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


def _goodput(
    observation: Observation, stages: JobStages | None, progress: ProgressStatus | None
) -> GoodputStatus | None:
    """Returns ``status.goodput``, which is computed anew only with a new report of the progress."""
    if progress is None:
        return None
    if progress is observation.status.progress:
        return observation.status.goodput
    waits = training_wait_times(stages.attempts if stages else (), observation.now)
    return goodput_status(observation.folder.progress, waits)


def _usage(
    observation: Observation, stages: JobStages, *, changed: bool
) -> tuple[ActiveTime | None, CostStatus | None]:
    """Returns ``status.activeTime`` and ``status.cost``.

    They change with the time, so they are reported only with another change or when the last report is old. The next
    reconcile adds to them, so the last report must not be too old.
    """
    elapsed, cost = observation.status.active_time, observation.status.cost
    if not stages.attempts or not (changed or usage_is_old(observation, stages)):
        return elapsed, cost
    if cost or any(attempt.key.stage.on_tpu for attempt in stages.attempts):
        cost = cost_status(stages.plan, stages.used)
    live = stages.live
    chips = rate_of(live, stages.plan).chips if live and live.running else None
    return active_time(stages.used, observation.now, chips or None), cost


def usage_is_old(observation: Observation, stages: JobStages | None) -> bool:
    """Whether time and money used are to be reported although nothing else has changed. ``stages``: None if something
    runs of a job without a usable plan."""
    reported = observation.status.active_time
    if reported is None:
        return True
    age = (observation.now - reported.as_of).total_seconds()
    running = stages is None or stages.live is not None
    return running and age >= max(_USAGE_SECONDS, observation.status_pace())


def with_unplanned_usage(
    observation: Observation, status: FineTuneJobStatus, used: Usage
) -> FineTuneJobStatus:
    """Returns the status of a job without a usable plan, of which something runs, with what it has used."""
    previous = observation.status
    if moving_parts(status) == moving_parts(previous) and not usage_is_old(observation, None):
        return status
    chips = sum(jobset.chips or 0 for jobset in observation.jobsets if not jobset.ended)
    update: dict[str, object] = {"active_time": active_time(used, observation.now, chips or None)}
    if status.cost or chips:
        in_money = "maxCost" in (observation.job["spec"].get("budget") or {})
        update["cost"] = grown_cost(status.cost, used, in_money=in_money)
    return status.model_copy(update=update)


def moving_parts(status: FineTuneJobStatus) -> object:
    """Returns the part of a status whose change is written at once; two of them can be compared."""
    return (
        status.observed_generation,
        status.phase,
        status.stage,
        [(each.type, each.status, each.reason) for each in status.conditions or ()],
        [(each.name, each.phase, each.attempt) for each in status.stages or ()],
    )
