"""Builds the contract's stage request from the plan, the stage and the results of earlier stages."""

from finetune_contract import (
    CONTRACT_VERSION,
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
from finetune_operator.planning.plan import Findings, Plan
from finetune_operator.planning.slices.memory import chosen_mesh, place_name

#: Highest attempt number that fits the names of pods.
MAX_ATTEMPT = 999


def stage_request(plan: Plan, stage: Stage, attempt: int, findings: Findings) -> StageRequest:
    """Returns the request for the stage's container, in the version of the contract that its image supports.

    Raises:
        Refused: the request is larger than a process environment allows, or the image supports another major version.
        ContractUnsupported: the image does not support the whole request.
    """
    supports = findings.supports or plan.contract
    if supports.major != CONTRACT_VERSION.major:
        raise Refused(
            Reason.CONTRACT_UNSUPPORTED,
            f"The trainer image supports version {supports} of the contract, and this operator {CONTRACT_VERSION}. "
            "Create the job again under a profile whose images.trainer is of the operator's release.",
        )
    mesh, tuning = _tuned(plan, stage, findings)
    # Keyword arguments, which the type checker checks: a record ignores keys that it does not know.
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
        converted_files_digest=findings.converted.files_digest if findings.converted else None,
        train_step=_train_step(plan, findings),
        end_ids=findings.train.end_ids
        if findings.train and stage in {Stage.EVALUATE, Stage.EXPORT}
        else None,
    ).for_trainer(supports)
    size = len(request.to_json().encode())
    if size > MAX_REQUEST_BYTES:
        raise Refused(
            Reason.REQUEST_TOO_LARGE,
            f"the request of stage {stage} has {size} bytes, at most {MAX_REQUEST_BYTES} fit into a container's "
            "environment. Shorten spec.datasets.chatTemplate or spec.evaluation.prompts.",
        )
    return request


def _use_cache(plan: Plan, stage: Stage, findings: Findings) -> str:
    """Returns the cache policy: ``Refresh`` for a conversion that replaces a damaged one."""
    again = stage is Stage.CONVERT and findings.reconvert and plan.use_cache == "Use"
    return "Refresh" if again else plan.use_cache


def _tuned(plan: Plan, stage: Stage, findings: Findings) -> tuple[MeshSpec, dict[str, str | int]]:
    """Returns the mesh and the tuning that preflight chose by compiling; the planned mesh if the slice has changed."""
    found = findings.preflight.memory if findings.preflight else None
    if found is None or plan.memory is None or found.slice != place_name(plan.memory, plan.mesh):
        return plan.mesh, {}
    mesh = chosen_mesh(plan.mesh, found.mesh) if plan.memory.choose_parallelism else plan.mesh
    return mesh, found.tuning if stage is Stage.TRAIN else {}


def _model(plan: Plan, findings: Findings) -> ModelSource:
    """Returns the model as preflight found it, so that later changes of a branch or a folder have no effect."""
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
    """Returns ``source`` with the digest of its tokenizer; on the hub, the revision pins it."""
    if source.hugging_face is not None:
        return source
    return source.model_copy(update={"tokenizer_digest": digest})


def _data(plan: Plan, stage: Stage, findings: Findings) -> DataSpec:
    """Returns the data as preflight found it.

    Only preflight reads whether the job names maxSeqLength.
    """
    explicit = plan.data.max_seq_length_explicit and stage is Stage.PREFLIGHT
    data = plan.data.model_copy(update={"max_seq_length_explicit": explicit})
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
    """Returns the evaluation with datasets as preflight found them; those added to the spec since then are unpinned."""
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
    """Returns the benchmark with the revision that preflight found, if preflight checked this benchmark."""
    if found is None or found.name != benchmark.name:
        return benchmark
    same = found.uri == benchmark.uri if benchmark.uri else found.uri.startswith("hf://")
    if not same:
        return benchmark
    return benchmark.model_copy(update={"revision": found.revision, "revisions": found.revisions})


def _names(source: DatasetSpec, uri: str) -> bool:
    """Returns whether the report's ``uri`` is what ``source`` names now."""
    return source.uri == uri if source.hugging_face is None else source.hugging_face.repo in uri


def _train_step(plan: Plan, findings: Findings) -> int | None:
    """Returns the step to evaluate and export. The evaluated checkpoint is exported, despite any later edit."""
    if findings.train is None:
        return None
    if findings.evaluated is not None and findings.evaluated.step is not None:
        return findings.evaluated.step
    best = findings.train.best_step if plan.exported_checkpoint == "Best" else None
    return findings.train.step if best is None else best


def _pinned[Source: (ModelSource, DatasetSpec)](source: Source, revision: str | None) -> Source:
    """Returns ``source`` at the commit, or with the digest, that preflight found."""
    if revision is None:
        return source
    if source.hugging_face is None:
        return source.model_copy(update={"digest": revision})
    reference = source.hugging_face.model_copy(update={"revision": revision})
    return source.model_copy(update={"hugging_face": reference})


def _hyperparameters(plan: Plan, findings: Findings) -> HyperparametersSpec:
    """Returns the hyperparameters with epochs replaced by the number of steps that preflight counted."""
    if findings.preflight is None or plan.hyperparameters.steps is not None:
        return plan.hyperparameters
    return plan.hyperparameters.model_copy(update={"epochs": None, "steps": findings.preflight.steps})
