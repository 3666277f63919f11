"""Timestamps as Kubernetes writes them: UTC, whole seconds."""

from datetime import UTC, datetime


def stamp(time: datetime) -> str:
    """``2026-11-21T12:00:00Z``"""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> datetime:
    """The reverse of :func:`stamp`; fractions of a second are understood too."""
    return datetime.fromisoformat(text)
