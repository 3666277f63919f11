"""A job's chat template as Jinja, from its text or a ConfigMap: read once, at admission, and kept in the job's plan."""

import json
import math
from collections.abc import Mapping

from finetune_operator.api import Reason
from finetune_operator.api.data import ChatTemplate
from finetune_operator.objects import Object
from finetune_operator.planning.errors import Refused, invalid_spec
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.sections.json_template import InvalidTemplate, as_jinja

type Argument = bool | int | float | str

#: Same bound as the API's on an inline template.
_MOST_CHARACTERS = 32 * 1024
#: Variables that transformers passes to every template, or reserves.
_TAKEN = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "conversation",
    "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "strftime_now", "raise_exception", "self",
}  # fmt: skip
_PATH = "spec.datasets.chatTemplate"


def template_ref(spec: Object) -> Object | None:
    """Returns name and key of the ConfigMap that a job's spec names; None if it names none."""
    reference = lookup(spec, "datasets.chatTemplate.configMapRef")
    return reference if isinstance(reference, Mapping) else None


def with_chat_template(spec: Object, config_map: Object | None) -> Object:
    """Returns ``spec`` with the template as Jinja, instead of a reference or of JSON. Raises Refused if it has none.

    ``config_map`` is the one that the reference names; None if it does not exist.
    """
    reference = template_ref(spec)
    if reference is not None:
        return _with_text(spec, _held(reference, config_map))
    written = lookup(spec, "datasets.chatTemplate.inline")
    if written is None:
        return spec
    try:
        return _with_text(spec, as_jinja(written))
    except InvalidTemplate as error:
        raise invalid_spec(f"{_PATH}.inline {error}.") from error


def _held(reference: Object, config_map: Object | None) -> str:
    """Returns the Jinja of the ConfigMap's key. Raises Refused."""
    name, key = reference["name"], reference["key"]
    if config_map is None:
        raise _refused(f'there is no ConfigMap "{name}" in the job\'s namespace')
    held = config_map.get("data") or {}
    if key not in held:
        raise _refused(f'ConfigMap "{name}" has no key "{key}"; it has {", ".join(sorted(held)) or "none"}')
    text = held[key]
    if not 0 < len(text) <= _MOST_CHARACTERS:
        raise _refused(
            f'key "{key}" of ConfigMap "{name}" has {len(text)} characters, 1 to {_MOST_CHARACTERS} fit'
        )
    try:
        return as_jinja(text)
    except InvalidTemplate as error:
        raise _refused(f'key "{key}" of ConfigMap "{name}" {error}') from error


def _with_text(spec: Object, text: str) -> Object:
    section = {
        name: value for name, value in spec["datasets"]["chatTemplate"].items() if name != "configMapRef"
    }
    return {**spec, "datasets": {**spec["datasets"], "chatTemplate": {**section, "inline": text}}}


def template_arguments(template: ChatTemplate | None) -> dict[str, Argument]:
    """Returns the template's arguments: JSON values for true, false and finite numbers, else text.

    Raises Refused for a name that is reserved in templates.
    """
    written = (template and template.arguments) or {}
    for name in written:
        if name in _TAKEN or not name.isidentifier():
            raise invalid_spec(
                f"spec.datasets.chatTemplate.arguments.{name} is no variable that a job can set in a chat template: "
                "remove it.",
            )
    return {name: _value(text) for name, text in written.items()}


def _value(text: str) -> Argument:
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    finite = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if finite else text


def _refused(what: str) -> Refused:
    return Refused(
        Reason.CHAT_TEMPLATE_NOT_FOUND,
        f"{_PATH}.configMapRef: {what}. The job continues when the template is there and valid.",
    )
