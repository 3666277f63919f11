"""Preflight: everything that can be found out without an accelerator is found out here, and written down."""

import json
from importlib.metadata import version
from typing import Any

from finetune_contract import DatasetReport, EvaluationDataset, ExitCode, PreflightOutcome
from finetune_trainer import fingerprint
from finetune_trainer.checkpoint_layout import layout_for
from finetune_trainer.data.batches import steps_for
from finetune_trainer.data.prepare import Dataset, shown
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.questions import questions
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.context import Context
from finetune_trainer.training import overrides, settings

_SAMPLES = 8


def run(context: Context) -> PreflightOutcome:
    """Touches no JAX device. Raises ``StageError`` 64, 65 or 66 with what to change."""
    model = context.model(weights=False)
    plan = context.plan(model)
    check_request(context, plan)
    train = context.training_data()
    validation = context.validation_data()
    evaluation = [checked_dataset(context, dataset) for dataset in context.request.evaluation.datasets]
    hyperparameters = context.request.hyperparameters
    steps = hyperparameters.steps or steps_for(
        len(train.rows), hyperparameters.epochs or 1.0, hyperparameters.global_batch_size
    )
    layout = layout_for(context.request.mesh)
    prints = fingerprint.of_model(model, plan, layout)
    outcome = PreflightOutcome(
        model=model.identity(plan, layout),
        train=train.report,
        validation=None if validation is None else validation.report,
        evaluation=evaluation,
        steps=steps,
        max_seq_length=context.request.data.max_seq_length,
        fingerprint=prints.value,
        fingerprint_inputs=dict(prints.inputs),
        report=context.folder.preflight_report,
    )
    context.store.write(context.folder.preflight_samples, _samples(context, train, validation))
    context.store.write(context.folder.preflight_report, outcome.to_json())
    return outcome


def checked_dataset(context: Context, dataset: EvaluationDataset) -> DatasetReport:
    """Its report, once it is sure that the Evaluate stage can use it: after hours of training is late to learn."""
    report = context.evaluation_data(dataset).report
    if set(dataset.metrics) - {"Loss"}:
        questions(dataset.source, context.renderer, context.store, context.scratch)
    return report


def check_request(context: Context, plan: ModelPlan) -> None:
    """What later stages would refuse: overrides, batch and mesh, LoRA's modules, the tokenizer's size, the servers'
    JAX."""
    from maxtext.configs.types import MaxTextConfig

    request = context.request
    if request.pathways_jax not in (None, jax := version("jax")):
        raise StageError(
            ExitCode.BAD_REQUEST, "PathwaysJaxMismatch", "Pathways' servers are for another JAX than the trainer's",
            where="profile: images", saw=f"pathwaysServer and pathwaysProxy for JAX {request.pathways_jax}",
            expected=f"JAX {jax}, which images.trainer holds", fix=f"Use servers with the tag jax-{jax}.",
        )  # fmt: skip
    if request.evaluation.max_new_tokens >= plan.context_length:
        raise StageError(
            ExitCode.BAD_REQUEST, "AnswerTooLong", "an answer leaves no room for its prompt",
            where="evaluation.generation.maxNewTokens", saw=str(request.evaluation.max_new_tokens),
            expected=f"fewer than the model's {plan.context_length} tokens", fix="Lower maxNewTokens.",
        )  # fmt: skip
    settings.settings(request, plan, steps=1, platform="tpu", output="")
    overrides.parse(request.engine_overrides, plan.settings(), MaxTextConfig)
    largest = len(context.tokenizer)
    if largest > plan.vocab_size:
        raise StageError(
            ExitCode.BAD_REQUEST, "TokenizerTooLarge", "the tokenizer knows more tokens than the model", where="model",
            saw=f"{largest} tokens", expected=f"at most {plan.vocab_size}",
            fix="Use the tokenizer that belongs to the model.",
        )  # fmt: skip


def _samples(context: Context, train: Dataset, validation: Dataset | None) -> str:
    lines: list[dict[str, Any]] = []
    for name, data in (("train", train), ("validation", validation)):
        if data is not None:
            tokens = data.rows.tokens
            lines += [
                {"dataset": name, "example": i, **shown(tokens.read(i), context.tokenizer)}
                for i in range(min(_SAMPLES, len(tokens)))
            ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
