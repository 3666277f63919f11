"""Guesses the intended meaning of a faulty row, for the suggested fix in an error message. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_trainer.readers.known_names import is_empty, known_name

#: Maximum number of characters of a name in a message.
_NAME = 100
#: Columns with the conversation in exports of chats.
_EXPORTS = {"mapping": "ChatGPT's export", "chat_messages": "claude.ai's export"}
#: Columns of the API that another one can stand for.
ALIKE = {"question": "prompt", "answer": "completion"}


def format_advice(row: Mapping[str, Any], formats: Sequence[Sequence[str]]) -> str:
    """Returns advice for a row that has the columns of none of the formats.

    ``formats`` are the columns that each needs. Suggests the one with the fewest columns to rename. Further columns of
    the row are read or refused by name once these are mapped.
    """
    found = [likely(row, needs) for needs in formats]
    whole = [names for names, needs in zip(found, formats, strict=True) if len(names) == len(needs)]
    # A text beside others is rarely all that is to be trained.
    if sum(isinstance(value, str) and not is_empty(value) for value in row.values()) > 1:
        whole = [names for names in whole if "text" not in names]
    if whole:
        names = min(whole, key=lambda names: sum(a != b.lower() for a, b in names.items()))
        return (
            f"Name them: columns: {{{', '.join(f'{ours}: {quoted(name)}' for ours, name in names.items())}}}."
        )
    examples = [", ".join(f"{name}: …" for name in needs) for needs in formats[:2]]
    ways = " or ".join(f"columns: {{{example}}}" for example in examples)
    return _several(row) or f"Name the columns, for example: {ways}, or remove the row."


def likely(row: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, str]:
    """Returns the API's column names -> columns of the row that are likely meant, each once."""
    found: dict[str, str] = {}
    for ours in wanted:
        for name in sorted(row, key=lambda name: name.lower() != ours):
            known = known_name("column", name)
            meant = known is not None and known.way in {ours, ALIKE.get(ours)}
            fits = _is_talk(row[name]) or (ours != "messages" and isinstance(row[name], str))
            if meant and name not in found.values() and fits:
                found[ours] = name
                break
    return found


def _several(row: Mapping[str, Any]) -> str:
    """Returns advice for a row with a choice that is the user's, of answers or of branches; '' for any other row."""
    for name, value in row.items():
        if name in _EXPORTS and isinstance(value, list | dict):
            what = f"{quoted(name)} is a conversation of {_EXPORTS[name]}, which may have several branches"
            return f"{what}. Write the messages of one, as docs/data.md does (exports of chats)."
        known = known_name("column", name) if isinstance(value, list) and len(value) > 1 else None
        if known and known.way == "completion" and not _is_talk(value):
            return (
                f"{quoted(name)} has several answers. Write a row for each to train on, with prompt and completion, or "
                "for each pair, with prompt, and the better and the worse one as chosen and rejected (docs/data.md)."
            )
    return ""


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(turn, dict) and {"role", "from"} & turn.keys() for turn in value
    )


def quoted(name: str) -> str:
    """Returns the name of a column or key as YAML writes it, at most 100 characters of one printable line."""
    plain = re.fullmatch(r"[^\W\d][\w-]*(?: [\w-]+)*", name) and len(name) <= _NAME
    return name if plain else json.dumps(name if len(name) <= _NAME else name[:_NAME] + "…")


def leave_out(*names: str, what: str = "") -> str:
    """Returns the advice to leave out columns, or keys of messages, on purpose; ``what`` stands for them."""
    what = what or ("it" if len(names) == 1 else "them")
    return f"leave {what} out on purpose: columns: {{ignore: [{', '.join(map(quoted, names))}]}}"


def kind(value: object) -> str:
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
