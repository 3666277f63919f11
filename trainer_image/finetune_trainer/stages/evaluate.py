"""Evaluate: loss on the validation set and answers to the prompts, of the tuned model and of the base model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finetune_contract import EvaluateOutcome, EvaluationResult, Sample
from finetune_trainer import engine
from finetune_trainer.conversion import engine_path
from finetune_trainer.data.batches import EvaluationBatches
from finetune_trainer.data.layout import Batch
from finetune_trainer.data.prepare import Dataset
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
            batches = referred(model, batches)
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
        dataset=None if data is None else data.report.name,
        dataset_hash=None if data is None else data.digest,
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


def batches_of(context: Context, data: Dataset | None) -> Iterable[Batch]:
    """Of one forward pass each; none where there is no data."""
    if data is None:
        return ()
    return EvaluationBatches(rows=data.rows, batch_size=context.request.hyperparameters.microbatch_size)


def referred(base: "LoadedModel", batches: Iterable[Batch]) -> list[Batch]:
    """The batches with the base model's log-probabilities."""
    import jax
    from flax.core.spmd import logical_axis_rules

    from finetune_trainer.objectives import Reference

    with jax.set_mesh(base.mesh), logical_axis_rules(base.config.logical_axis_rules):
        reference = Reference.itself(base.model, base.mesh)
        return [reference.of(batch) for batch in batches]


def measure(
    context: Context, model: "LoadedModel", data: Dataset | None, batches: Iterable[Batch]
) -> Measured:
    """Loss over ``batches`` of ``data``, and answers to the request's prompts."""
    from finetune_trainer.evaluation.generate import greedy
    from finetune_trainer.evaluation.loss import LossMeter
    from finetune_trainer.objectives import objective_of

    request = context.request
    result = None
    if data is not None:
        objective = objective_of(request.method, model.config)
        loss = LossMeter(model.model, model.config, model.mesh, objective).measure(model.model, batches)
        result = EvaluationResult(
            loss=loss.mean,
            perplexity=loss.perplexity,
            tokens=loss.tokens,
            rows=data.report.rows,
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
