"""Plan, stage and what earlier stages found -> the contract's stage request."""

from finetune_contract import (
    BenchmarkReport,
    BenchmarkSpec,
    DatasetSpec,
    DataSpec,
    EvaluationSpec,
    HyperparametersSpec,
    MeshSpec,
    ModelSource,
    Stage,
    StageRequest,
)
from finetune_contract.request import MAX_REQUEST_BYTES
from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.memory import chosen_mesh, place_name
from finetune_operator.planning.plan import Findings, Plan

#: Highest number of an attempt: what fits the names of pods.
MAX_ATTEMPT = 999


def stage_request(plan: Plan, stage: Stage, attempt: int, findings: Findings) -> StageRequest:
    """What the stage's container is asked to do, in the version of the contract that its image speaks.

    Raises:
        Refused: it is larger than a process can be given.
        ContractUnsupported: the image does not understand all of it.
    """
    mesh, tuning = _tuned(plan, stage, findings)
    # By keywords, which the type checker knows: a record ignores what it does not know.
    request = StageRequest(
        job=plan.job,
        stage=stage,
        attempt=attempt,
        run_folder=plan.run_folder.uri,
        cache=plan.cache.uri,
        use_cache=_use_cache(plan, stage, findings),
        model=_model(plan, findings),
        data=_data(plan, stage, findings),
        method=plan.method,
        hyperparameters=_hyperparameters(plan, findings),
        mesh=mesh,
        tuning=tuning,
        pathways_jax=plan.pathways.jax if plan.pathways else None,
        checkpointing=plan.checkpointing,
        evaluation=_evaluation(plan, findings),
        export=plan.export,
        export_proof=plan.export_proof,
        profiling=plan.profiling,
        smoke=plan.smoke if stage is Stage.PREFLIGHT else None,
        engine_overrides=dict(plan.engine_overrides),
        memory=plan.memory if stage is Stage.PREFLIGHT else None,
        fingerprint=findings.preflight.fingerprint if findings.preflight else None,
        converted=findings.converted.items if findings.converted else plan.model.orbax,
        converted_files_digest=_files_digest(findings),
        train_step=_train_step(plan, findings),
    ).spoken(findings.speaks or plan.contract)
    size = len(request.to_json().encode())
    if size > MAX_REQUEST_BYTES:
        raise Refused(
            Reason.REQUEST_TOO_LARGE,
            f"the request of stage {stage} has {size} bytes, at most {MAX_REQUEST_BYTES} fit into a container's "
            "environment. Shorten spec.datasets.chatTemplate or spec.evaluation.prompts.",
        )
    return request


def _use_cache(plan: Plan, stage: Stage, findings: Findings) -> str:
    """``Refresh`` for a conversion that takes the place of a damaged one."""
    again = stage is Stage.CONVERT and findings.reconvert and plan.use_cache == "Use"
    return "Refresh" if again else plan.use_cache


def _files_digest(findings: Findings) -> str | None:
    """None for an image that compares nothing: one whose preflight has not said what the cache holds."""
    knows = findings.preflight is not None and findings.preflight.conversion is not None
    return findings.converted.files_digest if knows and findings.converted else None


def _tuned(plan: Plan, stage: Stage, findings: Findings) -> tuple[MeshSpec, dict[str, str | int]]:
    """The mesh, and what preflight chose for training by compiling; not where the slice is another one by now."""
    found = findings.preflight.memory if findings.preflight else None
    if found is None or plan.memory is None or found.slice != place_name(plan.memory, plan.mesh):
        return plan.mesh, {}
    mesh = chosen_mesh(plan.mesh, found.mesh) if plan.memory.choose_parallelism else plan.mesh
    return mesh, found.tuning if stage is Stage.TRAIN else {}


def _model(plan: Plan, findings: Findings) -> ModelSource:
    """As preflight found it: a branch or a folder that changes between two stages must not change the model."""
    if findings.preflight is None:
        return plan.model
    found = findings.preflight.model
    model = _pinned(plan.model, found.revision)
    if model.tokenizer is None:
        return _with_tokenizer(model, found.tokenizer_revision)
    tokenizer = model.tokenizer
    if tokenizer.hugging_face is not None:
        tokenizer = _pinned(tokenizer, found.tokenizer_revision)
    return model.model_copy(update={"tokenizer": _with_tokenizer(tokenizer, found.tokenizer_revision)})


