"""Where the time and the money of a job went."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.comparison.records import Object, decimal_at, instant_at, lookup, text_at, whole_at
from finetune_operator.report.model import StageReport, TimeAndCost, TimePart
from finetune_operator.report.records import ReportRecords

#: Times that the training measures itself, as parts of the status and of the progress record.
_MEASURED = (
    ("loading", ("imports", "data", "weights"), ("startup", "data", "restore")),
    ("compiling, and the first step", ("compilation", "firstStep"), ("compile", "first_step")),
    ("training", ("productive",), ("productive",)),
    ("validation during training", ("evaluation",), ("evaluate",)),
    ("lost: steps that were repeated", ("recomputed",), ("recomputed",)),
)  # fmt: skip
#: Share by which the chip hours of the parts may exceed the total before they are taken as inconsistent.
_TOLERANCE = 1.02


def usage(records: ReportRecords, stages: Sequence[StageReport], written: datetime) -> TimeAndCost | None:
    """Returns the usage; None if nothing is known.

    Chip hours of a part are its seconds times the chips of the slice. They are left out if that contradicts the
    operator's total, for example because attempts ran on different slices.
    """
    status = records.run.status
    start = instant_at(status, "startTime")
    end = instant_at(status, "completionTime") or (written if records.run.live else None)
    whole = max(0.0, (end - start).total_seconds()) if start and end else None
    parts = [
        *_of_stages(records, stages, status),
        *([] if whole is None else _rest(whole, stages)),
    ]
    total = _number(decimal_at(status, "cost", "chipHours"))
    held = sum(part.chip_hours or 0.0 for part in parts)
    if total is None or held > total * _TOLERANCE:
        parts = [_without_chips(part) for part in parts]
    elif total > 0:
        amount = _number(decimal_at(status, "cost", "amount"))
        parts = [_priced(part, amount, total) for part in parts]
    found = TimeAndCost(
        parts=[part for part in parts if part.seconds > 0],
        seconds=whole,
        running_seconds=whole_at(status, "activeTime", "seconds"),
        chip_hours=decimal_at(status, "cost", "chipHours"),
        cost=decimal_at(status, "cost", "amount"),
        currency=(text_at(status, "cost", "currency") or "")[:16] or None,
        budget_remaining=decimal_at(status, "cost", "budgetRemaining"),
        goodput_percent=decimal_at(status, "goodput", "percent"),
    )
    return found if found.parts or found.chip_hours or found.running_seconds else None


def _of_stages(records: ReportRecords, stages: Sequence[StageReport], status: Object) -> Iterator[TimePart]:
    chips = whole_at(status, "resolved", "resources", "chips")
    training = [part for part in _of_training(records, status, chips) if part.seconds > 0]
    if not any(stage.name == Stage.TRAIN and stage.seconds for stage in stages):
        # The run folder of a job that has not ended has no status.
        yield from training
    for stage in stages:
        if not stage.seconds:
            continue
        if stage.name != Stage.TRAIN:
            ran = _running(records, Stage.EVALUATE) if stage.name == Stage.EVALUATE else None
            yield _part(stage.name, stage.seconds, None if ran is None or not chips else ran * chips / 3600)
            continue
        left = stage.seconds
        for part in training:
            # What the training measured is part of its stage, unless the stage was retried from the beginning.
            seconds = min(part.seconds, left)
            left -= seconds
            yield _part(part.name, seconds, part.chip_hours if seconds == part.seconds else None)
        yield _part("Train: saving, and between attempts" if training else "Train", left, None)


def _of_training(records: ReportRecords, status: Object, chips: int | None) -> Iterator[TimePart]:
    seconds = _section(lookup(status, "goodput", "seconds"))
    parts = {**seconds, **_section(lookup(status, "goodput", "startup"))}
    progress = records.run.progress
    yield _part("Train: queued", _seconds(seconds, ("queued",)), None)
    waiting = _seconds(seconds, ("provisioning",))
    yield _part("Train: waiting for nodes and images", waiting, None)
    for name, in_status, in_progress in _MEASURED:
        found = _seconds(parts, in_status) if seconds else 0.0
        if not seconds and progress:
            found = sum(progress.seconds.get(each, 0.0) for each in in_progress)
        yield _part(f"Train: {name}", found, found * chips / 3600 if chips else None)


def _running(records: ReportRecords, stage: Stage) -> float | None:
    """Returns the seconds in which processes of a stage ran, by the records of its attempts."""
    found = [
        (each.result.finished - each.result.started).total_seconds()
        for each in records.attempts
        if each.stage is stage and each.result
    ]
    return sum(max(0.0, each) for each in found) if found else None


def _rest(whole: float, stages: Sequence[StageReport]) -> Iterator[TimePart]:
    """Yields the time that belongs to no stage."""
    left = whole - sum(stage.seconds or 0.0 for stage in stages)
    if left >= 1:
        yield _part("between stages", left, None)


def _part(name: str, seconds: float, chip_hours: float | None) -> TimePart:
    return TimePart(name=name, seconds=seconds, chip_hours=chip_hours, cost=None)


def _without_chips(part: TimePart) -> TimePart:
    return _part(part.name, part.seconds, None)


def _priced(part: TimePart, amount: float | None, total: float) -> TimePart:
    if amount is None or part.chip_hours is None:
        return part
    return TimePart(
        name=part.name,
        seconds=part.seconds,
        chip_hours=part.chip_hours,
        cost=amount * part.chip_hours / total,
    )


def _section(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _seconds(section: Mapping[str, object], names: Sequence[str]) -> float:
    return float(sum(whole_at(section, name) or 0 for name in names))


def _number(decimal: str | None) -> float | None:
    return None if decimal is None else float(decimal)
