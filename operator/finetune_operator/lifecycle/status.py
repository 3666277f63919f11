"""The whole status, from the situation, the survey and the last status. Same look, same status."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from finetune_contract import Stage
from finetune_operator.api import Phase
from finetune_operator.lifecycle.conditions import conditions
from finetune_operator.lifecycle.fitting import fit_schema
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.outcome import (
    artifacts_status,
    checkpoints_status,
    evaluation_status,
    failure_status,
)
from finetune_operator.lifecycle.preflight_memory import estimate_status
from finetune_operator.lifecycle.progress import goodput_status, progress_status
from finetune_operator.lifecycle.resolved import resolved_status
from finetune_operator.lifecycle.retry import acted_generation
from finetune_operator.lifecycle.spending import cost_status
from finetune_operator.lifecycle.stage_status import attempts_status, stages_status
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.lifecycle.summary import summarize
from finetune_operator.lifecycle.times import parse, stamp
from finetune_operator.lifecycle.usage import active_time
from finetune_operator.lifecycle.wait_times import training_wait_times

type Object = Mapping[str, Any]

#: Seconds between two reports of what a job has used while nothing else of it moves.
_USAGE_SECONDS = 60.0

#: Seconds. Jobs of other namespaces, of which there may be any number, slow a job down no further.
_LONGEST_PACE = 60.0
#: The same for an interrupted training: few are so at a time, and they hold slices.
_LONGEST_URGENT_PACE = 15.0


def pace(live_jobs: int, least: float = 10.0) -> float:
    """Seconds between two looks at one job that no watch asks for: ``least``, or more where there are many jobs, so
    that all together ask the API server and the store for no more than they can answer."""
    return max(least, min(live_jobs / 20, _LONGEST_PACE))


def urgent_pace(live_jobs: int, least: float) -> float:
    """The same for an interrupted training, whose next run begins at any moment."""
    return min(pace(live_jobs, least), _LONGEST_URGENT_PACE)


def build_status(observation: Observation, situation: JobState, stages: JobStages | None) -> dict[str, Any]:
    """``status`` of the job."""
    job, previous = observation.job, observation.job.get("status") or {}
    generation = job["metadata"].get("generation", 1)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": str(_phase(situation, stages)),
        "conditions": conditions(
            situation,
            stages,
            None if observation.snapshot is None else observation.folder,
            previous.get("conditions", ()),
            generation=generation,
            now=observation.now,
        ),
    }
    if generation := acted_generation(observation):
        status["retryGeneration"] = generation
    if stages is not None:
        status |= _of_survey(observation, situation, stages, previous)
    progress = _progress(observation, status, stages, previous)
    if progress is not None:
        status["progress"] = progress
        fresh = progress is not previous.get("progress")
        if goodput := _goodput(observation, stages) if fresh else previous.get("goodput"):
            status["goodput"] = goodput
    if stages is not None and (
        saved := checkpoints_status(stages, observation, kept=progress is previous.get("progress"))
    ):
        status["checkpoints"] = saved
    if stages is not None:
        status |= _usage(observation, status, stages, previous)
    workers = sum(each.get("workerRestarts", 0) for each in status.get("stages", ()))
    status["summary"] = summarize(situation, stages, progress, workers)
    if situation.wait:
        status["waiting"] = _waiting(situation, previous, observation.now)
    if situation.course.finished:
        status["completionTime"] = previous.get("completionTime") or stamp(observation.now)
    return fit_schema(status)


def _phase(situation: JobState, stages: JobStages | None) -> Phase:
    fixed = {
        JobPhase.INVALID: Phase.VALIDATING,
        JobPhase.SUSPENDED: Phase.SUSPENDED,
        JobPhase.PLANNED: Phase.PLANNED,
        JobPhase.SUCCEEDED: Phase.SUCCEEDED,
        JobPhase.FAILED: Phase.FAILED,
    }.get(situation.course)
    if fixed is not None:
        return fixed
    if situation.queue and situation.queue.without_quota:
        return Phase.QUEUED
    if stages is None or stages.current.stage is Stage.PREFLIGHT:
        return Phase.VALIDATING
    if situation.running:
        return Phase.RUNNING
    return Phase.RECOVERING if situation.recovering else Phase.PROVISIONING


def _of_survey(
    observation: Observation, situation: JobState, stages: JobStages, previous: Object
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "stage": str(stages.live.key.stage if stages.live else stages.current.stage),
        "resolved": resolved_status(stages.plan, stages.findings),
        "stages": stages_status(observation, situation, stages, previous),
        "startTime": previous.get("startTime") or stamp(observation.now),
    }
    if observation.snapshot is not None:
        # Before, nobody has looked into the run folder: what the cluster shows may not be all.
        status["attempts"] = attempts_status(stages, previous)
    if estimate := estimate_status(stages.plan, stages.findings):
        status["estimate"] = estimate
    if evaluation := evaluation_status(stages):
        status["evaluation"] = evaluation
    if artifacts := artifacts_status(stages, trains=observation.folder.progress is not None):
        status["artifacts"] = artifacts
    if situation.course is JobPhase.FAILED:
        status["failure"] = failure_status(situation, stages)
    return status


def _progress(
    observation: Observation, status: Object, stages: JobStages | None, previous: Object
) -> Object | None:
    return progress_status(
        observation.folder.progress,
        stages.findings.train if stages else None,
        previous.get("progress"),
        pace=pace(observation.live_jobs),
        moved=moving_parts(status) != moving_parts(previous),
    )


def _usage(observation: Observation, status: Object, stages: JobStages, previous: Object) -> Object:
    """``activeTime`` and ``cost``. They move with the clock, so that they are told anew only where something else is,
    or now and then: what the next look counts on from must not be old."""
    told = {name: previous[name] for name in ("activeTime", "cost") if name in previous}
    moved = moving_parts(status) != moving_parts(previous)
    still = not moved and status.get("progress") is previous.get("progress")
    if still and not usage_is_old(observation, stages):
        return told
    if not stages.attempts:
        return told
    found = {"activeTime": active_time(stages.used, observation.now)}
    if "cost" in told or any(attempt.key.stage.on_tpu for attempt in stages.attempts):
        found["cost"] = cost_status(stages.plan, stages.used)
    return found


def _goodput(observation: Observation, stages: JobStages | None) -> Object | None:
    waits = training_wait_times(stages.attempts if stages else (), observation.now)
    return goodput_status(observation.folder.progress, waits)


def usage_is_old(observation: Observation, stages: JobStages) -> bool:
    """Whether what the status says of the time and money used is to be told anew though nothing else has moved."""
    told = (observation.job.get("status") or {}).get("activeTime")
    if told is None:
        return True
    age = (observation.now - parse(told["asOf"])).total_seconds()
    return stages.live is not None and age >= max(_USAGE_SECONDS, pace(observation.live_jobs))


def moving_parts(status: Object) -> Any:
    """What makes a write due at once."""
    return (
        status.get("observedGeneration"),
        status.get("phase"),
        status.get("stage"),
        [(each["type"], each["status"], each["reason"]) for each in status.get("conditions", ())],
        [(each["name"], each["phase"], each.get("attempt")) for each in status.get("stages", ())],
    )


def _waiting(situation: JobState, previous: Object, now: datetime) -> Object:
    wait = situation.wait
    assert wait is not None, "told only while something is waited for"
    before = previous.get("waiting") or {}
    since = before["since"] if before.get("reason") == wait.reason else stamp(wait.since or now)
    return {"reason": str(wait.reason), "since": since, "message": wait.message}
