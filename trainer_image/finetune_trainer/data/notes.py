"""Notes on rows that are trained, but not completely or not as written. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

ANSWER_LEFT_OUT = "the chat template omits a part of the last answer"
TURN_LEFT_OUT = "the chat template omits a part of an earlier answer"
TOOLS_LEFT_OUT = "the chat template renders no tools"
ASKED_OTHERWISE = "the prompt for the last answer differs from the text before it in the row"
SPLIT = "longer than maxSeqLength, and split into several sequences"

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
