"""Evaluate: measures the tuned model and the base model alike.

Both are measured by loss on the validation rows, loss and answers on the evaluation datasets, benchmarks and answers to
the prompts; then the gates are evaluated.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from finetune_contract import (
    DatasetScores,
    EvaluateOutcome,
    EvaluationDatasetSpec,
    EvaluationResult,
    Sample,
    StageRequest,
)
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.data.batches import EvaluationBatches
from finetune_trainer.data.dataset import Dataset, digest_of
from finetune_trainer.data.layout import Batch
from finetune_trainer.engine import maxtext
from finetune_trainer.evaluation.gates import evaluate_gates
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.evaluation.questions import Question, questions
from finetune_trainer.evaluation.rows import MeasuredRows, RowSet, RowSums, row_keys, write_rows
from finetune_trainer.evaluation.scores import SCORES, opens_reasoning, row_scores, without_reasoning
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.inputs import converted_model, trained_parameters
from finetune_trainer.storage import engine_path
from finetune_trainer.training.engine_config import evaluation_config, require_devices

if TYPE_CHECKING:
    from finetune_trainer.evaluation.benchmark_groups import LoadedEntry
    from finetune_trainer.evaluation.harness import EvaluationBackend, HarnessModel
    from finetune_trainer.evaluation.models import LoadedModel
    from finetune_trainer.evaluation.sampling import Sampling

_LOG = logging.getLogger(__name__)
#: Numbers of samples, and of members of groups, in the stage's result.
_SHOWN_SAMPLES, _SHOWN_MEMBERS = 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """One of evaluation.datasets."""

    spec: EvaluationDatasetSpec
    data: Dataset
    questions: Sequence[Question]
    """Empty if only the loss is measured."""

    @property
    def name(self) -> str:
        return self.spec.source.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationWorkload:
    """Everything that each model is evaluated on."""

    validation: Sequence[Dataset]
    tasks: Sequence[EvaluationTask]
    prompts: Sequence[Sequence[int]]
    """Token ids: the request's prompts, then the questions of the tasks."""
    benchmarks: Sequence["LoadedEntry"]
    context_length: int
    """The model's context length in tokens."""

    @property
    def scored(self) -> list[tuple[str, int]]:
        """Names and numbers of rows of the tasks, then of the benchmarks."""
        tasks = [(each.name, each.data.examples) for each in self.tasks]
        return tasks + [(each.spec.name, each.rows) for each in self.benchmarks]

    @property
    def compared(self) -> dict[str, Dataset]:
        """The datasets that the method's own loss is measured on.

        These are the validation sets by name, and tasks of pairs by their path in the spec, because a name may occur in
        both.
        """
        pairs = {each.spec.source.path: each.data for each in self.tasks if each.spec.pairs}
        return {each.name: each for each in self.validation} | pairs

    def sets(self) -> Iterator[RowSet]:
        """Yields what ``evaluate/rows.jsonl`` has records of: validation sets, tasks, benchmarks.

        The benchmarks must have been evaluated. The tasks of a group are sets of its name.
        """
        for data in self.validation:
            yield RowSet(kind="Validation", name=data.name, keys=row_keys(data))
        for task in self.tasks:
            measured = task.data if "Loss" in task.spec.metrics else None
            yield RowSet(kind="Dataset", name=task.name, keys=row_keys(measured, task.questions))
        if self.benchmarks:
            from finetune_trainer.evaluation.benchmark_rows import benchmark_keys

            for entry in self.benchmarks:
                for each in entry.tasks:
                    yield RowSet(kind="Benchmark", name=entry.spec.name, keys=benchmark_keys(each))

    @property
    def digest(self) -> str | None:
        """A digest that is equal for equal rows, whatever the datasets' names."""
        data = [*self.validation, *(each.data for each in self.tasks)]
        return digest_of([*(each.digest for each in data), *(each.digest for each in self.benchmarks)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    """The measurements of one model."""

    result: EvaluationResult | None
    scores: Sequence[dict[str, float]]
    """Scores of each task, then of each benchmark, by short name."""
    members: Sequence[Mapping[str, dict[str, float]]]
    """Of each benchmark, the scores of a group's members by name."""
    answers: Sequence[str]
    """Answers to ``EvaluationWorkload.prompts``."""
    rows: Sequence[MeasuredRows]
    """Measurements of the rows of each of ``EvaluationWorkload.sets``."""


def run(context: StageContext) -> EvaluateOutcome:
    """Raises ``StageError`` 66 if training's checkpoint does not exist."""
    from finetune_trainer.evaluation.models import load, with_adapter

    plan = context.plan(context.model(weights=False))
    request = context.request
    maxtext.prepare(plan)
    require_devices(request)
    row_capacity = row_capacity_of(request, plan)
    work = collect(context, plan)
    batches = batches_of(context, work)
    trained = engine_path(trained_parameters(context))
    lora = request.method.lora is not None

    baseline: ModelEvaluation | None = None
    base, model = "", None
    relative = method_of(request.method).reference
    if request.evaluation.baseline or lora or relative:
        context.progress.begin("loading the base model")
        base = engine_path(converted_model(context))
        with conversion_cache.loading(request):
            model = load(evaluation_config(row_capacity, folder=context.folder.uri, parameters=base))
        if relative:
            context.progress.begin("computing the base model's log-probabilities")
            batches = {name: with_reference_logps(model, each) for name, each in batches.items()}
        if request.evaluation.baseline:
            baseline = measure(context, model, row_capacity, work, batches, name="base model")
    context.progress.begin("loading the tuned model")
    if lora:
        assert model is not None
        config = evaluation_config(row_capacity, folder=context.folder.uri, parameters=base, adapter=trained)
        model = with_adapter(model, config)
    else:
        model = None  # frees the base model's memory first
        model = load(evaluation_config(row_capacity, folder=context.folder.uri, parameters=trained))
    tuned = measure(context, model, row_capacity, work, batches, name="tuned model")

    samples = _samples(context, work, baseline, tuned)
    outcome = EvaluateOutcome(
        dataset=", ".join(each.name for each in work.validation) or None,
        dataset_hash=work.digest,
        step=request.train_step,
        baseline=baseline.result if baseline else None,
        tuned=tuned.result,
        datasets=[
            DatasetScores(
                name=name,
                rows=rows,
                baseline=baseline.scores[i] if baseline else {},
                tuned=tuned.scores[i],
            )
            for i, (name, rows) in enumerate(work.scored)
        ],
        members=[
            DatasetScores(
                name=f"{entry.spec.name}/{name}",
                rows=entry.rows_of(name),
                baseline=baseline.members[i].get(name, {}) if baseline else {},
                tuned=scores,
            )
            for i, entry in enumerate(work.benchmarks)
            for name, scores in tuned.members[i].items()
        ],
        samples=[sample.shown() for sample in samples[:_SHOWN_SAMPLES]],
        samples_uri=context.folder.evaluation_samples,
        rows_uri=context.folder.evaluation_rows,
    )
    gates = evaluate_gates(request.evaluation.gates, outcome.metrics("baseline"), outcome.metrics("tuned"))
    outcome = outcome.model_copy(update={"gates": gates})
    if context.processes.first:
        lines = "".join(sample.to_json() + "\n" for sample in samples)
        context.store.write(context.folder.evaluation_samples, lines)
        rows = context.scratch / "rows.jsonl"
        write_rows(rows, work.sets(), baseline=baseline.rows if baseline else None, tuned=tuned.rows)
        context.store.upload_file(rows, context.folder.evaluation_rows)
        context.store.write(context.folder.evaluation_results, outcome.to_json())
    return outcome.model_copy(update={"members": outcome.members[:_SHOWN_MEMBERS]})


def row_capacity_of(request: StageRequest, plan: ModelPlan) -> DeviceRowCapacity:
    """How the model is placed on this process's devices, and how many rows they hold beside it."""
    import jax

    from finetune_trainer.engine.chips import usable_bytes

    return DeviceRowCapacity.of(request, plan, memory=usable_bytes(jax.devices()[0].device_kind))


def batches_of(context: StageContext, work: EvaluationWorkload) -> dict[str, Iterable[Batch]]:
    """The rows that the method measures, by name as in ``EvaluationWorkload.compared``.

    Each batch is that of one forward pass.
    """
    return {name: _batches(context, each) for name, each in work.compared.items()}


def with_reference_logps(base: "LoadedModel", batches: Iterable[Batch]) -> list[Batch]:
    """The batches with the base model's log-probabilities."""
    from finetune_trainer.engine.sharding import mesh_context
    from finetune_trainer.methods.objectives import ReferenceModel

    with mesh_context(base.config, base.mesh):
        reference = ReferenceModel.itself(base.model, base.mesh)
        return [reference.of(batch) for batch in batches]


def collect(context: StageContext, plan: ModelPlan) -> EvaluationWorkload:
    """Rows, questions and prompts of the request."""
    evaluation = context.request.evaluation
    tasks = [
        EvaluationTask(
            spec=dataset,
            data=context.evaluation_data(dataset),
            questions=questions_of(context, dataset),
        )
        for dataset in evaluation.datasets
    ]
    return EvaluationWorkload(
        validation=context.validation_data(),
        tasks=tasks,
        prompts=prompts_of(context, plan, [question for task in tasks for question in task.questions]),
        benchmarks=benchmarks_of(context),
        context_length=plan.context_length,
    )


def questions_of(context: StageContext, dataset: EvaluationDatasetSpec) -> Sequence[Question]:
    """The dataset's questions; empty if only the loss is measured."""
    if not SCORES.keys() & dataset.metrics:
        return ()
    return questions(dataset.source, context.renderer, context.store, context.scratch)


def prompts_of(context: StageContext, plan: ModelPlan, asked: Sequence[Question]) -> list[Sequence[int]]:
    """Token ids of the request's prompts, then of the questions.

    Prompts that leave no room for an answer are truncated at the beginning.
    """
    evaluation = context.request.evaluation
    prompts = [context.renderer.prompt(prompt) for prompt in evaluation.prompts]
    prompts += [list(question.prompt) for question in asked]
    row_capacity = plan.context_length - evaluation.max_new_tokens
    cut = sum(len(prompt) > row_capacity for prompt in prompts)
    if cut:
        _LOG.warning(
            "%d of %d prompts are longer than %d tokens and are truncated at the start",
            cut,
            len(prompts),
            row_capacity,
        )
    return [prompt[-row_capacity:] for prompt in prompts]


def benchmarks_of(context: StageContext) -> list["LoadedEntry"]:
    """The request's benchmarks, each with its rows. Raises ``StageError`` as ``benchmark_groups.load`` does."""
    asked = context.request.evaluation.benchmarks
    if not asked:
        return []  # the harness takes seconds to import
    from finetune_trainer.evaluation.benchmark_groups import load

    return [load(each, context.store, context.scratch) for each in asked]


def measure(
    context: StageContext,
    model: "LoadedModel",
    row_capacity: DeviceRowCapacity,
    work: EvaluationWorkload,
    batches: Mapping[str, Iterable[Batch]],
    *,
    name: str = "model",
) -> ModelEvaluation:
    """Measures one model on all of ``work``.

    ``batches``: the rows that the method measures. ``name``: the model's name in the reported progress.
    """
    from finetune_trainer.evaluation.generate import Generator
    from finetune_trainer.evaluation.loss import LossMeter, combined
    from finetune_trainer.methods.objectives import SftLoss

    request = context.request
    objective = method_of(request.method).objective(model.config)
    meter = LossMeter(model.model, model.config, model.mesh, objective)
    # measures texts, whatever training has compared
    texts = (
        meter
        if isinstance(objective, SftLoss)
        else LossMeter(model.model, model.config, model.mesh, SftLoss(config=model.config))
    )
    sums = {name: RowSums(data, objective.metrics) for name, data in work.compared.items()}
    rows = [MeasuredRows(losses=sums[each.name]) for each in work.validation]
    measured = {}
    for dataset, each in batches.items():
        alive = _begin_loss(context, name, work.compared[dataset])
        measured[dataset] = meter.measure(model.model, each, rows=sums[dataset], alive=alive)
    result = None
    if work.validation:
        by_set = {each.name: measured[each.name] for each in work.validation}
        loss = combined(by_set.values())
        result = EvaluationResult(
            loss=loss.mean,
            perplexity=loss.perplexity,
            tokens=loss.tokens,
            rows=sum(each.examples for each in work.validation),
            by_set={name: each.mean for name, each in by_set.items()} if len(by_set) > 1 else {},
            method_metrics=dict(loss.metrics),
        )
    generator = Generator(
        model,
        sampling_of(request),
        end_ids=context.end_ids(request.end_ids),
        row_capacity=row_capacity,
        longest=work.context_length - request.evaluation.max_new_tokens,
    )
    if work.prompts:
        context.progress.begin(f"{name}: generating answers", len(work.prompts), "answers")
    answers = [
        context.tokenizer.decode(answer, skip_special_tokens=True).strip()
        for answer in generator.answers(work.prompts, answered=context.progress.advance)
    ]
    scores: list[dict[str, float]] = []
    at = len(request.evaluation.prompts)
    for task in work.tasks:
        own, at = answers[at : at + len(task.questions)], at + len(task.questions)
        spoken = [
            without_reasoning(answer, opened=opens_reasoning(context.tokenizer.decode(question.prompt[-16:])))
            for answer, question in zip(own, task.questions, strict=True)
        ]
        references = [without_reasoning(each.reference) for each in task.questions]
        by_row = row_scores(task.spec.metrics, spoken, references)
        found = {name: sum(each) / len(each) for name, each in by_row.items()}
        losses = None
        if task.spec.pairs:
            losses, own_loss = sums[task.spec.source.path], measured[task.spec.source.path]
            found |= {"loss": own_loss.mean, **own_loss.metrics}
        elif "Loss" in task.spec.metrics:
            losses = RowSums(task.data, SftLoss.metrics)
            alive = _begin_loss(context, name, task.data)
            found["loss"] = texts.measure(
                model.model, _batches(context, task.data), rows=losses, alive=alive
            ).mean
        scores.append(found)
        rows.append(MeasuredRows(losses=losses, scores=by_row))
    members = []
    for found, of_members, measured_rows in _benchmark_scores(context, model, row_capacity, work, name):
        scores.append(found)
        members.append(of_members)
        rows += measured_rows
    return ModelEvaluation(result=result, scores=scores, members=members, answers=answers, rows=rows)


def _begin_loss(context: StageContext, name: str, data: Dataset) -> Callable[[], None]:
    """Reports that the loss on a dataset is being measured. Returns what counts a batch."""
    context.progress.begin(f"{name}: loss on {data.name}", len(data.rows), "sequences")
    size = context.request.hyperparameters.microbatch_size
    return lambda: context.progress.advance(size)


def sampling_of(request: StageRequest) -> "Sampling":
    """How answers to the request's prompts and questions are generated."""
    from finetune_trainer.evaluation.sampling import Sampling

    return Sampling(
        max_new_tokens=request.evaluation.max_new_tokens,
        temperature=request.evaluation.temperature,
        top_k=request.evaluation.top_k,
        seed=request.hyperparameters.seed,
    )


def _benchmark_scores(
    context: StageContext,
    model: "LoadedModel",
    row_capacity: DeviceRowCapacity,
    work: EvaluationWorkload,
    name: str,
) -> Iterator[tuple[dict[str, float], dict[str, dict[str, float]], list[MeasuredRows]]]:
    """Yields each benchmark's scores, those of its members by name, and the rows of each of its tasks."""
    if not work.benchmarks:
        return
    from finetune_trainer.evaluation.benchmark_rows import recorded_rows
    from finetune_trainer.evaluation.benchmarks import scores
    from finetune_trainer.evaluation.loaded_backend import LoadedModelBackend

    engine = LoadedModelBackend(
        model,
        row_capacity=row_capacity,
        context=work.context_length,
        end_ids=context.end_ids(context.request.end_ids),
        done=context.progress.advance,
    )
    asked = harness_of(context, engine, work.context_length)
    chat = bool(context.tokenizer.chat_template)
    for entry in work.benchmarks:
        measured, rows = [], []
        for number, task in enumerate(entry.tasks, 1):
            part = f", task {number} of {len(entry.tasks)}: {task.spec.name}" if entry.group else ""
            context.progress.begin(f"{name}: benchmark {entry.spec.name}{part}", unit="requests")
            with recorded_rows(task) as recorded:
                measured.append(scores(task, asked, chat=chat))
            rows.append(recorded.measured())
        yield *entry.scores(measured), entry.pooled_rows(rows)


def harness_of(context: StageContext, engine: "EvaluationBackend", context_length: int) -> "HarnessModel":
    """``engine`` as a model for the evaluation harness. ``context_length``: the model's, in tokens."""
    from finetune_trainer.evaluation.harness import HarnessModel

    seed = context.request.hyperparameters.seed
    return HarnessModel(engine, context.tokenizer, context.renderer, context=context_length, seed=seed)


def _batches(context: StageContext, data: Dataset) -> EvaluationBatches:
    return EvaluationBatches(rows=data.rows, batch_size=context.request.hyperparameters.microbatch_size)


def _samples(
    context: StageContext, work: EvaluationWorkload, baseline: ModelEvaluation | None, tuned: ModelEvaluation
) -> list[Sample]:
    """Every answer side by side, in the order of ``EvaluationWorkload.prompts``."""
    asked: list[tuple[str | None, str, str | None]] = [
        (None, prompt, None) for prompt in context.request.evaluation.prompts
    ]
    asked += [(task.name, each.text, each.reference) for task in work.tasks for each in task.questions]
    return [
        Sample(
            dataset=dataset,
            prompt=prompt,
            reference=reference,
            baseline=baseline.answers[i] if baseline else None,
            tuned=tuned.answers[i],
        )
        for i, (dataset, prompt, reference) in enumerate(asked)
    ]
