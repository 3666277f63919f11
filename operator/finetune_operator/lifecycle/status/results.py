"""A job's results in the status: checkpoints, metrics and artifacts, or the failure."""

from collections.abc import Mapping
from itertools import islice

from finetune_contract import CheckpointRecord, Progress
from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_results import (
    MOST_METRICS,
    ArtifactStatus,
    ArtifactType,
    CheckpointStatus,
    CheckpointTag,
    EvaluationStatus,
    FailureStatus,
    GateStatus,
)
from finetune_operator.lifecycle.fitting import copied
from finetune_operator.lifecycle.job_state import JobState
from finetune_operator.lifecycle.stages.job_stages import JobStages

_CHECKPOINTS = 10


def checkpoints_status(stages: JobStages, progress: Progress | None) -> tuple[CheckpointStatus, ...]:
    """Returns ``status.checkpoints``: those of the finished training, else those that its progress names."""
    if train := stages.findings.train:
        best = [each for each in train.checkpoints if each.step == train.best_step]
        newest = [each for each in train.checkpoints if each not in best][len(best) - _CHECKPOINTS :]
        return tuple(
            _checkpoint(record, last=record is train.checkpoints[-1], best=record in best)
            for record in train.checkpoints
            if record in best or record in newest
        )
    steps = progress.checkpoints if progress else []
    return tuple(
        _checkpoint(
            CheckpointRecord(step=step, uri=stages.plan.run_folder.checkpoint(step)), last=step == steps[-1]
        )
        for step in steps[-_CHECKPOINTS:]
    )


def evaluation_status(stages: JobStages) -> EvaluationStatus | None:
    """Returns ``status.evaluation``: the results of the stage Evaluate, else the last validation loss of the training,
    else None."""
    measured = stages.evaluation
    if measured is None:
        train = stages.findings.train
        if train is None or train.evaluation_loss is None:
            return None
        return EvaluationStatus.model_construct(result={"loss": decimal(train.evaluation_loss)})
    return EvaluationStatus.model_construct(
        dataset_hash=measured.dataset_hash or None,
        baseline=_metrics(measured.metrics("baseline")),
        result=_metrics(measured.metrics("tuned")),
        gates=tuple(copied(GateStatus, gate) for gate in measured.gates) or None,
        samples_uri=measured.samples_uri,
    )


def artifacts_status(stages: JobStages, *, trains: bool) -> tuple[ArtifactStatus, ...]:
    """Returns ``status.artifacts``. ``trains``: the training has reported progress."""
    findings, export = stages.findings, stages.export
    exported = [copied(ArtifactStatus, each, step=export.step) for each in export.artifacts] if export else []
    made = (
        ("profile", ArtifactType.TRACE, findings.train.trace if findings.train else None),
        ("data-report", ArtifactType.REPORT, findings.preflight.report if findings.preflight else None),
        ("tensorboard", ArtifactType.TENSORBOARD, stages.plan.run_folder.tensorboard if trains else None),
    )
    others = (
        ArtifactStatus.model_construct(name=name, type=kind, uri=uri) for name, kind, uri in made if uri
    )
    return (*exported, *others)


def failure_status(state: JobState, stages: JobStages | None) -> FailureStatus:
    """Returns ``status.failure`` of a job that failed. ``stages``: None if the job ended without a plan."""
    failure = state.failure
    assert failure is not None, "a job that failed has a failure"
    last = stages.current.attempts[-1] if stages and stages.current.attempts else None
    return copied(
        FailureStatus,
        failure,
        stage=stages.current.stage if stages else None,
        attempt=last.ordinal if last else None,
        host=str(failure.host) if last else None,
        suggestion=failure.fix or None,
        evidence=failure.evidence or None,
        logs_uri=stages.plan.run_folder.log_tail(*last.key.place) if stages and last else None,
    )


def _checkpoint(record: CheckpointRecord, *, last: bool, best: bool = False) -> CheckpointStatus:
    tags = [tag for tag, given in ((CheckpointTag.BEST, best), (CheckpointTag.LAST, last)) if given]
    return copied(CheckpointStatus, record, metrics=_metrics(record.metrics), tags=tuple(tags) or None)


def _metrics(values: Mapping[str, float]) -> Mapping[str, str] | None:
    """Returns the first metrics, as many as the status may hold; those of a group's members come last."""
    return {name: decimal(value) for name, value in islice(values.items(), MOST_METRICS)} or None
