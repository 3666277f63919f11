"""Export: the trained model in Hugging Face format, merged, as an adapter, or both, with its card and manifest."""

from finetune_contract import Artifact, EvaluateOutcome, EvaluationResult, ExportOutcome, PreflightOutcome
from finetune_trainer import engine, export
from finetune_trainer.export import CardFacts, Published
from finetune_trainer.export.publish import Kind
from finetune_trainer.export.tokenizer import tokenizer_folder
from finetune_trainer.models import LocalModel
from finetune_trainer.stages.context import Context
from finetune_trainer.stages.inputs import trained_parameters
from finetune_trainer.storage import join
from finetune_trainer.weights import open_weights

_CARD_SAMPLES = 4


def run(context: Context) -> ExportOutcome:
    """Writes to the run folder and to every destination; the run folder's manifest comes last."""
    parameters = trained_parameters(context)
    model = context.model(weights=True)
    plan = context.plan(model)
    request = context.request
    engine.prepare(plan)
    lora = request.method.lora
    folders = export.build(
        export.ExportInputs(
            source=model.path,
            tokenizer=tokenizer_folder(
                model.tokenizer_path, request.data.chat_template, context.scratch / "tokenizer"
            ),
            weights=open_weights(model.path, plan, where=model.source),
            plan=plan,
            params=parameters,
            lora=None if lora is None else export.Lora(rank=lora.rank, alpha=lora.alpha),
            content=request.export.content,
            dtype=request.export.dtype,
            facts=card_facts(context, model),
        ),
        context.scratch / "export",
        context.scratch,
    )
    homes = {"model": context.folder.model, "adapter": context.folder.adapter}
    artifacts: list[Artifact] = []
    for name, folder in folders.items():
        kind: Kind = "HuggingFace" if name == "model" else "Adapter"
        artifacts.append(_artifact(name, export.publish(folder, homes[name], kind, context.store)))
        for destination in request.export.destinations:
            # Two folders at one destination: the adapter goes below the model.
            address = destination if name == "model" or len(folders) == 1 else join(destination, "adapter")
            artifacts.append(_artifact(name, export.publish(folder, address, kind, context.store)))
    outcome = ExportOutcome(artifacts=artifacts, manifest=context.folder.export_manifest)
    context.store.write(context.folder.export_manifest, outcome.to_json())
    return outcome


def _artifact(name: str, published: Published) -> Artifact:
    return Artifact(
        name=name,
        type=published.kind,
        uri=published.uri,
        digest=published.digest,
        size_bytes=published.size_bytes,
    )


def card_facts(context: Context, model: LocalModel) -> CardFacts:
    """What the card says of training, data and scores, from the request and the earlier stages' records."""
    request = context.request
    h, lora = request.hyperparameters, request.method.lora
    training = {
        "Method": "full fine-tuning" if lora is None else f"LoRA, rank {lora.rank}, alpha {lora.alpha:g}",
        "Steps": str(request.train_step),
        "Rows per step": str(h.global_batch_size),
        "Sequence length": str(request.data.max_seq_length) + (", packed" if request.data.packing else ""),
        "Learning rate": f"{h.learning_rate:g}, {h.schedule.lower()}",
        "Optimizer": h.optimizer,
        "Seed": str(h.seed),
    }
    found = context.store.read_or_none(context.folder.preflight_report)
    data = {} if found is None else _data(PreflightOutcome.model_validate_json(found))
    scores = context.store.read_or_none(context.folder.evaluation_results)
    measured = None if scores is None else EvaluateOutcome.model_validate_json(scores)
    return CardFacts(
        name=request.job.name,
        base_model=model.source,
        base_revision=model.revision,
        training=training,
        data=data,
        evaluation={} if measured is None else _scores(measured),
        samples=[]
        if measured is None
        else [(sample.prompt, sample.tuned or "") for sample in measured.samples[:_CARD_SAMPLES]],
    )


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
    table = {}
    if measured.tuned is not None:
        table["Loss"] = _score(measured.tuned)
    if measured.baseline is not None:
        table["Loss of the base model"] = _score(measured.baseline)
    return table


def _score(result: EvaluationResult) -> str:
    if result.perplexity is not None:
        return f"{result.loss:.4f} nats a token, perplexity {result.perplexity:.2f}"
    told = f"{result.loss:.4f} a pair"
    if result.reward_accuracy is not None:
        told += f", the chosen answer preferred in {100 * result.reward_accuracy:.1f} %"
    return told
