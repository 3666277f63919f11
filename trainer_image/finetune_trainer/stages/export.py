"""Export: the trained model in Hugging Face format, merged, as an adapter, or both, with its card and manifest."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from finetune_contract import (
    Artifact,
    DestinationSpec,
    EvaluateOutcome,
    ExportOutcome,
    MethodSpec,
    PreflightOutcome,
    StageRequest,
)
from finetune_trainer import export
from finetune_trainer.checkpoints.declared_tokens import declared, stop_ids
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import orbax_source
from finetune_trainer.engine import maxtext
from finetune_trainer.export import CardFacts, Published
from finetune_trainer.export.hub_upload import UploadFolder, push
from finetune_trainer.export.publish import Kind
from finetune_trainer.export.publish import places as places_of
from finetune_trainer.export.serving import ServedModel
from finetune_trainer.export.tokenizer import tokenizer_folder
from finetune_trainer.families import ModelPlan
from finetune_trainer.hub.models import LocalModel, Values
from finetune_trainer.methods import method_of
from finetune_trainer.process import malloc
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.inputs import trained_parameters
from finetune_trainer.storage import join

_CARD_METRICS, _CARD_SAMPLES = 100, 4
#: Kind of artifact by the names of ``export.build``.
KINDS: Mapping[str, Kind] = {"model": "HuggingFace", "adapter": "Adapter", "orbax": "OrbaxParams"}


def run(context: StageContext) -> ExportOutcome:
    """Writes to the run folder and to every destination; the run folder's manifest is written last."""
    malloc.return_freed_arrays()
    parameters = trained_parameters(context)
    orbax = context.request.model.orbax
    values = _values(context.request)
    context.progress.begin("fetching the base model")
    model = context.model(weights=orbax is None, values=values)
    plan = context.plan(model)
    request = context.request
    maxtext.prepare(plan)
    lora = request.method.lora
    weights = (
        open_weights(model.path, plan, where=model.source, headers_only=values != "All")
        if orbax is None
        else orbax_source.base_weights(
            orbax, plan, context.scratch / "base", scratch=context.scratch, values=values == "All"
        )
    )
    folders = export.build(
        export.ExportInputs(
            source=model.path,
            tokenizer=tokenizer_folder(
                model, context.tokenizer, context.chat_template, context.scratch / "tokenizer"
            ),
            weights=weights,
            plan=plan,
            params=parameters,
            lora=None if lora is None else export.LoraConfig(rank=lora.rank, alpha=lora.alpha),
            content=request.export.content,
            dtype=request.export.dtype,
            facts=card_facts(context, model),
            stops=_stops(context, model),
            orbax=request.export.orbax,
            served=_served(context, plan),
        ),
        context.scratch / "export",
        context.scratch,
        context.store,
        progress=context.progress,
    )
    model.require_unchanged()
    artifacts = [
        _artifact(name, _publish(context, folder, context.folder.exported(name), name))
        for name, folder in folders.items()
    ]
    for destination in request.export.destinations:
        artifacts += _copies(context, folders, destination)
    outcome = ExportOutcome(
        artifacts=artifacts, manifest=context.folder.export_manifest, step=request.train_step
    )
    context.store.write(context.folder.export_manifest, outcome.to_json())
    return outcome


def _stops(context: StageContext, model: LocalModel) -> dict[int, str]:
    """The base model's stop tokens, and those with which training taught answers to end: text by id."""
    trained, tokenizer = context.request.end_ids or (), context.tokenizer
    ids = dict.fromkeys((*stop_ids(declared(model.path)), *trained))
    return {
        index: str(tokenizer.convert_ids_to_tokens(index)) if index < len(tokenizer) else "" for index in ids
    }


def _values(request: StageRequest) -> Values:
    """Which of the base model's weights the export contains.

    None for an adapter, all for a merged one, and for full fine-tuning those that training left unchanged.
    """
    if request.method.lora is None:
        return "Foreign"
    return "None" if request.export.content == "Adapter" else "All"


def _served(context: StageContext, plan: ModelPlan) -> ServedModel | None:
    """The model as it is served: from the first destination that is a folder, else from the run folder."""
    request = context.request
    if request.export.serving_account is None:
        return None
    places = (destination.uri for destination in request.export.destinations)
    return ServedModel(
        name=request.job.name,
        namespace=request.job.namespace,
        uri=next((uri for uri in places if uri is not None), context.folder.exported("model")),
        service_account=request.export.serving_account,
        dtype=request.export.dtype,
        plan=plan,
    )


