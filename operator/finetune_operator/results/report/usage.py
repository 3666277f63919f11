"""Where the time and the money of a job went."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.results.records import (
    RunRecords,
    decimal_at,
    instant_at,
    lookup,
    text_at,
    whole_at,
)
from finetune_operator.results.report.model import StageReport, TimeAndCost, TimePart

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


def usage(run: RunRecords, stages: Sequence[StageReport], written: datetime) -> TimeAndCost | None:
    """Returns the usage; None if nothing is known.

    Chip hours of a part are its seconds times the chips of the slice. They are left out if that contradicts the
    operator's total, for example because attempts ran on different slices.
    """
    status = run.status
    start = instant_at(status, "startTime")
    end = instant_at(status, "completionTime") or (written if run.live else None)
    whole = max(0.0, (end - start).total_seconds()) if start and end else None
    parts = list(_of_stages(run, stages))
    if whole is not None and (rest := whole - sum(stage.seconds or 0.0 for stage in stages)) >= 1:
        parts.append(TimePart(name="between stages", seconds=rest))
    chip_hours, cost = decimal_at(status, "cost", "chipHours"), decimal_at(status, "cost", "amount")
    held = sum(part.chip_hours or 0.0 for part in parts)
    if chip_hours is None or held > float(chip_hours) * _TOLERANCE:
        parts = [part.model_copy(update={"chip_hours": None}) for part in parts]
    elif float(chip_hours) > 0 and cost is not None:
        price = float(cost) / float(chip_hours)
        parts = [
            part if part.chip_hours is None else part.model_copy(update={"cost": price * part.chip_hours})
            for part in parts
        ]
    found = TimeAndCost(
        parts=[part for part in parts if part.seconds > 0],
        seconds=whole,
        running_seconds=whole_at(status, "activeTime", "seconds"),
        chip_hours=chip_hours,
        cost=cost,
        currency=(text_at(status, "cost", "currency") or "")[:16] or None,
        budget_remaining=decimal_at(status, "cost", "budgetRemaining"),
        goodput_percent=decimal_at(status, "goodput", "percent"),
    )
    return found if found.parts or found.chip_hours or found.running_seconds else None


def _of_stages(run: RunRecords, stages: Sequence[StageReport]) -> Iterator[TimePart]:
    chips = whole_at(run.status, "resolved", "resources", "chips")
    training = [part for part in _of_training(run, chips) if part.seconds > 0]
    if not any(stage.name == Stage.TRAIN and stage.seconds for stage in stages):
        # The run folder of a job that has not ended has no status.
        yield from training
    for stage in stages:
        if not stage.seconds:
            continue
        if stage.name != Stage.TRAIN:
            ran = _running(run, Stage.EVALUATE) if stage.name == Stage.EVALUATE else None
            yield _on_chips(stage.name, stage.seconds, ran, chips)
            continue
        left = stage.seconds
        for part in training:
            # What the training measured is part of its stage, unless the stage was retried from the beginning.
            seconds = min(part.seconds, left)
            left -= seconds
            yield part if seconds == part.seconds else TimePart(name=part.name, seconds=seconds)
        yield TimePart(name="Train: saving, and between attempts" if training else "Train", seconds=left)


def _of_training(run: RunRecords, chips: int | None) -> Iterator[TimePart]:
    seconds, startup = (lookup(run.status, "goodput", name) for name in ("seconds", "startup"))
    yield TimePart(name="Train: queued", seconds=float(whole_at(seconds, "queued") or 0))
    waiting = float(whole_at(seconds, "provisioning") or 0)
    yield TimePart(name="Train: waiting for nodes and images", seconds=waiting)
    for name, in_status, in_progress in _MEASURED:
        spent = 0.0
        if seconds:
            spent = float(sum(whole_at(startup, key) or whole_at(seconds, key) or 0 for key in in_status))
        elif run.progress:
            spent = sum(run.progress.seconds.get(key, 0.0) for key in in_progress)
        yield _on_chips(f"Train: {name}", spent, spent, chips)


def _on_chips(name: str, seconds: float, on_chips: float | None, chips: int | None) -> TimePart:
    hours = None if on_chips is None or not chips else on_chips * chips / 3600
    return TimePart(name=name, seconds=seconds, chip_hours=hours)


def _running(run: RunRecords, stage: Stage) -> float | None:
    """Returns the seconds in which processes of a stage ran, by the records of its attempts."""
    seconds = [
        (attempt.result.finished - attempt.result.started).total_seconds()
        for attempt in run.attempts
        if attempt.stage is stage and attempt.result
    ]
    return sum(max(0.0, each) for each in seconds) if seconds else None
