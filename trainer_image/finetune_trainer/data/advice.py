"""Guesses the intended meaning of a faulty dataset, for the suggested fix in an error message. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_trainer.data.known_names import is_empty, known_name

#: Role names of other datasets -> the role to suggest.
LIKELY_ROLE = {
    "bot": "assistant", "gpt": "assistant", "model": "assistant", "ai": "assistant", "chatgpt": "assistant",
    "human": "user", "person": "user", "customer": "user", "prompter": "user", "developer": "system",
    "function": "tool", "observation": "tool",
}  # fmt: skip
#: Column names of the API -> names of the same columns in other datasets.
_SYNONYMS = {
    "messages": ("conversations", "conversation", "chat", "dialogue", "dialog", "turns"),
    "prompt": ("instruction", "input", "query", "source", "question"),
    "completion": ("response", "output", "target", "reply", "answer"),
    "question": ("query", "problem"),
    "answer": ("solution", "answers"),
    "chosen": ("accepted", "preferred", "winner"),
    "rejected": ("dispreferred", "loser"),
    "text": ("content", "body", "document", "passage"),
}
#: Optional columns that an advice maps as well.
_OPTIONAL = frozenset({"system", "input", "history", "tools"})


def _likely(row: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, str]:
    """Returns the API's column names -> columns of the row that are likely meant."""
    lowered = {name.lower(): name for name in row}
    return {
        ours: lowered[name]
        for ours in wanted
        for name in [next((n for n in (ours, *_SYNONYMS[ours]) if n in lowered), None)]
        if name is not None
    }


def format_advice(row: Mapping[str, Any], formats: Sequence[Sequence[str]]) -> str:
    """Returns advice for a row of unknown format.

    ``formats`` are the columns that each format needs. Suggests the format with the fewest columns to rename.
    """
    found = [(_likely(row, needs), needs) for needs in formats]
    whole = [
        names for names, needs in found if len(names) == len(needs) and len(set(names.values())) == len(names)
    ]
    if not whole:
        return "Name the columns, for example: columns: {prompt: …, completion: …} or columns: {messages: …}."
    return _mapping(row, min(whole, key=lambda names: sum(a != b.lower() for a, b in names.items())))


def column_advice(row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """Returns advice for columns that a format needs and the row does not have."""
    there = {name: name for name in wanted if name in row}
    missing = [name for name in wanted if name not in there]
    found = _likely({name: value for name, value in row.items() if name not in there}, missing)
    if len(found) == len(missing):
        return _mapping(row, there | found)
    return f"Name the columns: columns: {{{', '.join(f'{name}: …' for name in missing)}}}, or remove the row."


def _mapping(row: Mapping[str, Any], found: Mapping[str, str]) -> str:
    """Returns advice to map columns. It also maps the optional ones, and names those that it leaves out."""
    rest = [name for name in row if name not in found.values() and not is_empty(row[name])]
    known = {name: meaning for name in rest if (meaning := known_name("column", name))}
    optional = {
        meaning.meaning: name for name, meaning in reversed(known.items()) if meaning.meaning in _OPTIONAL
    }
    mapped = {**found, **({} if {"messages", "text"} & found.keys() else optional)}
    said = f"Name them: columns: {{{', '.join(f'{ours}: {theirs}' for ours, theirs in mapped.items())}}}."
    left = [
        name for name in rest if name not in mapped.values() and (name in known or isinstance(row[name], str))
    ]
    return f"{said} This leaves out {', '.join(left[:8])}." if left else said


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
