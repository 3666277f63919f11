"""Notes on rows that are trained, but not completely or not as written, and why rows are dropped. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

# Reasons to drop a row.
BLANK_ANSWER = "the answer is blank"
BLANK_TEXT = "the text is blank"

# Kinds of notes.
ANSWER_LEFT_OUT = "the chat template omits a part of the last answer"
TURN_LEFT_OUT = "the chat template omits a part of an earlier answer"
TOOLS_LEFT_OUT = "the chat template renders no tools"
ASKED_OTHERWISE = "the prompt for the last answer differs from the text before it in the row"
SPLIT = "longer than maxSeqLength, and split into several sequences"
BLANK_TURN = "an answer is blank and not trained, beside others that are"
CONTROL_TRAINED = "an answer contains a special token"
CONTROL_IN_PROMPT = "a prompt contains a special token"
CONTROL_IN_TEXT = "a text contains a special token"
RENDERED = "a text contains a rendered chat template"
OWN_ENDS = "a text contains the token that begins or ends it, and gets no second one"
MERGED = "the prompt's last token would merge with the answer, and both are encoded apart"
CUT_IN_ANSWER = "truncated at its end, within an answer, which loses its end token"
CUT_AFTER_ANSWER = "truncated at its end, after an answer; later answers are lost"
CUT_UNTRAINED = "truncated at its end, where nothing is trained"
CUT_PROMPT = "truncated at the beginning of its prompt"
CUT_SYSTEM = "truncated at the beginning of its prompt, which loses the system message or a part of it"


class Said(NamedTuple):
    """Remark on rows with one kind of note. ``text`` follows "N of M rows (the first: row 3)"."""

    level: Literal["Problem", "Many", "Note"]
    """Many: a problem if it concerns many rows, a note otherwise."""
    text: str


SAID: Mapping[str, Said] = {
    ANSWER_LEFT_OUT: Said(
        "Problem",
        "have reasoning or other text in their last answer that the chat template omits: it is not trained. Set "
        "datasets.chatTemplate to one that shows it, or remove it from the rows.",
    ),
    TURN_LEFT_OUT: Said(
        "Note",
        "have reasoning or other text in earlier answers, which the chat template omits, as it does when the model is "
        "used. Those answers are trained without it.",
    ),
    TOOLS_LEFT_OUT: Said(
        "Problem",
        "have tools, but the chat template renders none: the model does not see them. Set datasets.chatTemplate to one "
        "that does.",
    ),
    ASKED_OTHERWISE: Said(
        "Problem",
        "are trained after a different prompt than the chat template writes when the model is used: that prompt opens "
        "or omits reasoning and the row does not. Make datasets.chatTemplate, its arguments (enable_thinking) and the "
        "reasoning in the rows agree.",
    ),
    SPLIT: Said("Note", "are texts longer than maxSeqLength and are split: no token is lost."),
    BLANK_TURN: Said(
        "Note",
        "have a blank answer beside others. It is not trained, and stays in the prompts of later answers.",
    ),
    CONTROL_TRAINED: Said(
        "Problem",
        "have a special token of the tokenizer within an answer. It is trained as such, so the model learns to end or "
        "open a turn there. Remove it from the rows, or write it differently (with a space inside, it is text).",
    ),
    CONTROL_IN_PROMPT: Said(
        "Note",
        "have a special token of the tokenizer within a prompt, where the model takes it for a turn's end or beginning "
        "and not for text. Unless that is meant, remove it from the rows, or write it with a space inside.",
    ),
    CONTROL_IN_TEXT: Said(
        "Note",
        "are texts with special tokens of the tokenizer, which are trained as such and not as text. Unless that is "
        "meant, remove them from the rows, or write them with a space inside.",
    ),
    RENDERED: Said(
        "Many",
        "are texts that already contain a rendered chat template. In a text its markers and prompts are trained, too, "
        "and around a prompt the model's own template is rendered again. Use conversations (messages), which the "
        "model's template or datasets.chatTemplate renders, or remove the markers.",
    ),
    OWN_ENDS: Said(
        "Note",
        "are texts that contain the token with which a text begins or ends. It is not added a second time.",
    ),
    MERGED: Said(
        "Note",
        "have a prompt whose end and an answer whose beginning are one token of the whole text. They are encoded "
        "apart, as when the model is used. If the prompts end in white space, move it to the beginning of the answers.",
    ),
    CUT_IN_ANSWER: Said(
        "Many",
        "are truncated at their end, within an answer: its rest and its end token are not trained. Raise "
        "datasets.maxSeqLength{room}, or remove or shorten these rows.",
    ),
    CUT_AFTER_ANSWER: Said(
        "Many",
        "are truncated at their end, after an answer: later answers are not trained. Raise datasets.maxSeqLength, or "
        "divide these conversations.",
    ),
    CUT_PROMPT: Said(
        "Many",
        "are truncated at the beginning of their prompt; a token that begins a sequence stays, its first messages do "
        "not. Raise maxPromptLength of the method, which leaves less of maxSeqLength to answers, or both.",
    ),
    CUT_SYSTEM: Said(
        "Problem",
        "lose their system message, or a part of it, because their prompt is truncated at its beginning. Raise "
        "maxPromptLength of the method, or shorten the prompts.",
    ),
}
#: What follows in a remark on pairs whose answers are truncated.
ROOM = ", or lower maxPromptLength of the method if the prompts are short"

#: Keys of a message under which datasets and templates store the assistant's reasoning, separately from its content.
_REASONING = ("reasoning_content", "reasoning", "thinking")
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
    for name in _REASONING:
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
