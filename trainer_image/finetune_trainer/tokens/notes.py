"""Notes on rows that are trained, but not completely or not as written, and why rows are dropped. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self

# Reasons to drop a row.
BLANK_ANSWER = "the answer is blank"
BLANK_TEXT = "the text is blank"

type Level = Literal["Problem", "Many", "Note", "Count"]


class _Said(NamedTuple):
    kind: str
    level: Level
    advice: str = ""


class Note(StrEnum):
    """What may be said of a row. The report lists the rows, and has a remark of this text and the advice."""

    level: Level
    """Many: a problem if it concerns many rows, a note otherwise. Count: no remark."""
    advice: str

    def __new__(cls, kind: str, level: Level, advice: str) -> Self:
        note = str.__new__(cls, kind)
        note._value_, note.level, note.advice = kind, level, advice
        return note

    ANSWER_LEFT_OUT = _Said(
        "the chat template omits a part of the last answer", "Problem",
        "This reasoning or other text is not trained. Set datasets.chatTemplate to one that shows it, or remove it "
        "from the rows.",
    )  # fmt: skip
    TURN_LEFT_OUT = _Said(
        "the chat template omits a part of an earlier answer", "Note",
        "It does so when the model is used, too. Those answers are trained without this reasoning or other text.",
    )  # fmt: skip
    TOOLS_LEFT_OUT = _Said(
        "the chat template renders no tools", "Problem",
        "The model does not see them. Set datasets.chatTemplate to one that renders them.",
    )  # fmt: skip
    TOOLS_TWICE = _Said(
        "a system message has the tools, or a tool's message the tags, that the chat template writes there", "Problem",
        "Both are rendered, and a server writes them once. Remove <tool_response> from the results. Leave the tools "
        "of the row out on purpose (columns: {{ignore: [tools]}}), or remove <tools> from the system message.",
    )  # fmt: skip
    ASKED_OTHERWISE = _Said(
        "the prompt for the last answer differs from the text before it in the row", "Problem",
        "The prompt that the chat template writes when the model is used opens or omits reasoning, and the row does "
        "not. Make datasets.chatTemplate, its arguments (enable_thinking) and the reasoning in the rows agree.",
    )  # fmt: skip
    SPLIT = _Said("longer than maxSeqLength, and split into several sequences", "Note", "No token is lost.")
    BLANK_TURN = _Said(
        "an answer is blank and not trained, beside others that are", "Note",
        "It stays in the prompts of later answers.",
    )  # fmt: skip
    CONTROL_TRAINED = _Said(
        "an answer contains a special token", "Problem",
        "It is trained as such, so the model learns to end or open a turn there. Remove it from the rows, or write it "
        "differently (with a space inside, it is text).",
    )  # fmt: skip
    CONTROL_IN_PROMPT = _Said(
        "a prompt contains a special token", "Note",
        "The model takes it for a turn's end or beginning and not for text. Unless that is meant, remove it from the "
        "rows, or write it with a space inside.",
    )  # fmt: skip
    CONTROL_IN_TEXT = _Said(
        "a text contains a special token", "Note",
        "It is trained as such and not as text. Unless that is meant, remove it from the rows, or write it with a "
        "space inside.",
    )  # fmt: skip
    RENDERED = _Said(
        "a text contains a rendered chat template, or another model's end", "Many",
        "In a text its markers and prompts are trained, too, and around a prompt the model's own template is rendered "
        "again. Use conversations (messages), which the model's template or datasets.chatTemplate renders, or remove "
        "the markers.",
    )  # fmt: skip
    OPEN_THOUGHT = _Said(
        "an answer opens a thought (<think>) and does not close it", "Problem",
        "It was probably truncated where it was generated, and teaches to end within a thought. Remove these rows.",
    )  # fmt: skip
    BLANK_PROMPT = _Said(
        "the prompt is blank", "Problem", "Its answer is trained after nothing. Write the prompt, or remove the row.",
    )  # fmt: skip
    PLACEHOLDER = _Said(
        "a prompt contains a placeholder of an image, a video or sound", "Problem",
        "Only its text is trained. Remove these rows, or the placeholder if the text makes sense without it.",
    )  # fmt: skip
    OWN_ENDS = _Said("a text contains the token that begins or ends it, and gets no second one", "Note")
    MERGED = _Said(
        "the prompt's last token would merge with the answer, and both are encoded apart", "Note",
        "So it is when the model is used. If the prompts end in white space, move it to the beginning of the answers.",
    )  # fmt: skip
    CUT_IN_ANSWER = _Said(
        "truncated at its end, within an answer, which loses its end token", "Many",
        "Raise datasets.maxSeqLength{room}, or remove or shorten these rows.",
    )  # fmt: skip
    CUT_AFTER_ANSWER = _Said(
        "truncated at its end, after an answer; later answers are lost", "Many",
        "Raise datasets.maxSeqLength, or divide these conversations.",
    )  # fmt: skip
    CUT_UNTRAINED = _Said("truncated at its end, where nothing is trained", "Count")
    CUT_PROMPT = _Said(
        "truncated at the beginning of its prompt", "Many",
        "A token that begins a sequence stays, the first messages do not. Raise maxPromptLength of the method, which "
        "leaves less of maxSeqLength to answers, or both.",
    )  # fmt: skip
    CUT_SYSTEM = _Said(
        "truncated at the beginning of its prompt, which loses the system message or a part of it", "Problem",
        "Raise maxPromptLength of the method, or shorten the prompts.",
    )  # fmt: skip


#: What follows in a remark on pairs whose answers are truncated.
ROOM = ", or lower maxPromptLength of the method if the prompts are short"

#: Keys of a message under which datasets and templates store the assistant's reasoning, separately from its content.
REASONING = ("reasoning_content", "reasoning", "thinking")
_END_OF_REASONING = "</think>"
#: Fraction of a part's words that must be missing for it to count as left out and not merely formatted differently.
_LOST = 0.2


def leaves_out(message: Mapping[str, Any], shown: str) -> bool:
    """Whether ``shown``, the rendered assistant's message, lacks much of the message's reasoning or of its answer."""
    content = message.get("content")
    if len(message) == 2 and isinstance(content, str) and content.strip() in shown:
        return False
    return any(_lacks(shown, part) for part in _parts(message))


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    for name in REASONING:
        if isinstance(message.get(name), str):
            yield message[name]
    content = message.get("content")
    if isinstance(content, str):
        reasoning, _, answer = content.rpartition(_END_OF_REASONING)
        yield reasoning
        yield answer


def _lacks(shown: str, part: str) -> bool:
    if part.strip() in shown:
        return False
    words = Counter(re.findall(r"\w+", part))
    return (words - Counter(re.findall(r"\w+", shown))).total() > _LOST * words.total()
