"""The enumerations of the status contain exactly the written values."""

from types import SimpleNamespace
from typing import Any

from finetune_contract import (
    Artifact,
    DatasetScores,
    EvaluateOutcome,
    ExitCode,
    ExportOutcome,
    FailureClass,
    Stage,
    StageRequest,
)
from finetune_contract.failure import CLASS_OF_CODE
from finetune_operator.api.status_results import MOST_METRICS, ArtifactType, EvaluationStatus
from finetune_operator.lifecycle.status.results import evaluation_status
from tests.unit.lifecycle.world import World

EXPORTED = ("HuggingFace", "Adapter", "OrbaxParams")


def test_every_artifact_type_is_written() -> None:
    world = World()
    made = world.details

    def everything(request: StageRequest) -> Any:
        found = made(request)
        if request.stage is Stage.TRAIN:
            return found.model_copy(update={"trace": "gs://artifacts/trace"})
        if request.stage is Stage.EXPORT:
            artifacts = [
                Artifact(name=kind.lower(), type=kind, uri="gs://artifacts/model", digest="d", size_bytes=1)
                for kind in EXPORTED
            ]
            return ExportOutcome(artifacts=artifacts, manifest="gs://artifacts/manifest.json")
        return found

    world.details = everything  # type: ignore[method-assign]
    world.to_the_end()
    assert {artifact["type"] for artifact in world.status["artifacts"]} == set(ArtifactType)


def test_every_failure_class_has_a_cause() -> None:
    """Quota belongs to Kueue, which ends an attempt without an exit code."""
    assert {CLASS_OF_CODE.get(code, FailureClass.INFRASTRUCTURE) for code in ExitCode} | {
        FailureClass.QUOTA
    } == set(FailureClass)


def test_metrics_of_a_groups_members_have_the_room_that_is_left() -> None:
    entries = [DatasetScores(name=name, rows=9, tuned={"acc": 0.5}) for name in ("mmlu", "bbh")]
    members = [DatasetScores(name=f"mmlu/task_{i}", rows=1, tuned={"acc": 0.5}) for i in range(57)]
    evaluation = EvaluateOutcome(
        datasets=entries, members=members, samples_uri="gs://r/samples", rows_uri="gs://r/rows"
    )
    stages: Any = SimpleNamespace(evaluation=evaluation)
    status = evaluation_status(stages)
    assert status is not None
    assert status.result is not None
    assert list(status.result)[:3] == ["mmlu/acc", "bbh/acc", "mmlu/task_0/acc"]
    assert len(status.result) == MOST_METRICS
    EvaluationStatus.model_validate(status.to_document())
