"""The job's state in one sentence or two."""

from collections.abc import Sequence

from finetune_contract import Stage
from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_stages import ProgressStatus, StageStatus
from finetune_operator.lifecycle.attempts.stop_records import CANCELLED
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.progress import described
from finetune_operator.planning.stages import STAGES


def summarize(  # noqa: PLR0911  one per case
    state: JobState,
    stages: JobStages | None,
    progress: ProgressStatus | None,
    statuses: Sequence[StageStatus],
) -> str:
    """Returns ``status.summary``, which quotes ``progress`` and ``statuses``, the stages, of the same status.

    ``stages``: None if the job has no plan.
    """
    if state.phase is JobPhase.INVALID and state.refused:
        return f"Not started: {state.refused.message}"
    if stages is None and state.failure:
        return f"{state.failure.message} {state.failure.fix}"
    if stages is None:
        return f"Waiting: {state.wait.message}" if state.wait else "Pending."
    match state.phase:
        case JobPhase.SUCCEEDED:
            return f"{_succeeded(stages)}{_recovered(stages, statuses)}"
        case JobPhase.PLANNED:
            return f"Planned: {_planned(stages)} {_tpu_time(stages)}".strip()
        case JobPhase.FAILED:
            return _failed(state, stages, progress)
        case JobPhase.SUSPENDED:
            if state.over:
                return f"Suspended{_at_step(progress)}: {state.over.text}"
            return f"Suspended{_at_step(progress)}. Set spec.suspend to false to resume."
        case JobPhase.SUSPENDING:
            if stages.live and (stages.succeeded or stages.failed):
                return f"Ending: {stages.live.key.stage} has a result, and its remaining pods are stopped."
            why = f" {state.over.message}" if state.over else ""
            return f"Suspending: {_stopping(state, stages)}.{why}"
        case JobPhase.CANCELLING:
            return f"Cancelling: {_stopping(state, stages)}, and then the job ends."
    return _active(state, stages, progress, statuses)


def _stopping(state: JobState, stages: JobStages) -> str:
    if state.wait:
        return state.wait.message.rstrip(".")
    live = stages.live
    if live and any(pod.live and not pod.terminations for pod in live.pods):
        return f"{live.key.stage} is saving and stopping"
    return f"{stages.current.stage} has stopped, and its pods are removed"


def _active(
    state: JobState, stages: JobStages, progress: ProgressStatus | None, statuses: Sequence[StageStatus]
) -> str:
    if state.unreadable and state.wait:
        return f"Waiting: {state.wait.message}"
    waits_for = state.refused or state.wait
    if waits_for:
        return f"{stages.current.stage} is waiting: {waits_for.message}"
    doing = STAGES[stages.current.stage].doing
    activity = next((each.progress for each in statuses if each.progress), None)
    if not state.running:
        doing = f"{doing}: pods are starting"
    elif activity:
        doing = f"{doing}: {described(activity)}"
    elif stages.current.stage is Stage.TRAIN and progress:
        doing = f"{doing}: {_training(progress)}"
    return f"{doing}.{_recovered(stages, statuses)}"


def _training(progress: ProgressStatus) -> str:
    loss = next((each.value for each in progress.metrics or () if each.name == "loss"), None)
    parts = [f"step {progress.step} of {progress.total_steps}"]
    if loss is not None:
        parts.append(f"loss {loss}")
    if progress.eta_text is not None:
        parts.append(f"{progress.eta_text} left")
    return ", ".join(parts)


def _at_step(progress: ProgressStatus | None) -> str:
    return f" at step {progress.step} of {progress.total_steps}" if progress else ""


def _recovered(stages: JobStages, statuses: Sequence[StageStatus]) -> str:
    counters, workers = stages.counters, sum(each.worker_restarts or 0 for each in statuses)
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


def _succeeded(stages: JobStages) -> str:
    artifacts = stages.export.artifacts if stages.export else []
    where = f" The tuned model is in {artifacts[0].uri}." if artifacts else ""
    measured = stages.evaluation
    if measured and measured.baseline and measured.tuned:
        loss = f" Loss {decimal(measured.baseline.loss)} before, {decimal(measured.tuned.loss)} after."
    elif stages.findings.train and stages.findings.train.evaluation_loss is not None:
        loss = f" Loss {decimal(stages.findings.train.evaluation_loss)} on the validation rows."
    else:
        loss = ""
    return f"Succeeded.{where}{loss}"


def _failed(state: JobState, stages: JobStages, progress: ProgressStatus | None) -> str:
    failure = state.failure
    assert failure is not None, "a job that failed has a failure"
    what = f"Failed in {stages.current.stage}: {failure.message}"
    if failure.reason == CANCELLED:
        step = _at_step(progress) if stages.current.stage is Stage.TRAIN else ""
        what = f"Cancelled in {stages.current.stage}{step}."
    # The trainer's messages end with the fix.
    fix = "" if failure.fix in what else failure.fix
    return f"{what} {fix} {_tpu_time(stages)}".replace("  ", " ").strip()


def _tpu_time(stages: JobStages) -> str:
    used = any(stages[stage].attempts for stage in Stage if stage.on_tpu)
    return "" if used else "No TPU time was used."
