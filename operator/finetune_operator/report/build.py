"""Builds a report from the records of one run. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.comparison import RunRecords
from finetune_operator.comparison.jobs import compared_job, without_evaluation
from finetune_operator.comparison.records import decimal_at, instant_at, lookup, text_at, whole_at
from finetune_operator.report.attempts import attempts
from finetune_operator.report.bounds import bounded
from finetune_operator.report.curves import loss_curve, other_curves, throughput
from finetune_operator.report.evaluation import answers, evaluation
from finetune_operator.report.model import FailureReport, Report, StageReport, Waiting
from finetune_operator.report.records import ReportRecords
from finetune_operator.report.results import configuration, data, files
from finetune_operator.report.usage import usage

_STAGES = tuple(Stage)
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


def report_of(records: ReportRecords, written: datetime) -> Report:
    """Returns the report. ``written``: when the records were read; times of a running job count until then."""
    run, status = records.run, records.run.status
    job = compared_job("", run)
    stages = list(_stages(run, written))
    found = Report(
        name=run.name,
        written=written,
        namespace=run.namespace,
        uid=text_at(run.metadata, "uid"),
        labels=dict(_labels(run)),
        run_folder=run.run_folder,
        live=run.live,
        phase=job.phase,
        summary=text_at(status, "summary"),
        created=instant_at(run.metadata, "creationTimestamp"),
        started=instant_at(status, "startTime"),
        ended=instant_at(status, "completionTime"),
        model=bounded(job.model),
        method=job.method,
        slice=_slice(run),
        steps=job.steps if job.steps is not None else whole_at(status, "progress", "step"),
        total_steps=job.total_steps if job.total_steps is not None else _total_steps(run),
        waiting=_waiting(run),
        failure=_failure(run),
        stages=stages,
        usage=usage(records, stages, written),
        loss=loss_curve(run, records.metrics),
        throughput=throughput(run, records.metrics),
        curves=other_curves(records.metrics),
        data=data(records),
        evaluation=evaluation(run),
        answers=answers(run),
        attempts=attempts(records),
        configuration=configuration(run),
        files=files(records),
        unreadable=list(_unreadable(records)),
    )
    return replace(found, missing=list(_missing(found, run)))


def _labels(run: RunRecords) -> Iterator[tuple[str, str]]:
    labels = lookup(run.metadata, "labels")
    for name, value in list(labels.items())[:_MOST_LABELS] if isinstance(labels, Mapping) else ():
        yield str(name)[:317], str(value)[:63]


def _slice(run: RunRecords) -> str | None:
    resources = lookup(run.status, "resolved", "resources")
    parts = [text_at(resources, name) for name in ("tpu", "topology", "capacity")]
    return ", ".join(part for part in parts if part) or None


def _total_steps(run: RunRecords) -> int | None:
    if run.preflight:
        return run.preflight.steps
    return whole_at(run.status, "progress", "totalSteps")


def _waiting(run: RunRecords) -> Waiting | None:
    found = lookup(run.status, "waiting")
    reason = text_at(found, "reason")
    if reason is None:
        return None
    return Waiting(reason=reason, message=text_at(found, "message") or "", since=instant_at(found, "since"))


def _failure(run: RunRecords) -> FailureReport | None:
    found = lookup(run.status, "failure")
    reason = text_at(found, "reason")
    if reason is None:
        return None
    evidence = lookup(found, "evidence")
    return FailureReport(
        reason=reason,
        failure_class=text_at(found, "class"),
        stage=text_at(found, "stage"),
        attempt=whole_at(found, "attempt"),
        message=text_at(found, "message") or "",
        suggestion=text_at(found, "suggestion"),
        evidence=evidence[:8192] if isinstance(evidence, str) and evidence else None,
        logs=text_at(found, "logsURI"),
    )


def _stages(run: RunRecords, written: datetime) -> Iterator[StageReport]:
    listed = lookup(run.status, "stages")
    known = {text_at(stage, "name"): stage for stage in (listed if isinstance(listed, list) else ())}
    for name in _STAGES:
        stage = known.get(str(name))
        if stage is None:
            continue
        start, end = instant_at(stage, "startTime"), instant_at(stage, "completionTime")
        until = end or (written if run.live and lookup(stage, "phase") == "Running" else None)
        yield StageReport(
            name=str(name),
            phase=text_at(stage, "phase") or "Pending",
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


def _unreadable(records: ReportRecords) -> Iterator[str]:
    sentences = [*records.run.unreadable, *records.unreadable]
    yield from sentences[:_MOST_UNREADABLE]
    if (more := len(sentences) - _MOST_UNREADABLE) > 0:
        yield f"{more:,} more records are unreadable."


def _missing(found: Report, run: RunRecords) -> Iterator[tuple[str, str]]:
    """Yields the parts that the report does not have, and why."""
    if not found.phase and run.live:
        yield "Status", "the operator has not observed the job yet."
    elif not found.phase:
        yield "Status", "there is no status.json: the job has not ended, or was deleted before its end."
    why = _STATE.get(found.phase or "", f": the job is {found.phase}" if found.phase else "")
    answered = found.answers or not found.evaluation
    exported = found.files and found.files.exports
    absent = (
        ("Time and cost", found.usage, f"nothing has run yet{why}."),
        ("Data report", found.data, f"Preflight has written none{why}."),
        ("Loss", found.loss, f"the training has measured nothing{why}."),
        ("Throughput", found.throughput, f"the training has measured nothing{why}."),
        ("Evaluation", found.evaluation, without_evaluation(run)),
        ("Answers", answered, "no prompt and no question of a dataset was answered."),
        ("Exported files", exported, f"nothing is exported{why}."),
    )
    yield from ((name, reason) for name, part, reason in absent if not part)
