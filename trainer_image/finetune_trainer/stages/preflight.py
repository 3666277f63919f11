"""Preflight: finds out everything that can be found out without an accelerator, and records it."""

import difflib
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from finetune_contract import BenchmarkReport, ExitCode, MemoryOutcome, PreflightOutcome
from finetune_trainer.checkpoints.layout import layout_for
from finetune_trainer.checkpoints.weights import require_size
from finetune_trainer.compiled.check import check_memory
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.conversion import fingerprint, orbax_source
from finetune_trainer.data import remarks, report, special_tokens
from finetune_trainer.engine import overrides, widths
from finetune_trainer.errors import StageError
from finetune_trainer.export import UploadOwner, probe
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages import data_check, resumption, smoke
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.evaluate import benchmarks_of
from finetune_trainer.stages.slice_programs import programs
from finetune_trainer.tokens.tokenizer import misreading_class
from finetune_trainer.training import remarks as training_remarks
from finetune_trainer.training import settings

if TYPE_CHECKING:
    from finetune_trainer.evaluation.benchmark_groups import LoadedEntry

#: Most warnings in the outcome; the report has all.
_WARNINGS = 16
#: Most metrics of a benchmark in a message.
_METRICS = 20


def run(context: StageContext) -> PreflightOutcome:
    """Runs all checks of a job.

    Uses no JAX device but the CPU, for a smoke test. Raises ``StageError`` that says what to change.
    """
    context.progress.begin("reading the model's configuration")
    model = context.model(weights=False, heads=True)
    plan = context.plan(model)
    require_size(model.weights_bytes, plan, where=model.source)
    check_request(context, plan)
    probe.destinations(context.request.export, context.store, UploadOwner.of(context.request, context.run))
    found = data_check.check(context)
    special_tokens.require_known_prompts(
        context.request.evaluation.prompts, context.renderer, context.tokenizer, plan.vocab_size
    )
    _check_profiling(context, found.steps)
    evaluation = [data_check.checked(context, dataset) for dataset in context.request.evaluation.datasets]
    loaded = benchmarks_of(context)
    benchmarks = checked_benchmarks(context, loaded)
    ids = special_tokens.of_model(
        context.tokenizer, context.renderer, model.path, plan.vocab_size, ends=found.end_ids
    )
    template = [
        *remarks.of_class(misreading_class(model, context.tokenizer)),
        *remarks.of_arguments(context.request.data.chat_template_arguments),
    ]
    method, numbers = context.request.method, context.request.hyperparameters
    rate = [
        *training_remarks.of_learning_rate(method, numbers, plan.parameters),
        *training_remarks.of_warmup(numbers, found.steps),
        *training_remarks.of_weight_precision(method, numbers),
    ]
    width = remarks.of_width(context.request, widths.of_rows(context.request), plan.context_length)
    found = found.model_copy(
        update={
            "evaluation": evaluation,
            "benchmarks": benchmarks,
            "remarks": [*found.remarks, *template, *ids, *rate, *width],
        }
    )
    layout = layout_for(context.request.mesh)
    if context.request.model.orbax is not None:
        orbax_source.check(context.request.model.orbax, plan, layout, scratch=context.scratch)
    memory = check_memory(
        context.request.model_copy(
            # as in the Train stage: learning rates are part of the train step
            update={"hyperparameters": numbers.model_copy(update={"steps": found.steps, "epochs": None})}
        ),
        plan,
        model.path,
        context.store,
        os.environ,
        programs=lambda: programs(context, plan, loaded),
        end_ids=context.end_ids(found.end_ids),
        progress=context.progress,
    )
    tried = smoke.run_smoke_test(context, model, plan)
    prints = fingerprint.of_model(model, plan, layout)
    outcome = PreflightOutcome(
        model=model.identity(plan, layout),
        train=[each.report for each in found.train],
        validation=[each.report for each in found.validation],
        evaluation=[each.report for each in evaluation],
        benchmarks=benchmarks,
        steps=found.steps,
        max_seq_length=context.request.data.max_seq_length,
        row_width=widths.of_rows(context.request),
        fingerprint=prints.value,
        fingerprint_inputs=dict(prints.inputs),
        prepared=found.prepared,
        warnings=[
            *_uncompiled(memory),
            *(remark.text for remark in found.remarks if remark.level == "Problem"),
        ][:_WARNINGS],
        report=context.folder.data_page,
        memory=memory,
        smoke=tried,
        conversion=None
        if context.request.model.orbax is not None
        else conversion_cache.use_of(conversion_cache.find(context.request, prints, context.store)),
    )
    resumption.check(context, outcome)
    context.store.write(context.folder.preflight_samples, report.samples_jsonl(found))
    context.store.write(context.folder.data_report, found.to_json())
    context.store.write(
        context.folder.data_page, report.render(found), content_type="text/html; charset=utf-8"
    )
    context.store.write(context.folder.preflight_report, outcome.to_json())
    return outcome


