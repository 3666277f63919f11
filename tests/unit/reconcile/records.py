"""Records of the contract as a trainer would have written them."""

from finetune_contract import (
    ConvertManifest,
    ModelIdentity,
    Outcome,
    PreflightOutcome,
    Progress,
    Stage,
    StageProgress,
    StageResult,
)
from finetune_contract.result import DatasetReport
from tests.stage_outcomes import sizes
from tests.unit.reconcile.fakes import NOW

FINGERPRINT = "f" * 64


def result(
    stage: Stage,
    attempt: int = 1,
    *,
    outcome: Outcome = Outcome.SUCCEEDED,
    fingerprint: str = FINGERPRINT,
) -> StageResult:
    details = None
    if stage is Stage.PREFLIGHT and outcome is Outcome.SUCCEEDED:
        details = PreflightOutcome(
            model=ModelIdentity(
                source="gs://m",
                revision="1",
                architecture="Qwen3ForCausalLM",
                parameters=1,
                maxtext_model="qwen3-0.6b",
                layout="scanned/float32",
                sizes=sizes(1),
            ),
            train=[
                DatasetReport(
                    path="spec.datasets.train[0]",
                    name="train-0",
                    uri="gs://d",
                    revision="1",
                    format="Messages",
                    rows=1,
                    tokens=1,
                    trained_tokens=1,
                )
            ],
            steps=10,
            max_seq_length=512,
            row_width=512,
            fingerprint=fingerprint,
            fingerprint_inputs={},
            report="gs://r/report.json",
        )
    return StageResult(
        stage=stage,
        attempt=attempt,
        outcome=outcome,
        exit_code=0,
        started=NOW,
        finished=NOW,
        details=details,
    )


def manifest() -> ConvertManifest:
    return ConvertManifest(
        fingerprint=FINGERPRINT,
        inputs={},
        items="gs://c/items",
        size_bytes=1,
        seconds=1.0,
        export_proven=True,
        created=NOW,
        files_digest="1" * 64,
    )


def progress(step: int) -> Progress:
    return Progress(attempt=1, step=step, total_steps=10, compilations=3, updated=NOW)


def stage_progress(done: int = 1) -> StageProgress:
    """What a conversion of 37 tensors reports."""
    return StageProgress(
        doing="converting the weights",
        done=done,
        total=37,
        unit="tensors",
        done_bytes=done * 2**20,
        total_bytes=37 * 2**20,
        since=NOW,
        updated=NOW,
    )
