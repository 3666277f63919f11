"""Reads messages of conversations in the forms of OpenAI, ShareGPT and others. Pure.

A message is returned with ``role`` and ``content``, which is text, and with the other keys that a chat template may
read. Other keys are counted (:mod:`.unread`), and those with a known meaning that has no place here are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune_trainer.data.advice import kind, leave_out, quoted
from finetune_trainer.data.turn_keys import WEIGHT, calls_of, from_json, older_call, says_thought, weight_of
from finetune_trainer.data.unread import UnreadValues, refused
from finetune_trainer.readers.known_names import MAX_NAME, by_names, is_empty, known_name
from finetune_trainer.readers.row_location import RowLocation, shown
from finetune_trainer.tokens.chat import Message
from finetune_trainer.tokens.notes import REASONING

#: What precedes a key of messages, or a type of content parts, in ``columns.ignore`` and in the report.
KEYS = "messages[]."
ROLES = ("system", "user", "assistant", "tool")
#: What a turn of the assistant is whose text is the JSON of a call.
_CALL = "call"
#: Keys of a role (OpenAI, ShareGPT, LangChain; the first one counts) and a content (also Gemini, Cohere, OASST).
_ROLE = ("role", "from", "type")
CONTENTS = ("content", "value", "parts", "message", "text")
#: Keys that only messages have together.
_SURE = ({"role", "content"}, {"from", "value"})
_LANGCHAIN = ("system", "human", "ai", "tool")
#: Roles by the names of OpenAI, ShareGPT, LLaMA-Factory, ms-swift, ToolBench, OpenAssistant, Gemini, Llama, LangChain
#: and Cohere, in lower case and without separators.
_ROLES = {
    name: role
    for role, names in (
        ("system", "system systemprompt developer"),
        ("user", "user human prompter"),
        ("assistant", "assistant gpt chatgpt chatbot bard bing bot model ai"),
        ("tool", "tool function observation functionresponse toolresponse toolresult functionresult ipython"),
        (_CALL, "functioncall toolcall toolcalls"),
    )
    for name in names.split()
}
#: Roles by the keys of objects with turns. The first key of a role counts, and another one is refused.
_KEYED = {
    "system": "system", "input": "user", "human": "user", "user": "user",
    "output": "assistant", "assistant": "assistant", "gpt": "assistant", "bot": "assistant",
}  # fmt: skip
#: Types of content parts that are text, in OpenAI's Chat Completions and Responses.
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
#: Types of content parts with calls and their results, of Anthropic, Bedrock and Gemini.
_CALL_PARTS = {"tool_use", "tool_result", "toolUse", "toolResult", "functionCall", "functionResponse"}
_READ = frozenset({"tool_calls", "function_call"})
#: Key of Cohere's reasoning before calls, which its templates read.
_PLAN = "tool_plan"
#: Keys of reasoning as templates spell them, by their names without separators.
_SPELLINGS = {name.replace("_", ""): name for name in REASONING}
#: Keys that a message has, and no part of a content.
_NO_PART = {*CONTENTS, *_SPELLINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """Meaning of a message's keys. Derived once for each set of keys, as many messages have the same."""

    role: str
    contents: Sequence[str]
    """Keys of a content, one of which has it."""
    plain: bool
    """Whether there are no other keys than a role and a content."""
    flags: Sequence[str] = ()
    refused: Sequence[str] = ()
    unread: Sequence[str] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    """Keys that the chat template reads, by its spelling, and reasoning, whose omission is reported elsewhere."""


