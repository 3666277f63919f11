"""Evaluate: loss on the validation set and answers to the prompts, of the tuned model and of the base model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finetune_contract import EvaluateOutcome, EvaluationResult, Sample
from finetune_trainer import engine
from finetune_trainer.conversion import engine_path
from finetune_trainer.data.batches import EvaluationBatches
from finetune_trainer.data.dataset import Dataset, digest_of
from finetune_trainer.data.layout import Batch
from finetune_trainer.stages.context import Context
from finetune_trainer.stages.engine_config import training_config
from finetune_trainer.stages.inputs import converted_model, trained_parameters

if TYPE_CHECKING:
    from finetune_trainer.evaluation.models import LoadedModel

_SHOWN_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one model came to."""

    result: EvaluationResult | None
    answers: list[str]


def run(context: Context) -> EvaluateOutcome:
    """Raises ``StageError`` 66 when training's checkpoint is not there."""
    from finetune_trainer.evaluation.models import load, with_adapter
    from finetune_trainer.objectives import objective_of

    plan = context.plan(context.model(weights=False))
    request = context.request
    engine.prepare(plan)
    data = context.validation_data()
    batches = batches_of(context, data)
    base, trained = engine_path(converted_model(context)), engine_path(trained_parameters(context))
    lora = request.method.lora is not None

    baseline: Measured | None = None
    model = None
    relative = objective_of(request.method, None).relative
    if request.evaluation.baseline or lora or relative:
        model = load(training_config(context, plan, steps=1, parameters=base))
        if relative:
            batches = {name: referred(model, each) for name, each in batches.items()}
        if request.evaluation.baseline:
            baseline = measure(context, model, data, batches)
    if lora:
        assert model is not None
        config = training_config(context, plan, steps=1, parameters=base, adapter=trained)
        model = with_adapter(model, config)
    else:
        model = None  # gives the base model's memory back first
        model = load(training_config(context, plan, steps=1, parameters=trained))
    tuned = measure(context, model, data, batches)

    prompts = request.evaluation.prompts
    samples = [
        Sample(prompt=prompt, baseline=baseline.answers[i] if baseline else None, tuned=tuned.answers[i])
        for i, prompt in enumerate(prompts)
    ]
    outcome = EvaluateOutcome(
        dataset=", ".join(each.name for each in data) or None,
        dataset_hash=digest_of(data) if data else None,
        baseline=baseline.result if baseline else None,
        tuned=tuned.result,
        samples=samples[:_SHOWN_SAMPLES],
        samples_uri=context.folder.evaluation_samples,
    )
    if context.processes.first:
        lines = "".join(sample.to_json() + "\n" for sample in samples)
        context.store.write(context.folder.evaluation_samples, lines)
        context.store.write(context.folder.evaluation_results, outcome.to_json())
    return outcome


def batches_of(context: Context, data: Sequence[Dataset]) -> dict[str, Iterable[Batch]]:
    """Of one forward pass each, by the set's name."""
    size = context.request.hyperparameters.microbatch_size
    return {each.name: EvaluationBatches(rows=each.rows, batch_size=size) for each in data}


def referred(base: "LoadedModel", batches: Iterable[Batch]) -> list[Batch]:
    """The batches with the base model's log-probabilities."""
    import jax
    from flax.core.spmd import logical_axis_rules

    from finetune_trainer.objectives import Reference

    with jax.set_mesh(base.mesh), logical_axis_rules(base.config.logical_axis_rules):
        reference = Reference.itself(base.model, base.mesh)
        return [reference.of(batch) for batch in batches]


def measure(
    context: Context,
    model: "LoadedModel",
    data: Sequence[Dataset],
    batches: Mapping[str, Iterable[Batch]],
) -> Measured:
    """Loss over all of ``data``, whose ``batches`` these are, and answers to the request's prompts."""
    from finetune_trainer.evaluation.generate import greedy
    from finetune_trainer.evaluation.loss import LossMeter, combined
    from finetune_trainer.objectives import objective_of

    request = context.request
    result = None
    if data:
        objective = objective_of(request.method, model.config)
        meter = LossMeter(model.model, model.config, model.mesh, objective)
        measured = {each.name: meter.measure(model.model, batches[each.name]) for each in data}
        loss = combined(measured.values())
        result = EvaluationResult(
            loss=loss.mean,
            perplexity=loss.perplexity,
            tokens=loss.tokens,
            rows=sum(report.rows for each in data for report in each.reports),
            by_set={name: each.mean for name, each in measured.items()} if len(measured) > 1 else {},
            **loss.metrics,
        )
    answers = greedy(
        model.model,
        model.config,
        model.mesh,
        [context.renderer.prompt(prompt) for prompt in request.evaluation.prompts],
        max_new_tokens=request.evaluation.max_new_tokens,
        end_ids=context.renderer.end_ids(),
    )
    return Measured(result=result, answers=[context.tokenizer.decode(answer).strip() for answer in answers])
