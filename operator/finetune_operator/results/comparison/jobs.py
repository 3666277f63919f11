"""What the records of each run show about itself: its model, its progress, its cost, and what is missing."""

import re
from collections.abc import Iterator, Mapping

from finetune_contract import Stage
from finetune_operator.results.comparison.model import ComparedJob, ComparedModel
from finetune_operator.results.comparison.throughput import throughput
from finetune_operator.results.records import (
    RunRecords,
    decimal_at,
    instant_at,
    list_at,
    lookup,
    text_at,
    whole_at,
)

_CURRENCY = re.compile(r"[A-Z]{3}")
_STAGES = tuple(Stage)
#: Phases of a job that has ended.
_ENDED = ("Succeeded", "Failed", "Planned")
#: Reason of the end of a job with ``spec.cancel``.
_CANCELLED = "Cancelled"


def compared_job(label: str, run: RunRecords) -> ComparedJob:
    """Returns what is known about one run."""
    progress, status = run.progress, run.status
    currency = text_at(status, "cost", "currency")
    return ComparedJob(
        label=label,
        name=run.name,
        namespace=run.namespace,
        run_folder=run.run_folder,
        phase=text_at(status, "phase"),
        model=_model(run),
        method=run.request.method.type if run.request else text_at(run.spec, "method", "type"),
        evaluated_step=run.evaluation.step if run.evaluation else None,
        steps=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        training_loss=progress.metrics.loss if progress else None,
        validation_loss=progress.evaluation.loss if progress and progress.evaluation else None,
        curve=progress.curve if progress else [],
        throughput=throughput(run),
        chip_hours=decimal_at(status, "cost", "chipHours"),
        cost=decimal_at(status, "cost", "amount"),
        currency=currency if currency and _CURRENCY.fullmatch(currency) else None,
        running_seconds=whole_at(status, "activeTime", "seconds"),
        stage_seconds=dict(_stage_seconds(status)),
        missing=[*_missing(label, run), *run.unreadable],
    )


def _model(run: RunRecords) -> ComparedModel | None:
    found = run.preflight.model if run.preflight else None
    if found is not None:
        return ComparedModel(**found.model_dump(include=set(ComparedModel.model_fields)))
    resolved = lookup(run.status, "resolved", "model")
    source = text_at(resolved, "source") or (run.request.model.address if run.request else None)
    if source is None:
        return None
    return ComparedModel(
        source=source,
        revision=text_at(resolved, "revision"),
        tokenizer_revision=None,
        architecture=text_at(resolved, "architecture"),
        parameters=whole_at(resolved, "parameters"),
    )


def _stage_seconds(status: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for stage in list_at(status, "stages"):
        name = lookup(stage, "name")
        start, end = instant_at(stage, "startTime"), instant_at(stage, "completionTime")
        if name in _STAGES and start and end and end >= start:
            yield str(name), round((end - start).total_seconds())


def _missing(label: str, run: RunRecords) -> Iterator[str]:
    """Yields what the comparison lacks of a run and how to get it."""
    if not run.evaluated:
        yield f"{label} has no evaluation: {without_evaluation(run)}"
    elif not run.rows:
        yield (
            f"{label} has no values of single rows (evaluate/rows.jsonl), so its means are compared without "
            f"intervals. Repeat the evaluation: {_again(run)}."
        )


def without_evaluation(run: RunRecords) -> str:
    """Returns why a run has no evaluation and how to get one, as the end of a sentence."""
    phase = text_at(run.status, "phase")
    if phase == "Failed":
        reason = text_at(run.status, "failure", "reason") or "see its status"
        stage = text_at(run.status, "failure", "stage")
        if reason == _CANCELLED:
            return f"it was cancelled{f' in {stage}' if stage else ''}: {_retried(run)}."
        # Most of a spec cannot be edited: the status says whether a copy has to be corrected.
        cause = f"See `finetune status {run.name}`, mend the cause" if run.live else "Mend the cause"
        return f"it failed{f' in {stage}' if stage else ''} ({reason}). {cause}, then {_retried(run)}."
    if phase == "Planned":
        return "it only plans (planOnly). Create a job without planOnly."
    named = "name datasets, benchmarks, prompts or gates in spec.evaluation"
    if run.live and phase not in _ENDED:
        state = f"it has not ended ({phase or 'Pending'})"
        if _requested(run):
            return f"{state}. Wait with `finetune wait {run.name}`."
        return f"{state}, and its spec requests none: {named}."
    return f"{named}, then {_again(run)}."


def _requested(run: RunRecords) -> bool:
    """Whether the Evaluate stage runs, as far as is known: a profile's defaults are in the request alone."""
    if run.request:
        asked = run.request.evaluation
        return bool(asked.datasets or asked.benchmarks or asked.prompts or asked.gates)
    names = ("datasets", "benchmarks", "prompts", "gates")
    return any(lookup(run.spec, "evaluation", name) for name in names)


def _retried(run: RunRecords) -> str:
    if _retries(run):
        return f"`finetune retry {run.name}`"
    return "create a job that continues it (spec.resumeFrom)"


def _retries(run: RunRecords) -> bool:
    """Whether the job can be retried: a cancelled one cannot."""
    cancelled = lookup(run.spec, "cancel") is True or text_at(run.status, "failure", "reason") == _CANCELLED
    return run.live and not cancelled


def _again(run: RunRecords) -> str:
    """Returns how to repeat the evaluation."""
    if _retries(run):
        return f"`finetune retry {run.name} --from-stage Evaluate`"
    return "create a job that continues this run folder (spec.resumeFrom)"
