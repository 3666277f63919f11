"""The enumerations of the status contain exactly the written values."""

from typing import Any

from finetune_contract import Artifact, ExitCode, ExportOutcome, FailureClass, Stage, StageRequest
from finetune_contract.failure import CLASS_OF_CODE
from finetune_operator.api.status_results import ArtifactType
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
