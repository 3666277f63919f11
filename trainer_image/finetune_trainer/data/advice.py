"""Guesses the intended meaning of a faulty dataset, for the suggested fix in an error message. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Role names of other datasets -> the role to suggest.
LIKELY_ROLE = {
    "bot": "assistant", "gpt": "assistant", "model": "assistant", "ai": "assistant", "chatgpt": "assistant",
    "human": "user", "person": "user", "customer": "user", "prompter": "user", "developer": "system",
    "function": "tool", "observation": "tool",
}  # fmt: skip
#: Column names of the API -> names of the same columns in other datasets.
COLUMNS = {
    "messages": ("conversations", "conversation", "chat", "dialogue", "dialog", "turns"),
    "prompt": ("instruction", "input", "query", "source", "question"),
    "completion": ("response", "output", "target", "reply", "answer"),
    "question": ("query", "problem"),
    "answer": ("solution", "answers"),
    "chosen": ("accepted", "preferred", "winner"),
    "rejected": ("dispreferred", "loser"),
    "text": ("content", "body", "document", "passage"),
}


def _likely(row: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, str]:
    """Returns the API's column names -> columns of the row that are likely meant."""
    lowered = {name.lower(): name for name in row}
    return {
        ours: lowered[name]
        for ours in wanted
        for name in [next((n for n in (ours, *COLUMNS[ours]) if n in lowered), None)]
        if name is not None
    }


def format_advice(row: Mapping[str, Any], formats: Sequence[Sequence[str]]) -> str:
    """Returns advice for a row of unknown format.

    ``formats`` are the columns that each format needs. Suggests the format with the fewest columns to rename.
    """
    found = [(_likely(row, needs), needs) for needs in formats]
    whole = [names for names, needs in found if len(names) == len(needs)]
    if not whole:
        return "Name the columns, for example: columns: {prompt: …, completion: …} or columns: {messages: …}."
    return _mapping(min(whole, key=lambda names: sum(a != b.lower() for a, b in names.items())))


def column_advice(row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Returns advice for columns that a format needs and the row does not have."""
    found = _likely(row, wanted)
    if found:
        return _mapping(found)
    return f"Name the columns: columns: {{{', '.join(f'{name}: …' for name in wanted)}}}."


def _mapping(found: Mapping[str, str]) -> str:
    return f"Name them: columns: {{{', '.join(f'{ours}: {theirs}' for ours, theirs in found.items())}}}."


def kind(value: object) -> str:
    """Describes the type of a value."""
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
