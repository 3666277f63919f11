"""The programs that a job runs on its slice, derived from its request, rows and prompts."""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from finetune_contract import PreferenceMethod, StageRequest
from finetune_trainer.compiled.compile_protocol import SliceProgram
from finetune_trainer.engine import overrides, widths
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.evaluate import harness_of, prompts_of, questions_of, sampling_of

if TYPE_CHECKING:
    from finetune_trainer.evaluation.benchmark_groups import LoadedEntry
    from finetune_trainer.evaluation.sampling import Sampling

_LOG = logging.getLogger(__name__)


def programs(
    context: StageContext, plan: ModelPlan, benchmarks: Sequence["LoadedEntry"]
) -> list[SliceProgram]:
    """The job's programs in order of importance.

    First what training runs, then the largest, the base model's last. ``benchmarks``: those of the request, loaded.
    """
    request = context.request
    training = [SliceProgram(kind="Train")]
    if _validates(request):
        training.append(SliceProgram(kind="TrainingLoss"))
    found = {program.to_json(): program for program in _evaluation(context, plan, benchmarks)}
    tuned = sorted(found.values(), key=_size, reverse=True)
    if request.method.lora is None:
        return [*training, *tuned]
    # a model without its adapter is its own reference
    base = [each for each in tuned if request.evaluation.baseline or each.kind == "Reference"]
    return [
        *training,
        *(each for each in tuned if each.kind != "Reference"),
        *(each.model_copy(update={"adapter": False}) for each in base),
    ]


def _validates(request: StageRequest) -> bool:
    return bool(request.data.validation or request.data.split_from_train)


def _size(program: SliceProgram) -> float:
    """Roughly proportional to what the program computes; losses, which take a whole batch each, come first."""
    return float("inf") if program.count == 0 else program.count * (program.width + program.new_tokens)


def _evaluation(
    context: StageContext, plan: ModelPlan, benchmarks: Sequence["LoadedEntry"]
) -> Iterator[SliceProgram]:
    """Programs of the Evaluate stage, which runs if the request has anything to evaluate."""
    request, asked = context.request, context.request.evaluation
    if not (asked.datasets or asked.benchmarks or asked.prompts or asked.gates):
        return
    if _validates(request) or any(each.pairs for each in asked.datasets):
        yield SliceProgram(kind="Loss")
        if method_of(request.method).reference:
            yield SliceProgram(kind="Reference")
    if any("Loss" in each.metrics and not each.pairs for each in asked.datasets):
        yield SliceProgram(kind="TextLoss" if isinstance(request.method, PreferenceMethod) else "Loss")
    recorder = ProgramRecorder(kernel_settings(request), plan.context_length)
    # where no row may be read, questions are not known
    read = asked.datasets if request.data.check != "Off" else ()
    questions = [question for each in read for question in questions_of(context, each)]
    if prompts := prompts_of(context, plan, questions):
        recorder.answers(prompts, sampling_of(request))
    if benchmarks:
        _record_benchmarks(context, plan, benchmarks, recorder)
    yield from recorder.programs


def kernel_settings(request: StageRequest) -> dict[str, Any]:
    """MaxText's settings that determine the widths of evaluation's programs on a TPU."""
    chosen: dict[str, Any] = overrides.parse(request.engine_overrides)
    return {**chosen, "attention": "autoselected"} if chosen.get("attention") == "flash" else chosen


def _record_benchmarks(
    context: StageContext,
    plan: ModelPlan,
    benchmarks: Sequence["LoadedEntry"],
    recorder: "ProgramRecorder",
) -> None:
    from finetune_trainer.evaluation.benchmarks import scores

    harness = harness_of(context, recorder, plan.context_length)
    for benchmark in (task for entry in benchmarks for task in entry.tasks):
        try:
            scores(benchmark, harness, chat=bool(context.tokenizer.chat_template))
        except StageError as error:
            if error.reason == "PromptRefused":  # Evaluate would refuse it, too
                raise
            _LOG.info("recorded without scores: %s", error)


class ProgramRecorder:
    """An ``EvaluationBackend`` for benchmarks that answers nothing and records which programs a model would run."""

    def __init__(self, settings: dict[str, Any], context: int) -> None:
        """``settings``: MaxText's, as ``widths.row_width`` reads them. ``context``: the model's context length in
        tokens."""
        self._settings, self._context = settings, context
        self.programs: list[SliceProgram] = []

    def likelihoods(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        lengths = [min(len(context) + len(rest) - 1, self._context) for context, rest in pairs]
        self._note(SliceProgram(kind="Likelihood", longest=self._context), lengths)
        return [(-1.0, False)] * len(pairs)

    def answers(self, prompts: Sequence[Sequence[int]], sampling: "Sampling") -> list[list[int]]:
        wanted = SliceProgram(
            kind="Generate",
            longest=self._context - sampling.max_new_tokens,
            new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
        )
        self._note(wanted, [len(prompt) for prompt in prompts])
        return [[]] * len(prompts)

    def _note(self, program: SliceProgram, lengths: Sequence[int]) -> None:
        for width, numbers in widths.group_by_width(lengths, self._settings, longest=program.longest).items():
            self.programs.append(program.model_copy(update={"width": width, "count": len(numbers)}))
