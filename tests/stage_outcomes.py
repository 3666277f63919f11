"""What a stage that succeeded reports, for tests in which no trainer runs."""

from datetime import datetime

from finetune_contract import (
    Artifact,
    CacheLayout,
    CheckpointRecord,
    ConvertManifest,
    ConvertOutcome,
    DatasetReport,
    DatasetSpec,
    Details,
    EvaluateOutcome,
    EvaluationResult,
    ExportOutcome,
    GateOutcome,
    GateSpec,
    MemoryOutcome,
    ModelIdentity,
    ModelSizes,
    PreflightOutcome,
    RunFolder,
    Stage,
    StageRequest,
    TrainOutcome,
)
from finetune_contract.result import UnfitSlice

#: Why a slice is too small, in the words of :func:`memory`.
DOES_NOT_FIT = "does not fit, 40.10 GiB of 31.24 GiB"
_GIB = 2**30


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
                    sizes=sizes(1_000_000),
                ),
                train=[_report(source, 400) for source in request.data.train],
                validation=[_report(source, 40) for source in request.data.validation],
                steps=steps,
                max_seq_length=512,
                row_width=512,
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
            saved = [CheckpointRecord(step=step, uri=run.checkpoint(step)) for step in (steps // 2, steps)]
            return TrainOutcome(
                step=steps,
                total_steps=steps,
                first_loss=2.0,
                last_loss=1.0,
                evaluation_loss=1.0,
                best_step=steps // 2 if request.checkpointing.keep_best else None,
                checkpoints=saved if request.checkpointing.keep_best else saved[1:],
                end_ids=[],
            )
        case Stage.EVALUATE:
            return EvaluateOutcome(
                dataset_hash="sha256:2",
                step=request.train_step,
                gates=[_gate(gate) for gate in request.evaluation.gates],
                baseline=EvaluationResult(loss=2.0, perplexity=7.39, tokens=100, rows=10),
                tuned=EvaluationResult(loss=1.0, perplexity=2.72, tokens=100, rows=10),
                samples_uri=run.evaluation_samples,
                rows_uri=run.evaluation_rows,
            )
        case Stage.EXPORT:
            model = Artifact(
                name="model", type="HuggingFace", uri=run.model, digest="sha256:3", size_bytes=4_000_000
            )
            return ExportOutcome(artifacts=[model], manifest=run.export_manifest, step=request.train_step)


def sizes(parameters: int) -> ModelSizes:
    """Of a model that is a single tensor."""
    return ModelSizes(
        largest_piece=parameters,
        largest_stack=parameters,
        largest_block=parameters,
        lora_width=parameters // 1000,
        weights_bytes=0,
    )


def memory(request: StageRequest, least_chips: int) -> MemoryOutcome:
    """What preflight records where smaller slices than that do not hold the training: the first that does, chosen where
    the job names none."""
    assert request.memory is not None
    check = request.memory
    places = [(check.slice, request.mesh), *((each.slice, each.mesh) for each in check.candidates)]
    shape, mesh = next(pair for pair in places if pair[0].chips >= least_chips)
    return MemoryOutcome(
        source="Compile",
        slice=shape.name,
        chosen=shape.model_copy(update={"flags": None}) if check.candidates else None,
        unfit=[UnfitSlice(slice=each, why=DOES_NOT_FIT) for each, _ in places if each.chips < least_chips],
        peak_bytes=20 * _GIB,
        limit_bytes=31 * _GIB,
        step_seconds=(1.0, 2.0),
        mesh=mesh,
        tuning={"remat_policy": "full"},
    )


def _gate(gate: GateSpec) -> GateOutcome:
    """Every metric is 2 before and 1 after."""
    threshold = gate.value if gate.value is not None else 2.0 + (gate.delta_from_baseline or 0.0)
    passed = threshold <= 1.0 if gate.op == "GreaterOrEqual" else threshold >= 1.0
    return GateOutcome(metric=gate.metric, value=1.0, op=gate.op, threshold=threshold, passed=passed)


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
        files_digest="1" * 64,
    )


def _report(source: DatasetSpec, rows: int) -> DatasetReport:
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
