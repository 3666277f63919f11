"""A place of an object that is not valid, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_operator.cli.documents import Place


@dataclass(frozen=True, slots=True)
class SchemaViolation:
    """One violation. ``fix`` is empty if the message includes the remedy."""

    place: Place
    message: str
    fix: str = ""


def shown(value: Any) -> str:
    """Formats a value for a message: long texts are truncated, objects and lists are named by their type."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 64 else f'"{value[:61]}…"'
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case _:
            return str(value)
