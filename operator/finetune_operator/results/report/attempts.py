"""The attempts of a job and what interrupted them, from the status and from the run folder."""

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter

from finetune_contract import ExitCode, Failure, FailureClass, Outcome, Stage, TrainOutcome
from finetune_operator.objects import Object
from finetune_operator.results.records import (
    MOST_ATTEMPTS,
    AttemptPlace,
    AttemptRecords,
    RunRecords,
    list_at,
    lookup,
    text_at,
    whole_at,
)
from finetune_operator.results.report.model import AttemptReport, Attempts

_JOBSET = re.compile(r"-(?:prep|conv|train|eval|export)-([0-9]{1,6})$")
_STAGES = tuple(Stage)


def attempts(run: RunRecords) -> Attempts | None:
    """Returns the attempts; None if there was none."""
    counted = lookup(run.status, "attempts")
    ended, evictions = _history(counted)
    recorded = {(each.stage, each.number, each.restart): each for each in run.attempts}
    running = _running(run.status)
    found: list[tuple[tuple[int, int, int], AttemptReport]] = []
    for stage in _STAGES:
        keys = sorted(key for key in {*ended, *recorded} if key[0] is stage)
        for rank, key in enumerate(keys, start=1):
            entry = ended.get(key, {})
            place = stage.order, whole_at(entry, "attempt") or rank, 1
            records = recorded.get(key, AttemptRecords(stage=stage, number=key[1], restart=key[2]))
            found.append((place, _attempt(records, entry, runs=key == running)))
    for stage, number, entry in evictions:
        found.append(((stage.order, number, 0), _eviction(stage, number, entry)))
    found.sort(key=itemgetter(0))
    total = max(whole_at(counted, "total") or 0, len({*ended, *recorded}) + run.attempts_left_out)
    if not total:
        return None
    return Attempts(
        shown=[report for _, report in found[-MOST_ATTEMPTS:]],
        total=total,
        preemptions=whole_at(counted, "preemption") or 0,
        infrastructure=whole_at(counted, "infrastructure") or 0,
        user=whole_at(counted, "user") or 0,
    )


def _history(counted: object) -> tuple[Mapping[AttemptPlace, Object], Sequence[tuple[Stage, int, Object]]]:
    """Returns the entries of ``status.attempts.history``: of attempts, and of evictions, which name no JobSet."""
    ended: dict[AttemptPlace, Object] = {}
    evictions: list[tuple[Stage, int, Object]] = []
    for entry in list_at(counted, "history"):
        name, number = lookup(entry, "stage"), whole_at(entry, "attempt")
        if name not in _STAGES or number is None or not isinstance(entry, Mapping):
            continue
        stage, match = Stage(str(name)), _JOBSET.search(text_at(entry, "jobSet") or "")
        if match:
            ended[stage, int(match[1]), whole_at(entry, "restart") or 0] = entry
        else:
            evictions.append((stage, number, entry))
    return ended, evictions


def _attempt(records: AttemptRecords, entry: Object, *, runs: bool) -> AttemptReport:
    """Returns an attempt. ``runs``: whether the status shows it as running."""
    result = records.result
    failure = records.failure or (result.failure if result else None)
    trained = result.details if result and isinstance(result.details, TrainOutcome) else None
    start_step, end_step = whole_at(entry, "startStep"), whole_at(entry, "endStep")
    if trained:
        start_step, end_step = trained.start_step, trained.step
    elif failure:
        start_step = failure.start_step if start_step is None else start_step
        end_step = failure.step if end_step is None else end_step
    seconds = max(0.0, (result.finished - result.started).total_seconds()) if result else None
    if failure and failure.seconds is not None:
        seconds = failure.seconds
    outcome = _outcome(records, entry, runs=runs)
    reason = text_at(entry, "reason") or (failure.reason if failure else None)
    restart = f".{records.restart}" if records.restart else ""
    return AttemptReport(
        name=f"{records.stage} {records.number}{restart}",
        outcome=outcome,
        failure_class=text_at(entry, "class") or (None if entry else _class_of(failure)),
        reason=None if reason == outcome else reason,
        message=failure.message if failure else None,
        fix=(failure.fix or None) if failure else None,
        node=text_at(entry, "node"),
        start=result.started if result else None,
        seconds=seconds,
        queued=failure.queued if failure else None,
        provisioning=failure.provisioning if failure else None,
        start_step=start_step,
        end_step=end_step,
        lost_steps=whole_at(entry, "lostSteps"),
    )


def _eviction(stage: Stage, number: int, entry: Object) -> AttemptReport:
    """Returns a run of an attempt that a queue has ended, or an attempt whose JobSet is not known."""
    evicted = text_at(entry, "class") == FailureClass.QUOTA
    shown = {"name": f"{stage}, attempt {number}", "outcome": "Evicted" if evicted else _ended(entry)}
    return _attempt(AttemptRecords(stage=stage, number=number), entry, runs=False).model_copy(update=shown)


def _outcome(records: AttemptRecords, entry: Object, *, runs: bool) -> str:
    if records.result:
        return str(records.result.outcome)
    if entry:
        return _ended(entry)
    if records.failure:
        return str(Outcome.STOPPED if _class_of(records.failure) is None else Outcome.FAILED)
    return "Running" if runs else "no record of its end"


def _ended(entry: Object) -> str:
    """Returns the outcome by an entry of the history, which has no class if the attempt has not failed."""
    if text_at(entry, "class"):
        return str(Outcome.FAILED)
    succeeded = text_at(entry, "reason") == Outcome.SUCCEEDED
    return str(Outcome.SUCCEEDED if succeeded else Outcome.STOPPED)


def _class_of(failure: Failure | None) -> FailureClass | None:
    """Returns the class of a recorded failure; None for a stop, of which the record alone does not show the class."""
    return None if failure is None or failure.code == ExitCode.STOPPED else failure.failure_class


def _running(status: Object) -> AttemptPlace | None:
    """Returns the attempt that the status shows as running."""
    for stage in list_at(status, "stages"):
        name, match = lookup(stage, "name"), _JOBSET.search(text_at(stage, "jobSet") or "")
        if lookup(stage, "phase") == "Running" and name in _STAGES and match:
            return Stage(str(name)), int(match[1]), whole_at(stage, "restart") or 0
    return None
