"""Timestamps as Kubernetes writes them (RFC 3339, UTC, whole seconds)."""

from datetime import UTC, datetime, timedelta


def after(time: datetime, seconds: float) -> datetime:
    """Returns the time that many seconds later, or earlier if negative, within the possible times: a trainer's record
    and the status of an object may contain any time."""
    try:
        return time + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def whole_second(time: datetime) -> datetime:
    """Returns the time in UTC without its fraction of a second. Never raises, even for the latest time that a trainer's
    clock may record."""
    try:
        time = time.astimezone(UTC)
    except OverflowError:
        time = time.replace(tzinfo=UTC)
    return time.replace(microsecond=0)


def stamp(time: datetime) -> str:
    """Returns ``2026-11-21T12:00:00Z``. Never raises, like :func:`whole_second`."""
    return whole_second(time).replace(tzinfo=None).isoformat() + "Z"


def parse(text: str) -> datetime:
    """Returns the time of a timestamp, with or without fractions of a second."""
    return datetime.fromisoformat(text)
