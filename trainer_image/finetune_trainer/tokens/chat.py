"""Renders conversations with the tokenizer's chat template, always with the same arguments and date.

Training, evaluation and benchmarks all use this module, so prompts have the same form as the training rows.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

type Tokenizer = PreTrainedTokenizerFast
type Message = Mapping[str, Any]
type Tools = Sequence[Mapping[str, Any]] | None

#: Function that templates call to print the current time, as transformers provides it.
_NOW = "strftime_now"
_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
#: Shortest conversations that expect an answer. Some templates require a system message, others reject it.
SHORTEST: Sequence[Sequence[Message]] = (
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": "y"}, {"role": "user", "content": "x"}],
)
#: Opening and closing ``generation`` tags, a transformers extension that plain Jinja cannot parse.
_TAGS = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
#: Variables that every template receives.
_GIVEN = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "bos_token",
    "eos_token",
    _NOW,
}
#: Characters of a name that a template may mention.
_LONGEST_NAME = 100
#: Name of a function that no row has, in private-use characters.
_MARK = "\ue000{}\ue001"
_PROBE = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}


class Chat:
    """The chat template of a tokenizer with the job's arguments.

    ``arguments`` are additional variables of the template. ``today`` is the date that the template prints as current;
    None for the current date in UTC.
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

    @property
    def exists(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def _prints_the_date(self) -> bool:
        return _NOW in _text_of(self._tokenizer.chat_template)

    def identity(self) -> dict[str, str]:
        """Returns everything that determines how a conversation is rendered, by name."""
        identity = {"chatTemplate": digest(self._tokenizer.chat_template or "")}
        if self._arguments:
            identity["chatTemplateArguments"] = json.dumps(self._arguments, sort_keys=True)
        if self._prints_the_date:
            identity["chatTemplateDate"] = self._today.isoformat()
        return identity

    def reads(self, name: str) -> bool:
        """Whether the template mentions a variable."""
        return name in self._words

    def reads_key(self, name: str) -> bool:
        """Whether the template mentions a key of messages, which is quoted or follows a dot; prose is neither."""
        if len(name) >= _LONGEST_NAME:
            return False
        return name in self._keys if name.isidentifier() else name in self._text

    @cached_property
    def _text(self) -> str:
        return _text_of(self._tokenizer.chat_template)

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self._text))

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(re.findall(r"[.'\"]\s*(\w+)", self._text))

    def require_known_arguments(self) -> None:
        """Raises ``StageError`` 64 for an argument that the template never reads and that would have no effect."""
        for name in self._arguments:
            if not self.reads(name):
                raise StageError(
                    ExitCode.BAD_REQUEST, "ChatTemplateArgumentUnknown",
                    "the chat template does not read this argument",
                    where=f"spec.datasets.chatTemplate.arguments.{name}", actual=name,
                    expected=f"one of {', '.join(known)}" if (known := self._reads()) else "a variable that it reads",
                    fix="Correct the name, or remove the argument.",
                )  # fmt: skip

    def _reads(self) -> list[str]:
        """Returns the sorted variables of the template that an argument can set; empty for invalid Jinja."""
        from jinja2 import Environment, TemplateSyntaxError, meta, nodes

        template = _TAGS.sub("", _text_of(self._tokenizer.chat_template))
        try:
            tree = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True).parse(template)
        except TemplateSyntaxError:
            return []
        # A variable that the template sets itself counts only if the template first tests whether it is defined.
        own = {each.name for each in tree.find_all(nodes.Name) if each.ctx != "load"}
        asked = {each.node.name for each in tree.find_all(nodes.Test) if isinstance(each.node, nodes.Name)
                 and each.name in {"defined", "undefined"}}  # fmt: skip
        given = _GIVEN | set(self._tokenizer.special_tokens_map)
        return sorted(meta.find_undeclared_variables(tree) - (own - asked) - given)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template renders the tools it receives."""
        ask: list[Message] = [{"role": "user", "content": "x"}]
        try:
            return self._applied(ask, [_PROBE], False) != self._applied(ask, None, False)
        except Exception:  # noqa: BLE001  it reads tools, or rejects the probe and will reject rows
            return True

    def continued(self, messages: Sequence[Message], *, asking: bool) -> str:
        """Returns the text of a prompt.

        If ``asking`` is true, the prompt ends where the assistant's next turn begins; otherwise at the end of the last
        message, for the model to continue. Raises ``StageError`` 64 if the template rejects the conversation.
        """
        options = {"add_generation_prompt": asking, "continue_final_message": not asking}
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, **options, **self._variables
            )
        except Exception as error:
            raise StageError(
                ExitCode.BAD_REQUEST, "PromptRefused", f"the chat template rejects a prompt: {error}",
                where="spec.evaluation", actual=f"roles {_roles(messages)}",
                expected="a template that accepts the conversations of evaluation.prompts and evaluation.benchmarks",
                fix="Set datasets.chatTemplate to one that does, or use evaluation.datasets, whose rows contain the "
                "messages that the template expects.",
            ) from error  # fmt: skip
        return text

    def render(
        self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None, asking: bool = False
    ) -> str:
        """Returns the conversation as text. Raises ``StageError`` 65 if the template rejects it."""
        if not self.exists:
            raise StageError(
                ExitCode.BAD_DATA, "ChatTemplateMissing",
                "the data contains conversations, but the tokenizer has no chat template",
                where=place.path, expected="a tokenizer with a chat template, as instruction-tuned models have",
                fix="Set datasets.chatTemplate, or name another model.tokenizer.",
            )  # fmt: skip
        try:
            return self._applied(messages, tools, asking)
        except Exception as error:
            roles = sorted({str(message["role"]) for message in messages} - {"user", "assistant"})
            accepts = f"; or set datasets.chatTemplate to one that accepts the role {' and '.join(roles)}"
            raise place.mismatch(
                f"the model's chat template rejects this conversation: {error}",
                f"Change the conversation to a form that the template accepts, often alternating turns of user and "
                f"assistant{accepts if roles else ''}.",
                actual=f"roles {_roles(messages)}",
            ) from error

    def settled(
        self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None
    ) -> tuple[Sequence[Message], str]:
        """Returns the conversation in a form whose tool calls the template renders, and its text.

        Templates differ in the form they accept: missing content beside a tool call as empty text or as null, arguments
        as an object or as JSON text. Raises ``StageError`` 65 if no form renders every call.
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
        """Returns the number of the first message whose tool calls are not all in the text; None if there is none."""
        numbers = [number for number, message in enumerate(messages) if message.get("tool_calls")]
        for number in self._without_their_names(numbers, messages, tools):
            message = messages[number]
            fewer = {name: value for name, value in message.items() if name != "tool_calls"}
            if calls := message["tool_calls"][:-1]:
                fewer["tool_calls"] = calls
            try:
                shown = self.render([*messages[:number], fewer, *messages[number + 1 :]], place, tools=tools)
            except StageError:
                continue
            if shown == text:
                return number
        return None

    def _without_their_names(
        self, numbers: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> Sequence[int]:
        """Returns those of the messages with calls whose last call may not be in the text.

        All calls get marked names, so that one rendering shows which of them the template writes.
        """
        marked = list(messages)
        for number in numbers:
            *calls, last = messages[number]["tool_calls"]
            marked[number] = {
                **messages[number],
                "tool_calls": [*calls, _changed(last, name=_MARK.format(number))],
            }
        try:
            text = self._applied(marked, tools, False) if numbers else ""
        except Exception:  # noqa: BLE001  it may look the names up among the tools
            return numbers
        return [number for number in numbers if _MARK.format(number) not in text]

    def marks(self, messages: Sequence[Message], *, tools: Tools = None) -> list[tuple[int, int]] | None:
        """Returns the parts that the template marks as generated by the model (``{% generation %}``).

        Each part is a pair (first, past the last) of character positions in the conversation's text. None if the
        template has no such marks.
        """
        template = self._tokenizer.get_chat_template(tools=tools)
        if not _is_marked(template):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template

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


@lru_cache(maxsize=4)
def _is_marked(template: str) -> bool:
    return _MARKS.search(template) is not None


def digest(value: object) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of the value as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yields the conversation unchanged and then, if it has tool calls, in the other forms that templates accept."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        for content, arguments in ((None, False), ("", True), (None, True)):
            yield [_form(message, content, arguments) for message in messages]


def _form(message: Message, content: str | None, as_text: bool) -> Message:
    """Returns the message with ``content`` in place of missing content beside tool calls.

    If ``as_text`` is true, the calls' arguments are JSON text.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = {**message, "content": message.get("content") or content}
    if as_text:
        changed["tool_calls"] = [_with_text(call) for call in calls]
    return changed


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the tool call with its arguments as JSON text."""
    arguments = _function(call).get("arguments", "")
    if isinstance(arguments, str):
        return call
    return _changed(call, arguments=json.dumps(arguments, ensure_ascii=False))


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    return function if isinstance(function, Mapping) else call


def _changed(call: Mapping[str, Any], **values: str) -> Mapping[str, Any]:
    """Returns the tool call with other values of its function."""
    function = _function(call)
    return {**call, **values} if function is call else {**call, "function": {**function, **values}}


def _copied(tools: Tools) -> list[dict[str, Any]] | None:
    return [dict(tool) for tool in tools] if tools else None


def _text_of(template: Any) -> str:
    """Returns the text of a template, or of all templates if there are several by name."""
    if isinstance(template, Mapping):
        return "\n".join(str(each) for each in template.values())
    return str(template or "")


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(str(message["role"]) for message in messages[:40])[:200]
