"""Conversations as text: the tokenizer's chat template, always with the same arguments and the same date.

Training, evaluation and benchmarks all render here, so a prompt is what the rows were.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, Protocol

from finetune_contract import ExitCode
from finetune_trainer.data.row_location import RowLocation
from finetune_trainer.errors import StageError

type Message = Mapping[str, Any]
type Tools = Sequence[Mapping[str, Any]] | None

#: What a template calls to print the present time, as transformers provides it.
_NOW = "strftime_now"
_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
#: The shortest conversations that wait for an answer: templates may want a system message, or refuse one.
SHORTEST: Sequence[Sequence[Message]] = (
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": "y"}, {"role": "user", "content": "x"}],
)
#: The same tags and those that end them: transformers' own, which plain Jinja does not know.
_TAGS = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
#: Variables that every template is given.
_GIVEN = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "raise_exception",
        "bos_token",
        "eos_token",
        _NOW,
    }
)
_PROBE = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}


class Tokenizer(Protocol):
    """What is used of a transformers fast tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]
    backend_tokenizer: Any
    special_tokens_map: dict[str, Any]

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, **options: Any) -> Any: ...

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str: ...

    def __call__(self, text: str | list[str], **options: Any) -> Any: ...


class Chat:
    """The chat template of one tokenizer with the job's arguments.

    ``today`` is what the template prints as the present day. ``arguments`` are further variables of the template.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, arguments: Mapping[str, Any] | None = None, today: date | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._today = today or datetime.now(UTC).date()
        self._arguments = dict(arguments or {})
        self._variables: dict[str, Any] = dict(self._arguments)
        if self._prints_the_date:
            self._variables[_NOW] = datetime.combine(self._today, datetime.min.time(), UTC).strftime
        self._takes_tools: bool | None = None

    @property
    def exists(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self._tokenizer.chat_template)

    @property
    def _prints_the_date(self) -> bool:
        return _NOW in _text_of(self._tokenizer.chat_template)

    def identity(self) -> dict[str, str]:
        """What decides how a conversation becomes text, by name."""
        identity = {"chatTemplate": digest(self._tokenizer.chat_template or "")}
        if self._arguments:
            identity["chatTemplateArguments"] = json.dumps(self._arguments, sort_keys=True)
        if self._prints_the_date:
            identity["chatTemplateDate"] = self._today.isoformat()
        return identity

    def require_known_arguments(self) -> None:
        """Raises ``StageError`` 64 for an argument that the template never reads: it would change nothing."""
        template = _text_of(self._tokenizer.chat_template)
        for name in self._arguments:
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise StageError(
                    ExitCode.BAD_REQUEST, "ChatTemplateArgumentUnknown", "the chat template does not read it",
                    where=f"spec.datasets.chatTemplate.arguments.{name}", saw=name,
                    expected=f"one of {', '.join(known)}" if (known := self._reads()) else "a variable that it reads",
                    fix="Correct the name, or leave the argument out.",
                )  # fmt: skip

    def _reads(self) -> list[str]:
        """The template's variables that an argument may set, by the alphabet; none where it is no Jinja."""
        from jinja2 import Environment, TemplateSyntaxError, meta, nodes

        template = _TAGS.sub("", _text_of(self._tokenizer.chat_template))
        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True).parse(template)
        except TemplateSyntaxError:
            return []
        # A name that the template sets itself is one only where it asks first whether it is set.
        own = {each.name for each in tree.find_all(nodes.Name) if each.ctx != "load"}
        asked = {each.node.name for each in tree.find_all(nodes.Test) if isinstance(each.node, nodes.Name)
                 and each.name in {"defined", "undefined"}}  # fmt: skip
        given = _GIVEN | set(self._tokenizer.special_tokens_map)
        return sorted(meta.find_undeclared_variables(tree) - (own - asked) - given)

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows the tools that it is given."""
        if self._takes_tools is None:
            ask: list[Message] = [{"role": "user", "content": "x"}]
            try:
                self._takes_tools = self._applied(ask, [_PROBE], False) != self._applied(ask, None, False)
            except Exception:  # noqa: BLE001  it reads them, or it refuses the probe and will refuse the rows
                self._takes_tools = True
        return self._takes_tools

    def continued(self, messages: Sequence[Message], *, asking: bool) -> str:
        """The text of a prompt: up to where the assistant's next turn begins (``asking``), or up to the end of the last
        message, which the model is to continue. Raises ``StageError`` 64 where the template refuses it."""
        options = {"add_generation_prompt": asking, "continue_final_message": not asking}
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, **options, **self._variables
            )
        except Exception as error:
            raise StageError(
                ExitCode.BAD_REQUEST, "PromptRefused", f"the chat template refuses a prompt: {error}",
                where="spec.evaluation", saw=f"roles {_roles(messages)}",
                expected="a template that takes the conversations of evaluation.prompts and evaluation.benchmarks",
                fix="Set datasets.chatTemplate to one that does, or measure evaluation.datasets, whose rows hold the "
                "messages that the template wants.",
            ) from error  # fmt: skip
        return text

    def render(
        self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None, asking: bool = False
    ) -> str:
        """The conversation as text. Raises ``StageError`` 65 where the template refuses it."""
        self._require(place)
        try:
            return self._applied(messages, tools, asking)
        except Exception as error:
            raise _refused(messages, place, error) from error

    def settled(
        self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None
    ) -> tuple[Sequence[Message], str]:
        """The conversation in the form in which the template shows its tool calls, and its text.

        Templates differ in what they take: no content beside a call as an empty text or as none, arguments as an
        object or as JSON. Raises ``StageError`` 65 where no form shows every call.
        """
        refusals: list[StageError] = []
        unshown: list[int] = []
        for form in _forms(messages):
            try:
                text = self.render(form, place, tools=tools)
            except StageError as error:
                refusals.append(error)
                continue
            unseen = self._first_unseen(form, place, tools, text)
            if unseen is None:
                return form, text
            unshown.append(unseen)
        if not unshown:
            raise refusals[0]
        raise place.mismatch(
            f"the chat template does not show the tool calls of message {unshown[0] + 1} (assistant)",
            "Set datasets.chatTemplate to one that shows them, or remove the row.",
        )

    def _first_unseen(
        self, messages: Sequence[Message], place: RowLocation, tools: Tools, text: str
    ) -> int | None:
        """Number of the first message of whose tool calls the text does not show all."""
        for number, message in enumerate(messages):
            calls = message.get("tool_calls")
            if not calls:
                continue
            fewer = {name: value for name, value in message.items() if name != "tool_calls"}
            if calls[:-1]:
                fewer["tool_calls"] = calls[:-1]
            try:
                shown = self.render([*messages[:number], fewer, *messages[number + 1 :]], place, tools=tools)
            except StageError:
                continue
            if shown == text:
                return number
        return None

    def marks(self, messages: Sequence[Message], *, tools: Tools = None) -> list[tuple[int, int]] | None:
        """What the template itself marks as the model's own (``{% generation %}``), as (first, past the last) character
        of the conversation's text; None where it marks nothing."""
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self._tokenizer.get_chat_template(tools=tools)
        if not _is_marked(template):
            return None
        _, found = render_jinja_template(
            [[dict(message) for message in messages]],
            tools=_copied(tools),
            chat_template=template,
            return_assistant_tokens_mask=True,
            **{**self._tokenizer.special_tokens_map, **self._variables},
        )
        return [(first, past) for first, past in found[0] if first < past]

    def _applied(self, messages: Sequence[Message], tools: Tools, asking: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=asking,
            tools=_copied(tools),
            **self._variables,
        )
        return text

    def _require(self, place: RowLocation) -> None:
        if not self.exists:
            raise StageError(
                ExitCode.BAD_DATA,
                "ChatTemplateMissing",
                "the data are conversations, but the tokenizer has no chat template",
                where=place.path,
                expected="a tokenizer with a chat template, as instruction-tuned models have",
                fix="Set datasets.chatTemplate, or name another model.tokenizer.",
            )