def _uncompiled(memory: MemoryOutcome | None) -> Iterator[str]:
    if memory is not None and memory.uncompiled:
        yield (
            "Programs of the job that were not compiled before training, so it is unknown whether they fit; the "
            f"largest first: {'; '.join(memory.uncompiled)}."
        )


def checked_benchmarks(context: StageContext, found: Sequence["LoadedEntry"]) -> list[BenchmarkReport]:
    """Reports of the loaded benchmarks. Raises ``StageError`` 64 if a gate names a metric that they do not measure."""
    measured = {each.spec.name: [f"{each.spec.name}/{name}" for name in each.metrics] for each in found}
    for gate in context.request.evaluation.gates:
        names = measured.get(gate.metric.partition("/")[0])
        if names is not None and gate.metric not in names:
            near = difflib.get_close_matches(gate.metric, names, n=_METRICS, cutoff=0.0)
            raise StageError(
                ExitCode.BAD_REQUEST, "GateNotMeasured", "the benchmark does not measure the metric of a gate",
                where="spec.evaluation.gates", actual=gate.metric,
                expected=f"one of {', '.join(sorted(near))}" + (" …" if len(names) > _METRICS else ""),
                fix="Name one of these metrics.",
            )  # fmt: skip
    return [each.report for each in found]


def _check_profiling(context: StageContext, steps: int) -> None:
    wanted = context.request.profiling
    if wanted is not None and wanted.start_step + wanted.steps - 1 > steps:
        raise StageError(
            ExitCode.BAD_REQUEST, "ProfilingTooLate", "training ends before the steps to profile",
            where="spec.profiling", actual=f"steps {wanted.start_step} to {wanted.start_step + wanted.steps - 1}",
            expected=f"steps up to {steps}", fix="Lower profiling.startStep or profiling.steps.",
        )  # fmt: skip


def check_request(context: StageContext, plan: ModelPlan) -> None:
    """Raises ``StageError`` for what later stages would refuse.

    Checks overrides, batch and mesh, LoRA's modules, the tokenizer's size, and the JAX version of Pathways' servers.
    """
    request = context.request
    if request.pathways_jax not in (None, jax := version("jax")):
        raise StageError(
            ExitCode.BAD_REQUEST, "PathwaysJaxMismatch",
            "Pathways' servers are for another JAX version than the trainer's",
            where="profile: images", actual=f"pathwaysServer and pathwaysProxy for JAX {request.pathways_jax}",
            expected=f"JAX {jax}, as in images.trainer", fix=f"Use servers with the tag jax-{jax}.",
        )  # fmt: skip
    if request.evaluation.max_new_tokens >= plan.context_length:
        raise StageError(
            ExitCode.BAD_REQUEST, "AnswerTooLong", "an answer leaves no tokens for its prompt",
            where="spec.evaluation.generation.maxNewTokens", actual=str(request.evaluation.max_new_tokens),
            expected=f"fewer than the model's {plan.context_length} tokens", fix="Lower maxNewTokens.",
        )  # fmt: skip
    settings.settings(request, plan, steps=1, platform="tpu", output="")
    overrides.parse(request.engine_overrides)
    context.renderer.chat.require_known_arguments()
    special_tokens.require_embeddings(context.tokenizer, plan.vocab_size)
