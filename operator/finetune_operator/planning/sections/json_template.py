"""Turns MaxText's templates in JSON into the Jinja of a chat template.

MaxText has three kinds. ``chat_template`` holds Jinja and replaces the tokenizer's template. The other two change the
texts of messages, and the tokenizer's own template renders the result: ``PROMPT_TEMPLATE`` and ``COMPLETION_TEMPLATE``
for supervised fine-tuning, ``SYSTEM_PROMPT`` and ``TEMPLATE`` for reinforcement learning, whose prompts alone remain.
"""

import json
import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from finetune_contract import OWN_TEMPLATE

#: The keys that belong together, the required one of each kind first.
_KINDS: Sequence[Sequence[str]] = (
    ("chat_template",),
    ("PROMPT_TEMPLATE", "COMPLETION_TEMPLATE", "REASONING_ANSWER_SEPARATOR"),
    ("COMPLETION_TEMPLATE", "REASONING_ANSWER_SEPARATOR"),
    ("TEMPLATE", "SYSTEM_PROMPT"),
)
#: Placeholders of SYSTEM_PROMPT with the defaults of MaxText's configs/post_train/rl.yml.
_TAGS = {
    "reasoning_start_token": "<reasoning>",
    "reasoning_end_token": "</reasoning>",
    "solution_start_token": "<answer>",
    "solution_end_token": "</answer>",
}
_PAGE = (
    """\
{%- set rewritten = namespace(messages=[]) %}
{%- for message in messages %}
  {%- if message.content %}
    {%- set text = message.content if message.content is string else message.content | map(attribute='text') | join %}
TURNS
    {%- set message = dict(message, content=text) %}
  {%- endif %}
  {%- set rewritten.messages = rewritten.messages + [message] %}
{%- endfor %}
{%- set messages = rewritten.messages %}
"""
    + OWN_TEMPLATE
)


class InvalidTemplate(ValueError):
    """The text is JSON, or begins like it, and is not one of MaxText's templates. The message is a clause."""


def as_jinja(text: str) -> str:
    """Returns a template in JSON as Jinja, and any other text unchanged. Raises InvalidTemplate."""
    if not _is_json(text):
        return text
    content = _parsed(text)
    kind = next((keys for keys in _KINDS if keys[0] in content), None)
    if kind is None:
        raise InvalidTemplate(f"has {_names(content)}; expected {' or '.join(keys[0] for keys in _KINDS)}")
    if others := sorted(content.keys() - set(kind)):
        raise InvalidTemplate(f"has {_names(others)} beside {kind[0]}, where nothing reads it; remove it")
    if "REASONING_ANSWER_SEPARATOR" in content and "COMPLETION_TEMPLATE" not in content:
        raise InvalidTemplate("has 'REASONING_ANSWER_SEPARATOR' without COMPLETION_TEMPLATE; remove it")
    for key, value in content.items():
        if not isinstance(value, str) or not value:
            raise InvalidTemplate(f"has {_kind_of(value)} in {key}; expected a text that is not empty")
    if "chat_template" in content:
        return str(content["chat_template"])
    if "TEMPLATE" in content:
        return _PAGE.replace("TURNS", _reinforced_prompt(content))
    turns = "\n".join(part for part in (_prompt(content), _completion(content)) if part)
    return _PAGE.replace("TURNS", turns)


