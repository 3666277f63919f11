"""Builds a report from the records of one run. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.results.comparison.jobs import compared_job, without_evaluation
from finetune_operator.results.records import (
    ResultPart,
    RunRecords,
    decimal_at,
    instant_at,
    list_at,
    lookup,
    text_at,
    whole_at,
)
from finetune_operator.results.report.attempts import attempts
from finetune_operator.results.report.curves import loss_curve, other_curves
from finetune_operator.results.report.evaluation import answers, evaluation
from finetune_operator.results.report.model import FailureReport, Report, StageReport, Waiting, bounded
from finetune_operator.results.report.results import configuration, data, files
from finetune_operator.results.report.usage import usage

#: Numbers of labels and of sentences about unreadable records.
_MOST_LABELS, _MOST_UNREADABLE = 32, 50
#: Why an ended job lacks something, by its phase.
_STATE = {"Succeeded": "", "Failed": ": the job failed before", "Planned": ": the job only plans (planOnly)"}
#: Why a stage was skipped, by its reason.
_SKIPPED = {
    "NotRequested": "not requested",
    "NotReached": "not reached",
    "ProvidedCheckpoint": "given as a MaxText checkpoint",
}


def report_of(run: RunRecords, written: datetime) -> Report:
    """Returns the report. ``written``: when the records were read; times of a running job count until then."""
    status, job = run.status, bounded(compared_job("A", run))
    stages = list(_stages(run, written))
    resources = lookup(status, "resolved", "resources")
    where = [text_at(resources, name) for name in ("tpu", "topology", "capacity")]
    total_steps = run.preflight.steps if run.preflight else whole_at(status, "progress", "totalSteps")
    report = Report(
        job=job,
        written=written,
        uid=text_at(run.metadata, "uid"),
        labels=_labels(run),
        live=run.live,
        summary=text_at(status, "summary"),
        created=instant_at(run.metadata, "creationTimestamp"),
        started=instant_at(status, "startTime"),
        ended=instant_at(status, "completionTime"),
        slice=", ".join(part for part in where if part) or None,
        steps=job.steps if job.steps is not None else whole_at(status, "progress", "step"),
        total_steps=job.total_steps if job.total_steps is not None else total_steps,
        waiting=_with_reason(Waiting, run, "waiting"),
        failure=_with_reason(FailureReport, run, "failure"),
        stages=stages,
        usage=usage(run, stages, written),
        loss=loss_curve(run),
        curves=list(other_curves(run.metrics)),
        data=data(run),
        evaluation=evaluation(run),
        answers=answers(run),
        attempts=attempts(run),
        configuration=configuration(run),
        files=files(run),
        unreadable=list(_unreadable(run)),
    )
    return report.model_copy(update={"missing": list(_missing(report, run))})


def _labels(run: RunRecords) -> Mapping[str, str]:
    labels = lookup(run.metadata, "labels")
    shown = list(labels.items())[:_MOST_LABELS] if isinstance(labels, Mapping) else ()
    return {str(name)[:317]: str(value)[:63] for name, value in shown}


def _with_reason[P: ResultPart](part: type[P], run: RunRecords, name: str) -> P | None:
    """Returns a part of the status; None if it has no reason, as nothing waits or has failed."""
    document = lookup(run.status, name)
    return part.model_validate(document) if text_at(document, "reason") else None


def _stages(run: RunRecords, written: datetime) -> Iterator[StageReport]:
    by_name = {text_at(stage, "name"): stage for stage in list_at(run.status, "stages")}
    for name in map(str, Stage):
        stage = by_name.get(name)
        if stage is None:
            continue
        phase = text_at(stage, "phase") or "Pending"
        start, end = instant_at(stage, "startTime"), instant_at(stage, "completionTime")
        until = end or (written if run.live and phase == "Running" else None)
        yield StageReport(
            name=name,
            phase=phase,
            note=_note(stage),
            start=start,
            end=end,
            seconds=max(0.0, (until - start).total_seconds()) if start and until else None,
        )


def _note(stage: object) -> str | None:
    phase, reason = text_at(stage, "phase"), text_at(stage, "reason")
    if phase == "Skipped" and reason:
        return _SKIPPED.get(reason, reason)
    if lookup(stage, "cache", "result") == "Hit":
        saved = decimal_at(stage, "cache", "savedSeconds")
        return f"from the cache, which saved {float(saved):,.0f} s" if saved else "from the cache"
    if (resumed := whole_at(stage, "resumedFromStep")) is not None and resumed > 0:
        return f"resumed from step {resumed:,}"
    return reason if phase == "Failed" else text_at(stage, "message")


def _unreadable(run: RunRecords) -> Iterator[str]:
    yield from run.unreadable[:_MOST_UNREADABLE]
    if (more := len(run.unreadable) - _MOST_UNREADABLE) > 0:
        yield f"{more:,} more records are unreadable."


def _missing(report: Report, run: RunRecords) -> Iterator[tuple[str, str]]:
    """Yields the parts that the report does not have, and why."""
    if not report.job.phase and run.live:
        yield "Status", "the operator has not observed the job yet."
    elif not report.job.phase:
        yield "Status", "there is no status.json: the job has not ended, or was deleted before its end."
    why = _STATE.get(report.job.phase or "", f": the job is {report.job.phase}" if report.job.phase else "")
    answered = report.answers or not report.evaluation
    exported = report.files and report.files.exports
    absent = (
        ("Time and cost", report.usage, f"nothing has run yet{why}."),
        ("Data report", report.data, f"Preflight has written none{why}."),
        ("Loss", report.loss, f"the training has measured nothing{why}."),
        ("Throughput", report.job.throughput, f"the training has measured nothing{why}."),
        ("Evaluation", report.evaluation, without_evaluation(run)),
        ("Answers", answered, "no prompt and no question of a dataset was answered."),
        ("Exported files", exported, f"nothing is exported{why}."),
    )
    yield from ((name, reason) for name, part, reason in absent if not part)
