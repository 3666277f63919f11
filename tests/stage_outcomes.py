"""What a stage that succeeded reports, for tests in which no trainer runs."""

from datetime import datetime

from finetune_contract import (
    Artifact,
    CacheLayout,
    CheckpointRecord,
    ConvertManifest,
    ConvertOutcome,
    DatasetReport,
    DatasetSource,
    EvaluateOutcome,
    EvaluationResult,
    ExportOutcome,
    ModelIdentity,
    PreflightOutcome,
    RunFolder,
    Stage,
    StageRequest,
    TrainOutcome,
)

type Details = PreflightOutcome | ConvertOutcome | TrainOutcome | EvaluateOutcome | ExportOutcome


def details(request: StageRequest, *, fingerprint: str, steps: int, now: datetime) -> Details:
    """A small model, 400 rows of training data and, where the request has any, 40 of validation."""
    run = RunFolder(request.run_folder)
    match request.stage:
        case Stage.PREFLIGHT:
            return PreflightOutcome(
                model=ModelIdentity(
                    source=request.model.uri or "",
                    revision="sha256:1",
                    architecture="Qwen3ForCausalLM",
                    parameters=1_000_000,
                    maxtext_model="qwen3-0.6b",
                    layout="scanned/float32",
                ),
                train=[_report(source, 400) for source in request.data.train],
                validation=[_report(source, 40) for source in request.data.validation],
                steps=steps,
                max_seq_length=512,
                fingerprint=fingerprint,
                fingerprint_inputs={"model": "sha256:1"},
                report=run.preflight_report,
            )
        case Stage.CONVERT:
            left = manifest(
                request.cache,
                fingerprint,
                request.job.uid,
                now=now,
                attempt=request.attempt,
                proven=request.export_proof,
            )
            return ConvertOutcome(manifest=left)
        case Stage.TRAIN:
            checkpoint = CheckpointRecord(step=steps, uri=run.checkpoint(steps))
            return TrainOutcome(
                step=steps,
                total_steps=steps,
                first_loss=2.0,
                last_loss=1.0,
                evaluation_loss=1.0,
                checkpoints=[checkpoint],
            )
        case Stage.EVALUATE:
            return EvaluateOutcome(
                dataset_hash="sha256:2",
                baseline=EvaluationResult(loss=2.0, perplexity=7.39, tokens=100, rows=10),
                tuned=EvaluationResult(loss=1.0, perplexity=2.72, tokens=100, rows=10),
                samples_uri=run.evaluation_samples,
            )
        case Stage.EXPORT:
            model = Artifact(
                name="model", type="HuggingFace", uri=run.model, digest="sha256:3", size_bytes=4_000_000
            )
            return ExportOutcome(artifacts=[model], manifest=run.export_manifest)


def manifest(
    cache: str, fingerprint: str, uid: str, *, now: datetime, attempt: int = 1, proven: bool = True
) -> ConvertManifest:
    """The conversion as that job's attempt has left it in the cache."""
    return ConvertManifest(
        fingerprint=fingerprint,
        inputs={"model": "sha256:1"},
        items=f"{CacheLayout(cache).convert_output(fingerprint, uid, attempt)}/0/items",
        size_bytes=4_000_000,
        seconds=12.0,
        export_proven=proven,
        proof="300 tensors identical" if proven else "",
        created=now,
    )


def _report(source: DatasetSource, rows: int) -> DatasetReport:
    return DatasetReport(
        path=source.path,
        name=source.name,
        uri=source.uri or "",
        revision="sha256:9",
        format="Messages",
        rows=rows,
        tokens=rows * 20,
        trained_tokens=rows * 10,
    )
