"""What the writer of a dataset most likely meant, for the fix in an error: pure."""

from collections.abc import Mapping, Sequence
from typing import Any

#: How other datasets call our roles, for the suggestion in an error.
LIKELY_ROLE = {
    "bot": "assistant", "gpt": "assistant", "model": "assistant", "ai": "assistant", "chatgpt": "assistant",
    "human": "user", "person": "user", "customer": "user", "prompter": "user", "developer": "system",
    "function": "tool", "observation": "tool",
}  # fmt: skip
#: Our names of columns, and how other datasets call them.
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
    """Our names -> columns of the row that may well be meant."""
    lowered = {name.lower(): name for name in row}
    return {
        ours: lowered[name]
        for ours in wanted
        for name in [next((n for n in (ours, *COLUMNS[ours]) if n in lowered), None)]
        if name is not None
    }


def format_advice(row: Mapping[str, Any], formats: Sequence[Sequence[str]]) -> str:
    """For the format, given by the columns it needs, that takes the fewest of our names for others."""
    found = [(_likely(row, needs), needs) for needs in formats]
    whole = [names for names, needs in found if len(names) == len(needs)]
    if not whole:
        return "Name the columns, for example: columns: {prompt: …, completion: …} or columns: {messages: …}."
    return _mapping(min(whole, key=lambda names: sum(a != b.lower() for a, b in names.items())))


def column_advice(row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """For columns that a format should have."""
    found = _likely(row, wanted)
    if found:
        return _mapping(found)
    return f"Name the columns: columns: {{{', '.join(f'{name}: …' for name in wanted)}}}."


def _mapping(found: Mapping[str, str]) -> str:
    return f"Name them: columns: {{{', '.join(f'{ours}: {theirs}' for ours, theirs in found.items())}}}."


def kind(value: object) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
