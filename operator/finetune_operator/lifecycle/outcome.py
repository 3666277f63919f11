"""What the status tells of a job's results: checkpoints, measurements, artefacts, or the failure."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import CheckpointRecord, GateOutcome
from finetune_operator.lifecycle.job_state import JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.lifecycle.stages import JobStages

type Object = Mapping[str, Any]

_CHECKPOINTS = 10


def checkpoints_status(stages: JobStages, observation: Observation, *, kept: bool) -> list[Object]:
    """``status.checkpoints``. ``kept``: the progress beside them is the one that the status shows already."""
    if train := stages.findings.train:
        best = [each for each in train.checkpoints if each.step == train.best_step]
        newest = [each for each in train.checkpoints if each not in best][len(best) - _CHECKPOINTS :]
        return [
            _checkpoint(record, last=record is train.checkpoints[-1], best=record in best)
            for record in train.checkpoints
            if record in best or record in newest
        ]
    if kept:
        return list((observation.job.get("status") or {}).get("checkpoints", ()))
    steps = observation.folder.progress.checkpoints if observation.folder.progress else []
    return [
        _checkpoint(
            CheckpointRecord(step=step, uri=stages.plan.run_folder.checkpoint(step)), last=step == steps[-1]
        )
        for step in steps[-_CHECKPOINTS:]
    ]


def evaluation_status(stages: JobStages) -> Object | None:
    """``status.evaluation``; what training measured last where no stage of its own does."""
    measured = stages.evaluation
    if measured is None:
        train = stages.findings.train
        if train is None or train.evaluation_loss is None:
            return None
        return {"result": {"loss": decimal(train.evaluation_loss)}}
    told: dict[str, Any] = {}
    if measured.dataset_hash:
        told["datasetHash"] = measured.dataset_hash
    if baseline := measured.metrics("baseline"):
        told["baseline"] = _metrics(baseline)
    if tuned := measured.metrics("tuned"):
        told["result"] = _metrics(tuned)
    if measured.gates:
        told["gates"] = [_gate(gate) for gate in measured.gates]
    if measured.samples_uri:
        told["samplesURI"] = measured.samples_uri
    return told


def artifacts_status(stages: JobStages, *, trains: bool) -> list[Object]:
    """``status.artifacts``. ``trains``: training has told of its progress."""
    step = {"step": stages.export.step} if stages.export and stages.export.step is not None else {}
    told: list[Object] = [
        {
            "name": artifact.name,
            "type": artifact.type,
            "uri": artifact.uri,
            "digest": artifact.digest,
            "sizeBytes": artifact.size_bytes,
            **step,
        }
        for artifact in (stages.export.artifacts if stages.export else ())
    ]
    if stages.findings.train and stages.findings.train.trace:
        told.append({"name": "profile", "type": "Trace", "uri": stages.findings.train.trace})
    if stages.findings.preflight:
        told.append({"name": "data-report", "type": "Report", "uri": stages.findings.preflight.report})
    if trains:
        told.append({"name": "tensorboard", "type": "TensorBoard", "uri": stages.plan.run_folder.tensorboard})
    return told


def failure_status(situation: JobState, stages: JobStages) -> Object:
    """``status.failure`` of a job that failed."""
    failure, view = situation.failure, stages.current
    assert failure is not None, "a job that failed has a failure"
    told: dict[str, Any] = {
        "class": str(failure.failure_class),
        "reason": failure.reason,
        "stage": str(view.stage),
        "message": failure.message,
    }
    if view.attempts:
        last = view.attempts[-1]
        told["attempt"] = last.ordinal
        told["host"] = str(failure.host)
        told["logsURI"] = stages.plan.run_folder.log_tail(*last.key.place)
    if failure.fix:
        told["suggestion"] = failure.fix
    if failure.evidence:
        told["evidence"] = failure.evidence
    return told


def _checkpoint(record: CheckpointRecord, *, last: bool, best: bool = False) -> Object:
    told: dict[str, Any] = {"step": record.step, "uri": record.uri}
    if record.metrics:
        told["metrics"] = _metrics(record.metrics)
    if tags := [name for name, given in (("Best", best), ("Last", last)) if given]:
        told["tags"] = tags
    return told


def _metrics(values: Mapping[str, float]) -> Object:
    return {name: decimal(value) for name, value in values.items()}


def _gate(gate: GateOutcome) -> Object:
    told: dict[str, Any] = {"metric": gate.metric, "op": gate.op, "passed": gate.passed}
    if gate.value is not None:
        told["value"] = decimal(gate.value)
    if gate.threshold is not None:
        told["threshold"] = decimal(gate.threshold)
    return told