def _with_tokenizer(source: ModelSource, digest: str | None) -> ModelSource:
    """``source`` with the digest of its tokenizer; on the hub the revision pins it."""
    if source.hugging_face is not None:
        return source
    return source.model_copy(update={"tokenizer_digest": digest})


def _data(plan: Plan, stage: Stage, findings: Findings) -> DataSpec:
    """As preflight found it. Preflight alone reads whether the job names maxSeqLength; trainer images from before the
    contract had minor versions refuse a key that they do not know, and the later stages of a job may run on one."""
    asked = plan.data.max_seq_length_asked and stage is Stage.PREFLIGHT
    data = plan.data.model_copy(update={"max_seq_length_asked": asked})
    if findings.preflight is None:
        return data
    reports = (*findings.preflight.train, *findings.preflight.validation)
    revisions = {report.path: report.revision for report in reports}
    return data.model_copy(
        update={
            "train": [_pinned(source, revisions.get(source.path)) for source in plan.data.train],
            "validation": [_pinned(source, revisions.get(source.path)) for source in plan.data.validation],
        }
    )


def _evaluation(plan: Plan, findings: Findings) -> EvaluationSpec:
    """As preflight found its datasets; those that the spec names since then, as they are."""
    reports = findings.preflight.evaluation if findings.preflight else ()
    found = {(report.path, report.name): report for report in reports}
    tasks = {each.path: each for each in findings.preflight.benchmarks} if findings.preflight else {}
    datasets = []
    for dataset in plan.evaluation.datasets:
        report = found.get((dataset.source.path, dataset.source.name))
        revision = report.revision if report and _names(dataset.source, report.uri) else None
        datasets.append(dataset.model_copy(update={"source": _pinned(dataset.source, revision)}))
    benchmarks = [_pinned_benchmark(each, tasks.get(each.path)) for each in plan.evaluation.benchmarks]
    return plan.evaluation.model_copy(update={"datasets": datasets, "benchmarks": benchmarks})


def _pinned_benchmark(benchmark: BenchmarkSpec, found: BenchmarkReport | None) -> BenchmarkSpec:
    """With the revision that preflight found, where it looked at this benchmark."""
    if found is None or found.name != benchmark.name:
        return benchmark
    same = found.uri == benchmark.uri if benchmark.uri else found.uri.startswith("hf://")
    return benchmark.model_copy(update={"revision": found.revision}) if same else benchmark


def _names(source: DatasetSpec, uri: str) -> bool:
    """Whether the report's ``uri`` is what ``source`` names now."""
    return source.uri == uri if source.hugging_face is None else source.hugging_face.repo in uri


def _train_step(plan: Plan, findings: Findings) -> int | None:
    """The checkpoint to evaluate and export. What was measured is what is exported, whatever was edited since."""
    if findings.train is None:
        return None
    if findings.evaluated is not None and findings.evaluated.step is not None:
        return findings.evaluated.step
    best = findings.train.best_step if plan.exported_checkpoint == "Best" else None
    return findings.train.step if best is None else best


def _pinned[Source: (ModelSource, DatasetSpec)](source: Source, revision: str | None) -> Source:
    """``source`` at the commit, or with the digest, that preflight found."""
    if revision is None:
        return source
    if source.hugging_face is None:
        return source.model_copy(update={"digest": revision})
    reference = source.hugging_face.model_copy(update={"revision": revision})
    return source.model_copy(update={"hugging_face": reference})


def _hyperparameters(plan: Plan, findings: Findings) -> HyperparametersSpec:
    """Epochs become the steps that preflight counted."""
    if findings.preflight is None or plan.hyperparameters.steps is not None:
        return plan.hyperparameters
    return plan.hyperparameters.model_copy(update={"epochs": None, "steps": findings.preflight.steps})
