"""Records of runs for tests of reports."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from finetune_contract import (
    Artifact,
    DataReport,
    ExportOutcome,
    Failure,
    Outcome,
    Sample,
    Stage,
    StageResult,
    TrainOutcome,
)
from finetune_operator.results.lines import parse_lines
from finetune_operator.results.model_manifest import ManifestFile
from finetune_operator.results.records import AttemptRecords, ExportManifest, RunRecords
from finetune_operator.results.report.build import report_of
from finetune_operator.results.report.model import Report
from finetune_operator.results.training_metrics import TrainingMetrics
from tests.unit.comparison.runs import FOLDER, preflight, rows, run, samples, status

NOW = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)


def metrics_lines(steps: int, **changes: Any) -> Iterator[dict[str, Any]]:
    """What a training writes: a line per step, and one for each validation after 100 steps."""
    for step in range(1, steps + 1):
        yield {
            "step": step,
            "loss": 3.0 / step,
            "gradient_norm": 1.0,
            "learning_rate": 2e-4,
            "tokens": 1000,
            "seconds": 0.5,
        } | changes
        if step % 100 == 0:
            yield {"step": step, "evaluation_loss": 3.2 / step, "evaluation_tokens": 500}


def metrics_content(steps: int, **changes: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in metrics_lines(steps, **changes)).encode()


def metrics(steps: int, **changes: Any) -> TrainingMetrics:
    return measured(metrics_content(steps, **changes))


def measured(content: bytes) -> TrainingMetrics:
    found = TrainingMetrics()
    parse_lines(content, found.take, most_lines=10**6, line_bytes=8192)
    return found


def result(
    stage: Stage, *, seconds: int = 60, outcome: Outcome = Outcome.SUCCEEDED, **fields: Any
) -> StageResult:
    """The result of an attempt that started at noon."""
    started = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
    return StageResult(
        stage=stage,
        attempt=1,
        outcome=outcome,
        exit_code=0 if outcome is Outcome.SUCCEEDED else 75,
        started=started,
        finished=started.replace(minute=seconds // 60, second=seconds % 60),
        **fields,
    )


def failure(reason: str = "Preempted", **fields: Any) -> Failure:
    return Failure(**{"code": 75, "reason": reason, "message": f"It ended: {reason}."} | fields)


def attempts() -> list[AttemptRecords]:
    """A training that was preempted once, then finished and evaluated."""
    done = TrainOutcome(step=600, total_steps=600, start_step=300, end_ids=[])
    return [
        AttemptRecords(stage=Stage.PREFLIGHT, number=1, result=result(Stage.PREFLIGHT)),
        AttemptRecords(
            stage=Stage.TRAIN,
            number=1,
            failure=failure(start_step=0, step=310, seconds=400.0, chips=4, queued=30.0, provisioning=60.0),
        ),
        AttemptRecords(
            stage=Stage.TRAIN, number=1, restart=1, result=result(Stage.TRAIN, seconds=300, details=done)
        ),
        AttemptRecords(stage=Stage.EVALUATE, number=1, result=result(Stage.EVALUATE, seconds=160)),
    ]


def history() -> list[dict[str, Any]]:
    """Their entries in ``status.attempts``."""
    return [
        {"stage": "Preflight", "attempt": 1, "jobSet": "support-bot-prep-1", "reason": "Succeeded"},
        {"stage": "Train", "attempt": 1, "jobSet": "support-bot-train-1", "class": "Preemption", "reason": "Preempted",
         "node": "tpu-7", "startStep": 0, "endStep": 310, "lostSteps": 10},
        {"stage": "Train", "attempt": 2, "jobSet": "support-bot-train-1", "restart": 1, "reason": "Succeeded"},
    ]  # fmt: skip


def data_report(**changes: Any) -> DataReport:
    train = preflight().train[0].model_dump()
    document = {
        "job": "support-bot", "max_seq_length": 1024, "packing": True, "checked": "Full", "steps": 600,
        "global_batch_size": 8, "epoch_sequences": 2400, "epochs_shown": 2.0,
        "remarks": [{"level": "Problem", "text": "chats: 12 of 4,800 rows are truncated."}],
        "train": [
            {
                "report": train, "longest": 2048, "p50": 120, "p95": 700,
                "histogram": [{"up_to": 256, "rows": 3000}, {"up_to": 2048, "rows": 1800}],
                "found": [{"kind": "truncated", "count": 12, "first": ["row 41", "row 77"]}],
            }
        ],
        "samples": [
            {
                "dataset": "chats", "row": "row 1", "tokens": 20, "trained": 5,
                "pieces": [[False, "Hi"], [True, "Hello."]],
            },
        ],
    }  # fmt: skip
    return DataReport.model_validate(document | changes)


def export(name: str = "model", **changes: Any) -> ExportOutcome:
    artifact = {
        "name": name,
        "type": "HuggingFace",
        "uri": f"{FOLDER}/export/{name}",
        "digest": "sha256:" + "a" * 64,
        "size_bytes": 1_200_000,
    }
    return ExportOutcome(
        artifacts=[Artifact.model_validate(artifact | changes)],
        manifest=f"{FOLDER}/export/manifest.json",
        step=600,
    )


def manifest(files: int = 2, digest: str = "a" * 64) -> ExportManifest:
    return ExportManifest(
        digest=digest,
        files=[
            ManifestFile(path=f"model-{number}.safetensors", size=600_000, sha256="b" * 64)
            for number in range(files)
        ],
    )


def finished_status(**changes: Any) -> dict[str, Any]:
    """The status of a job that ran for 25 minutes on four chips, a minute of which nothing measured."""
    found = status(
        startTime="2026-11-20T11:58:00Z",
        completionTime="2026-11-20T12:23:00Z",
        attempts={"total": 4, "preemption": 1, "history": history()},
        goodput={
            "percent": "61.0",
            "seconds": {"queued": 30, "provisioning": 60, "startup": 200, "productive": 600, "evaluation": 40,
                        "recomputed": 20},
            "startup": {"imports": 40, "data": 10, "weights": 50, "compilation": 90, "firstStep": 10},
        },
        checkpoints=[{"step": 600, "uri": f"{FOLDER}/train/checkpoints/600", "metrics": {"loss": "1.8"},
                      "tags": ["Best", "Last"]}],
    )  # fmt: skip
    resources = {"tpu": "v6e-4", "topology": "2x2", "capacity": "Spot", "chips": 4}
    found["resolved"] = found["resolved"] | {"resources": resources}
    found["cost"] = {"chipHours": "1.2", "amount": "2.40", "currency": "USD"}
    return found | changes


def finished(**fields: Any) -> RunRecords:
    """All records of a job that has succeeded; ``run``: those that a comparison reads."""
    given: dict[str, Any] = {
        "run": run(
            measured=rows(20, seed=1),
            samples=samples("Open Settings and choose Security.", "I do not know."),
            run_folder=FOLDER,
            status=finished_status(),
            metadata={
                "uid": "0b5e3a52",
                "labels": {"team": "nlp"},
                "creationTimestamp": "2026-11-20T11:57:58Z",
            },
        ),
        "metrics": metrics(600),
        "data": data_report(),
        "attempts": attempts(),
        "export": export(),
        "manifests": {"model": manifest()},
    }
    given |= fields
    return replace(given.pop("run"), **given)


def only(**fields: Any) -> RunRecords:
    """The records of a run that has a status alone, and what is given."""
    nothing = {"request": None, "preflight": None, "progress": None, "evaluation": None, "run_folder": None}
    return run(**nothing | fields)


def reported(records: RunRecords) -> Report:
    return report_of(records, NOW)


def sample(prompt: str, before: str | None, after: str | None) -> Sample:
    return Sample(dataset="faq", prompt=prompt, baseline=before, tuned=after)
