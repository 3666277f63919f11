"""Formats what a running stage reports that it is doing (``status.stages[].progress``). Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from finetune_operator.cli import text

type Object = Mapping[str, Any]

#: Least share and least seconds of an activity from which its remaining time is estimated.
_SHARE, _SECONDS = 0.1, 20.0
#: Seconds after which the page says how old a report is: the operator renews it every 30 s, more rarely with many jobs.
_OLD = 90.0


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