def _is_json(text: str) -> bool:
    """Whether the text is JSON or meant as it. Jinja begins with a brace only as the first character of a tag."""
    begin = text.lstrip("\ufeff \t\r\n")
    if begin.startswith("{"):
        return not begin.startswith(("{{", "{%", "{#"))
    if not begin.startswith(("[", '"')):
        return False
    with suppress(RecursionError):
        try:
            json.loads(begin)
        except ValueError:
            return False
    return True


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text.lstrip("\ufeff"), object_pairs_hook=_without_repeats)
    except InvalidTemplate:
        raise
    except json.JSONDecodeError as error:
        raise InvalidTemplate(
            f"begins like JSON and is not valid JSON, line {error.lineno} column {error.colno}: {error.msg}; "
            "correct it, or, if it is Jinja, write its first brace as {{ '{' }}"
        ) from error
    except (RecursionError, ValueError) as error:  # ValueError: a number with thousands of digits
        raise InvalidTemplate(
            "is JSON that is nested too deeply or has too long a number; expected an object of texts"
        ) from error
    if not isinstance(content, dict):
        raise InvalidTemplate(f"is {_kind_of(content)} in JSON; expected an object of texts")
    if any("\ud800" <= character <= "\udfff" for value in content.values() for character in str(value)):
        raise InvalidTemplate("has half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise InvalidTemplate(f"has {next(key for key in keys if keys.count(key) > 1)} twice; remove one")
    return content


def _prompt(content: Mapping[str, str]) -> str:
    if "PROMPT_TEMPLATE" not in content:
        return ""
    text = _expression(content, "PROMPT_TEMPLATE", {"question": "text | trim"})
    return _turn("user", [f"    {{%- set text = {text} %}}"])


def _completion(content: Mapping[str, str]) -> str:
    if "COMPLETION_TEMPLATE" not in content:
        return ""
    separator = content.get("REASONING_ANSWER_SEPARATOR")
    if separator is None:
        text = _expression(content, "COMPLETION_TEMPLATE", {"answer": "text | trim"})
        return _turn("assistant", [f"    {{%- set text = {text} %}}"])
    parts = {"reasoning": "parts[0] | trim", "answer": "parts[1] | trim"}
    text = _expression(content, "COMPLETION_TEMPLATE", parts)
    name = _literal(separator)
    twice = _literal(
        f"an answer has {separator} more than once, and REASONING_ANSWER_SEPARATOR divides it once"
    )
    return _turn(
        "assistant",
        [
            f"    {{%- set parts = text.split({name}) %}}",
            "    {%- if parts | length > 2 %}",
            f"      {{{{- raise_exception({twice}) }}}}",
            "    {%- elif parts | length == 2 %}",
            f"      {{%- set text = {text} %}}",
            "    {%- endif %}",
        ],
    )


def _reinforced_prompt(content: Mapping[str, str]) -> str:
    values = {"question": "text"}
    if "SYSTEM_PROMPT" in content:
        tags = {name: f"{name} | default({_literal(value)})" for name, value in _TAGS.items()}
        values["system_prompt"] = _expression(content, "SYSTEM_PROMPT", tags, required=())
    return _turn("user", [f"    {{%- set text = {_expression(content, 'TEMPLATE', values)} %}}"])


def _turn(role: str, lines: Sequence[str]) -> str:
    inner = (f"  {line}" for line in lines)
    return "\n".join((f"    {{%- if message.role == '{role}' %}}", *inner, "    {%- endif %}"))


def _expression(
    content: Mapping[str, str], key: str, values: Mapping[str, str], required: Sequence[str] | None = None
) -> str:
    """Returns a Jinja expression for a text with placeholders, as Python's ``str.format`` reads them.

    ``values`` are Jinja expressions by placeholder, of which the ``required`` must occur (None: all).
    """
    known = ", ".join(f"{{{name}}}" for name in values)
    try:
        parsed = list(string.Formatter().parse(content[key]))
    except ValueError as error:
        raise InvalidTemplate(
            f"has {error} in {key}; write a brace of the text twice, {{{{ or }}}}"
        ) from error
    parts, used = list[str](), set[str]()
    for text, name, form, conversion in parsed:
        if text:
            parts.append(_literal(text))
        if name is None:
            continue
        if name not in values or form or conversion:
            written = f"{name}{'!' + conversion if conversion else ''}{':' + form if form else ''}"
            raise InvalidTemplate(f"has {{{written}}} in {key}; expected {known}")
        parts.append(f"({values[name]})")
        used.add(name)
    if missing := [name for name in (values if required is None else required) if name not in used]:
        raise InvalidTemplate(f"has no {{{missing[0]}}} in {key}; expected {known}")
    return " ~ ".join(parts)


def _literal(text: str) -> str:
    """Returns a Jinja literal on one line."""
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r"}
    return f"'{''.join(escapes.get(character, character) for character in text)}'"


def _names(keys: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(repr(key[:50]) for key in sorted(keys)[:10]) or "no key"


def _kind_of(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "an empty text" if not value else "a text",
        bool: "a truth value",
    }
    return names.get(type(value), "null" if value is None else "a number")
