"""The job's state in one sentence or two."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.planning.stages import STAGES

type Object = Mapping[str, Any]


def summarize(  # noqa: PLR0911  one per case
    situation: JobState, stages: JobStages | None, progress: Object | None, workers: int
) -> str:
    """``status.summary``. It quotes the progress that the status shows, so both move together.

    ``workers``: how often Pathways' workers were started again.
    """
    if situation.course is JobPhase.INVALID and situation.refused:
        return f"Not started: {situation.refused.message}"
    if stages is None:
        return f"Waiting: {situation.wait.message}" if situation.wait else "Looking at the job."
    match situation.course:
        case JobPhase.SUCCEEDED:
            return _succeeded(stages, workers)
        case JobPhase.PLANNED:
            return f"Planned: {_planned(stages)} {_tpu_time(stages)}".strip()
        case JobPhase.FAILED:
            return _failed(situation, stages)
        case JobPhase.SUSPENDED:
            if situation.over:
                return f"Suspended{_at_step(progress)}: {situation.over.text}"
            return f"Suspended{_at_step(progress)}. Set spec.suspend to false to go on."
        case JobPhase.SUSPENDING:
            if stages.live and (stages.succeeded or stages.failed):
                return f"Ending: {stages.live.key.stage} has been decided, and what is left of it stops."
            why = f" {situation.over.message}" if situation.over else ""
            return f"Suspending: {stages.current.stage} saves and stops.{why}"
    return _active(situation, stages, progress, workers)


def _active(situation: JobState, stages: JobStages, progress: Object | None, workers: int) -> str:
    if situation.unreadable and situation.wait:
        return f"Waiting: {situation.wait.message}"
    if situation.refused:
        return f"{stages.current.stage} waits: {situation.refused.message}"
    if situation.wait:
        return f"{stages.current.stage} waits: {situation.wait.message}"
    doing = STAGES[stages.current.stage].doing
    if stages.current.stage is Stage.TRAIN and situation.running and progress:
        doing = f"{doing}: {_training(progress)}"
    elif not situation.running:
        doing = f"{doing}: pods are being started"
    return f"{doing}.{_recovered(stages, workers)}"


def _training(progress: Object) -> str:
    loss = next((each["value"] for each in progress.get("metrics", ()) if each["name"] == "loss"), None)
    parts = [f"step {progress['step']} of {progress['totalSteps']}"]
    if loss is not None:
        parts.append(f"loss {loss}")
    if "etaText" in progress:
        parts.append(f"{progress['etaText']} left")
    return ", ".join(parts)


def _at_step(progress: Object | None) -> str:
    return f" at step {progress['step']} of {progress['totalSteps']}" if progress else ""


def _recovered(stages: JobStages, workers: int) -> str:
    counters = stages.counters
    parts = [
        f"{number} {one if number == 1 else many}"
        for number, one, many in (
            (counters.preemption, "preemption", "preemptions"),
            (counters.infrastructure, "fault", "faults"),
            (workers, "restart of a worker", "restarts of workers"),
        )
        if number
    ]
    return f" Recovered from {' and '.join(parts)}." if parts else ""


def _planned(stages: JobStages) -> str:
    found, shape = stages.findings.preflight, stages.plan.placement.shape
    if found is None:
        return ""
    return (
        f"{found.steps} steps of {stages.plan.hyperparameters.global_batch_size} rows on "
        f"{stages.plan.chips} chips ({shape.accelerator} {shape.topology})."
    )


def _succeeded(stages: JobStages, workers: int) -> str:
    artifacts = stages.export.artifacts if stages.export else []
    where = f" The tuned model lies in {artifacts[0].uri}." if artifacts else ""
    measured = stages.evaluation
    if measured and measured.baseline and measured.tuned:
        loss = f" Loss {decimal(measured.baseline.loss)} before, {decimal(measured.tuned.loss)} after."
    elif stages.findings.train and stages.findings.train.evaluation_loss is not None:
        loss = f" Loss {decimal(stages.findings.train.evaluation_loss)} on the validation rows."
    else:
        loss = ""
    return f"Succeeded.{where}{loss}{_recovered(stages, workers)}"


def _failed(situation: JobState, stages: JobStages) -> str:
    failure = situation.failure
    assert failure is not None, "a job that failed has a failure"
    return f"Failed in {stages.current.stage}: {failure.message} {failure.fix} {_tpu_time(stages)}".replace(
        "  ", " "
    ).strip()


def _tpu_time(look: JobStages) -> str:
    used = any(look[stage].attempts for stage in Stage if stage.on_tpu)
    return "" if used else "No TPU time was used."