def _copies(
    context: StageContext, folders: Mapping[str, Path], destination: DestinationSpec
) -> list[Artifact]:
    """Copies all folders to one destination: the first one at the destination itself, the others below it."""
    places = places_of(tuple(folders))
    if destination.hub is not None:
        parts = {
            name: UploadFolder(folder=folder, kind=KINDS[name], prefix=places[name])
            for name, folder in folders.items()
        }
        context.progress.begin("uploading to the Hugging Face Hub")
        message = f"{context.request.job.name}, step {context.request.train_step}"
        return [_artifact(name, each) for name, each in push(parts, destination, message).items()]
    assert destination.uri is not None, "a destination is one of two"
    return [
        _artifact(
            name,
            _publish(context, folder, join(destination.uri, places[name]).rstrip("/"), name),
        )
        for name, folder in folders.items()
    ]


def _publish(context: StageContext, folder: Path, uri: str, name: str) -> Published:
    owner = export.UploadOwner.of(context.request, context.run)
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    context.progress.begin(f"uploading the {name}", len(files), "files", total_bytes=sum(files))

    def uploaded(size: int) -> None:
        context.progress.advance(1, size)

    return export.publish(folder, uri, KINDS[name], context.store, owner, uploaded)


def _artifact(name: str, published: Published) -> Artifact:
    return Artifact(
        name=name,
        type=published.kind,
        uri=published.uri,
        digest=published.digest,
        size_bytes=published.size_bytes,
    )


def card_facts(context: StageContext, model: LocalModel) -> CardFacts:
    """Returns what the model card states, from the request and the records of preflight and evaluation.

    A record that does not exist leaves its part empty.
    """
    request = context.request
    h = request.hyperparameters
    training = {
        "Method": method(request.method),
        "Steps": str(request.train_step),
        "Rows per step": str(h.global_batch_size),
        "Sequence length": str(request.data.max_seq_length) + (", packed" if request.data.packing else ""),
        "Learning rate": f"{h.learning_rate:g}, {h.schedule.lower()}",
        "Optimizer": h.optimizer,
        "Seed": str(h.seed),
    }
    preflight = context.store.read_or_none(context.folder.preflight_report)
    data = {} if preflight is None else _data(PreflightOutcome.model_validate_json(preflight))
    scores, samples = {}, []
    results = context.store.read_or_none(context.folder.evaluation_results)
    if results is not None:
        measured = EvaluateOutcome.model_validate_json(results)
        scores = _scores(measured)
        samples = [(sample.prompt, sample.tuned or "") for sample in measured.samples[:_CARD_SAMPLES]]
    return CardFacts(
        name=request.job.name,
        base_model=model.source,
        base_revision=model.revision,
        training=training,
        data=data,
        evaluation=scores,
        samples=samples,
    )


def method(spec: MethodSpec) -> str:
    """A description of the method and of the weights that it trains."""
    described = method_of(spec).described()
    options = f" ({described})" if described else ""
    lora = spec.lora
    if lora is None:
        return f"{spec.type}{options}, full fine-tuning"
    base = f" on a base model in {lora.quantization}" if lora.quantization else ""
    return f"{spec.type}{options}, LoRA{base}, rank {lora.rank}, alpha {lora.alpha:g}"


def _data(found: PreflightOutcome) -> dict[str, str]:
    table = {
        f"Train on {report.name}": f"{report.uri} at {report.revision}, {report.rows:,} rows"
        + (f", weight {report.weight:g}" if report.weight is not None else "")
        for report in found.train
    }
    table["Tokens trained on"] = f"{sum(report.trained_tokens for report in found.train):,}"
    for report in found.validation:
        table[f"Validate on {report.name}"] = f"{report.uri} at {report.revision}"
    return table


def _scores(measured: EvaluateOutcome) -> dict[str, str]:
    """The first metrics, of which a group of benchmarks may have hundreds."""
    before = measured.metrics("baseline")
    return {
        name: f"{value:.4f}" + (f", base model {before[name]:.4f}" if name in before else "")
        for name, value in islice(measured.metrics("tuned").items(), _CARD_METRICS)
    }
