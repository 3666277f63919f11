"""Formats the stages of a status, with what a running one reports that it is doing. Pure."""

from collections.abc import Iterator
from datetime import datetime

from rich.text import Text

from finetune_contract import Stage
from finetune_operator.cli import text
from finetune_operator.objects import Object

_MARKS = {
    "Pending": ("·", "dim"),
    "Running": ("▶", "cyan"),
    "Succeeded": ("✓", "green"),
    "Failed": ("✗", "red"),
    "Skipped": ("–", "dim"),
}
_SKIPPED = {
    "NotRequested": "not requested",
    "NotReached": "",
    "ProvidedCheckpoint": "given as a MaxText checkpoint",
}
#: Least share and least seconds of an activity from which its remaining time is estimated.
_SHARE, _SECONDS = 0.1, 20.0
#: Seconds after which the page says how old a report is: the operator renews it every 30 s, more rarely with many jobs.
_OLD = 90.0


def stage_lines(status: Object, now: datetime) -> Iterator[Text]:
    """Yields a line for each stage, and one for what a running stage is doing."""
    known = {stage.get("name"): stage for stage in status.get("stages") or []}
    for name in Stage:
        stage = known.get(name) or {"name": name, "phase": "Pending"}
        phase = str(stage.get("phase") or "Pending")
        symbol, style = mark(phase)
        line = Text()
        line.append(f"{symbol} ", style)
        line.append(f"{name:<10}", "" if phase != "Pending" else "dim")
        spent = text.elapsed(stage.get("startTime"), stage.get("completionTime"), now)
        line.append(f"{text.duration(spent.total_seconds()) if spent else '':>12}  ", "dim")
        line.append(text.printable("  ".join(stage_notes(stage, status))))
        line.rstrip()
        yield line
        if (progress := running(stage)) and (doing := activity(progress, now)):
            yield Text(f"  {doing}", "dim")


def mark(phase: str) -> tuple[str, str]:
    """Returns symbol and style of a stage's phase."""
    return _MARKS.get(phase, ("?", ""))


def stage_notes(stage: Object, status: Object) -> Iterator[str]:
    """Yields notes on one stage in addition to its phase and duration."""
    phase = stage.get("phase")
    cache = stage.get("cache") or {}
    if cache.get("result") == "Hit":
        saved = cache.get("savedSeconds")
        yield f"reused from the cache{f', saved {text.duration(float(saved))}' if saved else ''}"
    elif cache.get("missBecause"):
        yield f"cache miss: {'; '.join(map(str, cache['missBecause']))}"
    if (attempt := stage.get("attempt") or 1) > 1:
        yield f"attempt {attempt}"
    if stage.get("resumedFromStep"):
        yield f"resumed from step {stage['resumedFromStep']}"
    yield from counts(running(stage))
    if stage.get("name") == "Train" and phase in ("Running", "Succeeded", "Failed"):
        yield from progress_notes(status, running=phase == "Running")
    elif phase == "Skipped":
        yield _SKIPPED.get(str(stage.get("reason")), str(stage.get("reason") or ""))
    elif phase == "Failed" and stage.get("reason"):
        yield str(stage["reason"])


def progress_notes(status: Object, *, running: bool) -> Iterator[str]:
    """Yields the training's progress bar, steps, loss, speed and ETA."""
    progress = status.get("progress") or {}
    step, total = progress.get("step"), progress.get("totalSteps")
    if step is None or not total:
        return
    if running:
        yield text.bar(float(step), float(total))
    yield str(progress.get("stepText") or f"{step}/{total}")
    if (loss := text.metric(status, "loss")) is not None:
        yield f"loss {text.number(loss)}"
    if running and (speed := progress.get("tokensPerSecond")):
        yield f"{text.count(float(speed))} tokens/s"
    if running and (eta := progress.get("etaText")):
        yield f"{eta} left"


def running(stage: Object) -> Object:
    """Returns what a running stage has reported; empty for any other stage."""
    progress: Object = stage.get("progress") or {}
    return progress if stage.get("phase") == "Running" else {}


def counts(progress: Object) -> Iterator[str]:
    """Yields what is done: ``12/37 tensors``, and ``1.9 of 6.2 GiB`` if it has a size."""
    if unit := text.one_line(progress.get("unit") or ""):
        total = progress.get("total")
        done = f"{progress.get('done') or 0:,}"
        yield f"{done} {unit}" if total is None else f"{done}/{total:,} {unit}"
    if size := progress.get("totalBytes"):
        yield text.part_of_size(float(progress.get("doneBytes") or 0), float(size))


def activity(progress: Object, now: datetime) -> str:
    """Returns the activity in words, the time that it still takes if that can be estimated, and the report's age."""
    parts = [text.one_line(progress.get("doing") or "")]
    age = text.elapsed(progress.get("lastUpdateTime"), None, now)
    seconds = age.total_seconds() if age else 0.0
    if (left := _seconds_left(progress)) is not None and left > seconds:
        parts.append(f"about {text.duration(left - seconds)} left")
    if seconds > _OLD:
        parts.append(f"as of {text.duration(seconds)} ago")
    return ", ".join(part for part in parts if part)


def share(progress: Object) -> float:
    """Returns the part of the activity that is done, from 0 to 1; 0 if it is not known."""
    for done, total in (("doneBytes", "totalBytes"), ("done", "total")):
        if progress.get(total):
            return min(1.0, float(progress.get(done) or 0) / float(progress[total]))
    return 0.0


def _seconds_left(progress: Object) -> float | None:
    """Returns the estimate at the time of the report. Only bytes are expected to take equally long."""
    began, updated = text.instant(progress.get("since")), text.instant(progress.get("lastUpdateTime"))
    if began is None or updated is None or not progress.get("totalBytes"):
        return None
    done, seconds = share(progress), (updated - began).total_seconds()
    if not (_SHARE <= done < 1.0 and seconds >= _SECONDS):
        return None
    return seconds * (1.0 - done) / done