class MessageReader:
    """Reads the messages of one dataset.

    ``roles`` maps its roles to the standard ones. ``ignored`` contains keys and types of content parts to leave out,
    with ``KEYS`` in front. ``reads`` says whether the chat template reads a key.
    """

    def __init__(
        self,
        roles: Mapping[str, str],
        ignored: frozenset[str],
        unread: UnreadValues,
        reads: Callable[[str], bool],
    ) -> None:
        self._roles, self._unread, self._reads = roles, unread, reads
        self._ignored = {name.removeprefix(KEYS) for name in ignored if name.startswith(KEYS)}
        self._keys = by_names(self._meaning)
        self._reasoning = next(filter(reads, REASONING), "")

    def read(
        self, value: Any, column: str, place: RowLocation, *, first: int = 1, pairs: bool = False
    ) -> list[Message]:
        """Returns the messages of a column: a list of messages, or the same as JSON text.

        ``first`` is the number of the first message, for errors; ``pairs``: whether two texts may be a turn of the user
        and one of the assistant. Raises ``StageError`` 65 with the row's location, the value found and a suggested fix.
        """
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            value = from_json(value, place)
        if not isinstance(value, list) or not value:
            raise place.mismatch(
                f'"{column}" must be a list of messages that is not empty',
                'Write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], as such or as JSON '
                "text.",
                actual="an empty list" if value == [] else kind(value),
            )
        if pairs:
            value = self._paired(value, column, place)
        # of LIMA and UltraChat
        elif len(value) > 1 and isinstance(value[0], str) and all(isinstance(turn, str) for turn in value):
            value = self._alternating(value, column, place)
        if pairs or (isinstance(value[0], dict) and not _KEYED.keys().isdisjoint(value[0])):
            value = [turn for at, each in enumerate(value, first) for turn in self._turns(each, at, place)]
        return [self._message(message, number, place) for number, message in enumerate(value, start=first)]

    def _message(self, message: object, number: int, place: RowLocation) -> Message:
        if not isinstance(message, dict):
            raise place.mismatch(
                f"message {number} is not an object", "Write it as role and content.", actual=kind(message)
            )
        keys = self._keys(tuple(message))
        if not keys.plain:  # Parquet fills absent keys with null.
            message = {name: value for name, value in message.items() if value is not None}
            keys = self._keys(tuple(message))
        role = self._role(message.get(keys.role), keys.role, number, place)
        content = message.get(keys.contents[0]) if keys.plain else self._content(message, keys, number, place)
        if keys.plain and isinstance(content, str) and role != _CALL:
            return {"role": role, "content": content}
        if message.keys() == {"type", "data"} and isinstance(message["data"], dict):  # LangChain
            return self._message({**message["data"], "type": message["type"]}, number, place)
        made = self._others(message, keys, KEYS, f"message {number}", place)
        weight = weight_of({name: message[name] for name in keys.flags}, role, number, place)
        if weight is not None:
            made[WEIGHT] = weight
        calls = message.get("tool_calls")
        older = message.get("function_call") if role != _CALL else content
        if role == _CALL:
            role, content = "assistant", None
        if not is_empty(calls):
            made["tool_calls"] = calls_of(calls, role, number, place)
        elif not is_empty(older):
            made["tool_calls"] = older_call(older, role, number, place)
        if isinstance(content, list):
            content = self.joined(content, f"message {number}", place)
        if content is None and "tool_calls" in made:
            content = ""
        if not isinstance(content, str):
            raise place.mismatch(
                f"the content of message {number} must be text",
                f"Write the {'answer' if role == 'assistant' else 'text'}, or remove the row.",
                actual=kind(content) if message.keys() & {*keys.contents} else "no content",
            )
        return {"role": role, "content": content, **self._apart(made, content, keys, place)}

    def _apart(self, made: dict[str, Any], content: str, keys: _Keys, place: RowLocation) -> dict[str, Any]:
        """Returns what is beside a content: reasoning by the template's name, unless the content has it, too."""
        for key in [key for key in REASONING if not is_empty(made.get(key))]:
            name = KEYS + keys.kept[key]
            if says_thought(content, made[key], name, leave_out(name, what="the other"), place):
                del made[key]
            elif is_empty(made.get(self._reasoning)) and not self._reads(key):
                made[self._reasoning or key] = made.pop(key)
        return made

    def _content(self, message: Message, keys: _Keys, number: int, place: RowLocation) -> Any:
        """Returns the content under the key that says something. Raises ``StageError`` 65 if several differ."""
        where = f"message {number}"
        said = [name for name in keys.contents if not is_empty(message.get(name))] or keys.contents[:1]
        values = [message.get(name) for name in said]
        if len(said) > 1:
            values = [self.joined(each, where, place) if isinstance(each, list) else each for each in values]
        if values != values[:1] * len(values):
            raise place.mismatch(
                f"{' and '.join(said)} of {where} differ, and each may be its content",
                f"Keep one of them, or {leave_out(*(KEYS + name for name in said[1:]))}.",
            )
        return values[0]

    def _others(
        self, message: Message, keys: _Keys, path: str, where: str, place: RowLocation
    ) -> dict[str, Any]:
        """Returns what the template reads beside role, content and calls, and counts the rest under ``path``."""
        if names := [name for name in keys.refused if not is_empty(message[name])]:
            raise refused(names, "message", where, message, place, prefix=KEYS)
        made = {spelled: message[name] for spelled, name in keys.kept.items()}
        for name in keys.unread:
            self._unread.add(path + name, message[name], ignored=name in self._ignored)
        return made

    def _meaning(self, names: tuple[str, ...]) -> _Keys:
        role = next((name for name in _ROLE if name in names), "role")
        contents = [name for name in CONTENTS if name in names and name not in self._ignored] or ["content"]
        rest = [name for name in names if name not in _READ | {role, *contents}]
        known = {name: known_name("message", name) for name in rest if name not in self._ignored}
        kept = {
            _SPELLINGS.get(_plain(name), name): name
            for name, meaning in known.items()
            if (self._reads(name) if meaning is None or name == _PLAN else meaning.meaning == "reasoning")
        }
        left = {name: meaning for name, meaning in known.items() if name not in kept.values()}
        return _Keys(
            role=role,
            contents=contents,
            plain=len(names) == 2 and role in names and contents[0] in names,
            flags=[name for name, meaning in left.items() if meaning and meaning.meaning == "flag"],
            refused=[name for name, meaning in left.items() if meaning and meaning.meaning != "flag"],
            unread=[name for name in rest if left.get(name) is None and name not in kept.values()],
            kept=kept,
        )

    def _role(self, role: object, key: str, number: int, place: RowLocation) -> str:
        if not isinstance(role, str):
            raise place.mismatch(
                f"message {number} has no role",
                f"Give it one of {', '.join(ROLES)}.",
                actual="nothing" if role is None else kind(role),
            )
        standard = _standard(role, self._roles)
        if standard is None and key == "type":  # of a part, or of an item that is no message
            raise place.mismatch(
                f'message {number} has no role, and its type "{shown(role)}" is none',
                f"Give it one of {', '.join(ROLES)} as role, or remove it.",
            )
        if standard is None:
            raise place.mismatch(
                f'role "{shown(role)}" of message {number} is not one of {", ".join(ROLES)}',
                f"Map it: roleMap: {{{quoted(role)}: …}}, to user, system or tool, or to assistant, whose turns are "
                "trained.",
            )
        return standard

    def _turns(self, message: object, number: int, place: RowLocation) -> list[object]:
        """Returns the messages of an object whose keys are roles (Capybara, BELLE, xtuner), whose other keys are
        those of the last one; any other message itself.
        """
        if not isinstance(message, dict):
            return [message]
        said = [name for name, value in message.items() if value is not None and name not in self._ignored]
        found = {_KEYED[name]: name for name in reversed(_KEYED) if name in said}
        if not found or not {*_ROLE, *CONTENTS}.isdisjoint(said):
            return [message]
        names = [found[role] for role in ROLES if role in found]
        written = "Write messages with role and content"
        free = [name for name in said if name not in (*names, *_READ)]
        if others := [name for name in free if name in _KEYED or _plain(name) in _ROLES]:
            where = f"message {number}, whose turns are {' and '.join(names)}"
            raise refused(others, "message", where, message, place, mapped=written, prefix=KEYS)
        # An output is that of its input in any order of the keys; a greeting of the assistant answers nothing.
        order = [name for name in said if name in names and name != "system"]
        if len(order) == 2 and order[0] == names[-1] and order != ["output", "input"]:
            raise place.mismatch(
                f"message {number} has {' before '.join(order)}, which is their order or that of sorted keys",
                f"{written}, or the keys in the order of the turns in all rows.",
            )
        rest = {name: value for name, value in message.items() if name not in names}
        turns = [{"role": _KEYED[name], "content": message[name]} for name in names]
        return [*turns[:-1], {**rest, **turns[-1]}]

    def _alternating(self, texts: Sequence[str], column: str, place: RowLocation) -> Sequence[Message]:
        """Returns texts, of which the first is the user's, as messages."""
        named = all(_standard(text.partition(":")[0], self._roles) for text in texts[:2])
        if named or len(texts) % 2:
            raise place.mismatch(
                f"the texts in \"{column}\" are not read as turns, which are the user's and the assistant's by turns",
                "Write messages with role and content.",
                actual=f"{len(texts)} texts, of which the first is {shown(texts[0])}",
            )
        roles = ("user", "assistant") * (len(texts) // 2)
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]

    def _paired(self, value: Sequence[Any], column: str, place: RowLocation) -> Sequence[Any]:
        """Returns lists of two texts, of a role and its content or of two turns, as messages."""
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return value
        roles = [isinstance(first, str) and _standard(first, self._roles) for first, _ in value]
        if not all(roles):
            value = [pair for turns in value for pair in zip(("user", "assistant"), turns, strict=True)]
        elif [role for role in roles if role != "system"][:1] != ["user"] or roles[-1] != "assistant":
            raise place.mismatch(
                f'"{shown(value[0][0])}" in "{column}" is a role or a question',
                f"Write messages with role and content, or {leave_out(column)}.",
            )
        return [{"role": role, "content": content} for role, content in value]

    def joined(self, parts: Sequence[Any], where: str, place: RowLocation) -> str:
        """Returns the text of content in parts, one part a line, as vLLM joins them for templates that expect text.

        ``where`` is what has the content, for errors.
        """
        texts = []
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            # Parts of Gemini and Bedrock have no type, and a thought of Gemini is a text with a mark.
            values = {
                name: value
                for name, value in (part.items() if isinstance(part, dict) else ())
                if value is not None and not (name == "thought" and value is False)
            }
            first = next((key for key in ("thought", "type", "text", *values) if key in values), kind(part))
            type_ = shown(str(values["type"]) if first == "type" else first, 40)
            if type_ in self._ignored and type_ not in _TEXT_PARTS | _CALL_PARTS:
                self._unread.add(f"{KEYS}{type_}", values, ignored=True)
            elif type_ not in _TEXT_PARTS or not isinstance(values.get("text"), str):
                raise place.mismatch(
                    f"{where} has a content part of type {type_}, and only text is trained",
                    "Write tool_use as tool_calls of the message, and tool_result as a message of the role tool."
                    if type_ in _CALL_PARTS
                    else f"Remove the row, or {leave_out(KEYS + type_, what='such parts')}.",
                    actual=kind(part) if not values else f"keys {', '.join(map(quoted, values))}"[:80],
                    reason="ValueNotRead",
                )  # fmt: skip
            else:
                texts.append(values["text"])
                rest = {name: value for name, value in values.items() if name not in {"type", "text"}}
                keys = self._keys(tuple(rest))
                lost = {name for name in keys.flags if rest[name] != 1}
                lost |= {name for name in rest if _plain(name) in _NO_PART} - self._ignored
                if names := [name for name in rest if name in lost and not is_empty(rest[name])]:
                    raise refused(names, "message", f"a part of {where}", rest, place, prefix=KEYS)
                self._others(rest, keys, f"{KEYS}content[].", f"a part of {where}", place)
        return "\n".join(texts)


def role_of(message: object, roles: Mapping[str, str]) -> str | None:
    """Returns the standard role of a message; None if it is not known with the job's ``roles``."""
    named = [message[name] for name in _ROLE if message.get(name)] if isinstance(message, Mapping) else []
    return _standard(named[0], roles) if named and isinstance(named[0], str) else None


def _standard(role: str, roles: Mapping[str, str]) -> str | None:
    role = roles.get(role, role)
    return _ROLES.get(role) or _ROLES.get(_plain(role))


def is_message(value: object, *, keyed: bool = False) -> bool:
    """Whether an object of a JSON text is a message, or ``keyed`` turns, and not data that has some of their keys."""
    if keyed and isinstance(value, Mapping) and value and value.keys() <= _KEYED.keys():
        return True
    if not isinstance(value, Mapping) or any(sure <= value.keys() for sure in _SURE):
        return isinstance(value, Mapping)
    if "role" not in value:
        return not value.keys().isdisjoint({"content", "data"}) and value.get("type") in _LANGCHAIN
    return role_of(value, {}) is not None and not value.keys().isdisjoint(CONTENTS)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name[:MAX_NAME]).lower()
