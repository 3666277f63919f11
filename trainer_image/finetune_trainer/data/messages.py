"""Reads messages of conversations in the forms of OpenAI, ShareGPT and others. Pure.

A message is returned with ``role`` and ``content``, which is text, and with the other keys that a chat template may
read. Other keys are counted (:mod:`.unread`), and those with a known meaning that has no place here are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune_trainer.data.advice import kind, leave_out, quoted
from finetune_trainer.data.turn_keys import WEIGHT, calls_of, from_json, older_call, weight_of
from finetune_trainer.data.unread import UnreadValues, refused
from finetune_trainer.readers.known_names import MAX_NAME, by_names, is_empty, known_name
from finetune_trainer.readers.row_location import RowLocation, shown
from finetune_trainer.tokens.chat import Message

#: What precedes a key of messages, or a type of content parts, in ``columns.ignore`` and in the report.
KEYS = "messages[]."
ROLES = ("system", "user", "assistant", "tool")
#: What a turn of the assistant is whose text is the JSON of a call.
_CALL = "call"
#: Keys of a role (OpenAI, ShareGPT, LangChain) and a content (also Gemini, Cohere, OASST). The first one counts.
_ROLE = ("role", "from", "type")
CONTENTS = ("content", "value", "parts", "message", "text")
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
#: Roles by the keys of messages that have no key for the role.
_KEYED = {"input": "user", "output": "assistant"} | {
    name: role for name, role in _ROLES.items() if role != _CALL
}
#: Types of content parts that are text, in OpenAI's Chat Completions and Responses.
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
#: Types of content parts with calls and their results, of Anthropic, Bedrock and Gemini.
_CALL_PARTS = {"tool_use", "tool_result", "toolUse", "toolResult", "functionCall", "functionResponse"}
_READ = frozenset({"role", "content", "tool_calls", "function_call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """Meaning of a message's keys. Derived once for each set of keys, as many messages have the same."""

    role: str
    content: str
    plain: bool
    """Whether there are no other keys than ``role`` and ``content``."""
    flags: Sequence[str] = ()
    refused: Sequence[str] = ()
    unread: Sequence[str] = ()
    kept: Sequence[str] = ()
    """Keys that the chat template reads, and reasoning, of which the template's omission is reported elsewhere."""


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
        if pairs or (isinstance(value[0], dict) and _KEYED.keys() >= value[0].keys()):
            value = [turn for message in value for turn in _turns(message)]
        return [self._message(message, number, place) for number, message in enumerate(value, start=first)]

    def _message(self, message: object, number: int, place: RowLocation) -> Message:
        if not isinstance(message, dict):
            raise place.mismatch(
                f"message {number} is not an object", "Write it as role and content.", actual=kind(message)
            )
        keys = self._keys(tuple(message))
        role = self._role(message.get(keys.role), number, place)
        content = message.get(keys.content)
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
                actual=kind(content) if keys.content in message else "no content",
            )
        return {"role": role, "content": content, **made}

    def _others(
        self, message: Message, keys: _Keys, path: str, where: str, place: RowLocation
    ) -> dict[str, Any]:
        """Returns what the template reads beside role, content and calls, and counts the rest under ``path``.

        Null values are left out, because templates test whether a key exists.
        """
        if names := [name for name in keys.refused if not is_empty(message[name])]:
            raise refused(names, "message", where, message, place, prefix=KEYS)
        made = {name: message[name] for name in keys.kept if message[name] is not None}
        for name in keys.unread:
            self._unread.add(path + name, message[name], ignored=name in self._ignored)
        return made

    def _meaning(self, names: tuple[str, ...]) -> _Keys:
        role = next((name for name in _ROLE if name in names), "role")
        content = next((name for name in CONTENTS if name in names), "content")
        rest = [name for name in names if name not in _READ | {role, content}]
        known = {name: known_name("message", name) for name in rest if name not in self._ignored}
        kept = [
            name
            for name, meaning in known.items()
            if (self._reads(name) if meaning is None else meaning.meaning == "reasoning")
        ]
        return _Keys(
            role=role,
            content=content,
            plain=len(names) == 2 and not rest,
            flags=[name for name, meaning in known.items() if meaning and meaning.meaning == "flag"],
            refused=[name for name, meaning in known.items() if meaning and not meaning.meaning],
            unread=[name for name in rest if known.get(name) is None and name not in kept],
            kept=kept,
        )

    def _role(self, role: object, number: int, place: RowLocation) -> str:
        if not isinstance(role, str):
            raise place.mismatch(
                f"message {number} has no role",
                f"Give it one of {', '.join(ROLES)}.",
                actual="nothing" if role is None else kind(role),
            )
        mapped = self._roles.get(role, role)
        if mapped in ROLES:
            return mapped
        standard = _ROLES.get(re.sub(r"[\W_]", "", mapped[:MAX_NAME]).lower())
        if standard is None:
            raise place.mismatch(
                f'role "{shown(role)}" of message {number} is not one of {", ".join(ROLES)}',
                f"Map it: roleMap: {{{quoted(role)}: …}}, to user, system or tool, or to assistant, whose turns are "
                "trained.",
            )
        return standard

    def joined(self, parts: Sequence[Any], where: str, place: RowLocation) -> str:
        """Returns the text of content in parts, one part a line, as vLLM joins them for templates that expect text.

        ``where`` is what has the content, for errors.
        """
        texts = []
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            values = (
                {name: value for name, value in part.items() if value is not None}
                if isinstance(part, dict)
                else {}
            )
            type_ = shown(str(values.get("type") or next(iter(values), kind(part))), 40)
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
                if flags := [name for name in keys.flags if rest[name] != 1]:
                    raise refused(flags, "message", f"a part of {where}", rest, place, prefix=KEYS)
                self._others(rest, keys, f"{KEYS}content[].", f"a part of {where}", place)
        return "\n".join(texts)


def _turns(message: object) -> list[object]:
    """Returns the messages of an object whose keys are roles (Capybara, BELLE), the user's first, or of two texts; any
    other message itself.
    """
    if isinstance(message, list) and len(message) == 2:
        keys = ("role", "content") if str(message[0]).lower() in _ROLES else ("user", "assistant")
        return _turns(dict(zip(keys, message, strict=True)))
    if not isinstance(message, dict) or not message or not message.keys() <= _KEYED.keys():
        return [message]
    names = sorted(message, key=lambda name: ROLES.index(_KEYED[name]))
    return [{"role": _KEYED[name], "content": message[name]} for name in names]
