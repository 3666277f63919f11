"""A trainer that does no work: writes what a real one would have written, at once.

As a program (``finetune-stage`` of the image that :func:`install` makes) it plays one stage of the request in its
environment; benchmarks call :func:`records` and write the files themselves. Only ``file://`` run folders.
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from finetune_contract import (
    Artifact,
    CacheLayout,
    CheckpointRecord,
    ConvertManifest,
    ConvertOutcome,
    DatasetReport,
    EvaluateOutcome,
    EvaluationResult,
    ExportOutcome,
    ModelIdentity,
    Outcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Stage,
    StageRequest,
    StageResult,
    TrainOutcome,
)

IMAGE = "localhost/trainer-double:test"
STEPS = 10


def records(request: StageRequest, now: datetime) -> Mapping[str, str]:
    """URI -> content of every file of one attempt that succeeded, in the order of writing."""
    run, stage, number = RunFolder(request.run_folder), request.stage, request.attempt
    files = {run.request(stage.short, number): request.to_json()}
    match stage:
        case Stage.PREFLIGHT:
            details = _preflight(request, run)
        case Stage.CONVERT:
            manifest = _manifest(request, now)
            files[CacheLayout(request.cache).convert_manifest(manifest.fingerprint)] = manifest.to_json()
            details = ConvertOutcome(manifest=manifest)
        case Stage.TRAIN:
            files[run.progress] = Progress(
                attempt=number, step=STEPS, total_steps=STEPS, updated=now
            ).to_json()
            checkpoint = CheckpointRecord(step=STEPS, uri=run.checkpoint(STEPS))
            details = TrainOutcome(
                step=STEPS, total_steps=STEPS, first_loss=2.0, last_loss=1.0, checkpoints=[checkpoint]
            )
        case Stage.EVALUATE:
            result = EvaluationResult(loss=1.0, perplexity=2.7, tokens=10, rows=1)
            details = EvaluateOutcome(tuned=result)
        case Stage.EXPORT:
            model = Artifact(
                name="model", type="HuggingFace", uri=run.model, digest="sha256:" + "0" * 64, size_bytes=1
            )
            details = ExportOutcome(artifacts=[model], manifest=run.export_manifest)
    files[run.result(stage.short, number)] = StageResult(
        stage=stage,
        attempt=number,
        outcome=Outcome.SUCCEEDED,
        exit_code=0,
        started=now,
        finished=now,
        details=details,
    ).to_json()
    return files


def write(files: Mapping[str, str]) -> None:
    """Writes ``file://`` files, each whole."""
    for uri, content in files.items():
        path = Path(uri.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".writing-{path.name}")
        partial.write_text(content)
        partial.replace(path)


def install(folder: Path, *, seconds: float = 0) -> Path:
    """The folder of programs of :data:`IMAGE`, made below ``folder``; each stage takes ``seconds`` more."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "finetune-stage"
    root = Path(__file__).parents[2]
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} "
        f"exec {shlex.quote(sys.executable)} -m tests.integration.trainer_double {seconds}\n"
    )
    program.chmod(0o755)
    return folder


def profile(name: str, folder: Path) -> dict[str, object]:
    """A profile whose stages run the double and whose run folders lie in ``folder``."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneProfile",
        "metadata": {"name": name},
        "spec": {
            "images": {"trainer": IMAGE},
            "storage": {"artifacts": f"file://{folder}/runs", "cache": f"file://{folder}/cache"},
            "serviceAccounts": {"tpu": "ft-train", "cpu": "ft-cpu"},
            "currency": "USD",
            "flavors": [
                {
                    "name": "single-host",
                    "capacity": "OnDemand",
                    "accelerator": "tpu-v6e-slice",
                    "topologies": ["2x2"],
                    "chipsPerHost": 4,
                    "chipHourPrice": "0",
                }
            ],
        },
    }


def job(namespace: str, name: str, profile_name: str, **spec: object) -> dict[str, object]:
    """A job of that profile, with all five stages; ``spec`` is laid over what it asks for."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "profileRef": {"name": profile_name},
            "model": {"uri": "file:///models/tiny"},
            "datasets": {"train": [{"uri": "file:///data/train.jsonl"}], "maxSeqLength": 64},
            "method": {"type": "SFT"},
            "evaluation": {"prompts": ["Hello"]},
            **spec,
        },
    }


def _preflight(request: StageRequest, run: RunFolder) -> PreflightOutcome:
    return PreflightOutcome(
        model=ModelIdentity(
            source=request.model.uri or "",
            revision="0",
            architecture="Qwen3ForCausalLM",
            parameters=1000,
            maxtext_model="qwen3-0.6b",
            layout="scanned/float32",
        ),
        train=DatasetReport(
            path="spec.datasets.train[0]",
            name="train-0",
            uri=request.data.train[0].uri or "",
            revision="0",
            format="Messages",
            rows=1,
            tokens=10,
            trained_tokens=5,
        ),
        steps=STEPS,
        # One per job: jobs do not share conversions, so that each shows all of its stages.
        fingerprint=request.job.uid.replace("-", "").ljust(64, "0"),
        fingerprint_inputs={"model": "tiny"},
        report=run.preflight_report,
    )


def _manifest(request: StageRequest, now: datetime) -> ConvertManifest:
    fingerprint = request.fingerprint or ""
    output = CacheLayout(request.cache).convert_output(fingerprint, request.job.uid, request.attempt)
    return ConvertManifest(
        fingerprint=fingerprint,
        inputs={"model": "tiny"},
        items=f"{output}/0/items",
        size_bytes=1,
        seconds=1.0,
        export_proven=True,
        created=now,
    )


if __name__ == "__main__":
    wanted = StageRequest.model_validate_json(os.environ["FINETUNE_REQUEST"])
    files = dict(records(wanted, datetime.now(UTC)))
    # First of all, as a real one: the attempt has started.
    first = next(iter(files))
    write({first: files.pop(first)})
    time.sleep(float(sys.argv[1]))
    write(files)