@lru_cache(maxsize=4)
def _is_marked(template: str) -> bool:
    return _MARKS.search(template) is not None


def digest(value: object) -> str:
    """16 hexadecimal digits of the value as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The conversation as it is, then, where it has tool calls, in the other forms that templates take."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        for content, arguments in ((None, False), ("", True), (None, True)):
            yield [_form(message, content, arguments) for message in messages]


def _form(message: Message, content: str | None, as_text: bool) -> Message:
    """``content``: what stands for no content beside tool calls. ``as_text``: their arguments as JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = {**message, "content": message.get("content") or content}
    if as_text:
        changed["tool_calls"] = [_with_text(call) for call in calls]
    return changed


def _with_text(call: Any) -> Any:
    """The call with its arguments as JSON text."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_text(call["function"])}
    if "arguments" in call and not isinstance(call["arguments"], str):
        return {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
    return call


def _copied(tools: Tools) -> list[dict[str, Any]] | None:
    return [dict(tool) for tool in tools] if tools else None


def _text_of(template: Any) -> str:
    """Of one template, or of several by name."""
    if isinstance(template, Mapping):
        return "\n".join(str(each) for each in template.values())
    return str(template or "")


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(str(message["role"]) for message in messages[:40])[:200]


def _other(messages: Sequence[Message]) -> str:
    """Another way out where the refusal may be of a role that not every template takes."""
    roles = sorted({str(message["role"]) for message in messages} - {"user", "assistant"})
    return f"; or set datasets.chatTemplate to one that takes the role {' and '.join(roles)}" if roles else ""


def _refused(messages: Sequence[Message], place: RowLocation, error: Exception) -> StageError:
    return place.mismatch(
        f"the model's chat template refuses this conversation: {error}",
        f"Change the conversation to what the template allows, often: user and assistant in turns{_other(messages)}.",
        saw=f"roles {_roles(messages)}",
    )
