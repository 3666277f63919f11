"""Timestamps as Kubernetes writes them: UTC, whole seconds."""

from datetime import UTC, datetime, timedelta


def after(time: datetime, seconds: float) -> datetime:
    """So many seconds later; the end of all times where that is beyond it, for trainers may write any time."""
    try:
        return time + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def stamp(time: datetime) -> str:
    """``2026-11-21T12:00:00Z``; total, also where a trainer's clock tells the end of all years."""
    try:
        time = time.astimezone(UTC)
    except OverflowError:
        time = time.replace(tzinfo=UTC)
    return time.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def parse(text: str) -> datetime:
    """The reverse of :func:`stamp`; fractions of a second are understood too."""
    return datetime.fromisoformat(text)
