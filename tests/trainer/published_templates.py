"""Chat templates as they are published with models, read from the ``trl`` package in an environment of its own."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
#: Strings of these templates that are one token: <|im_start|>, <start_of_turn>, <｜User｜>, <|tool_call>, [gMASK],
#: <think> …
_MARKERS = re.compile(r"<[|｜][^<>\s'\"]{1,40}[|｜]?>|<[a-z_]+[|]>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>")
_ALWAYS = ("<bos>", "<eos>")
#: Single tokens that are not special: the text between them is part of an answer.
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@cache
def _folder() -> Path:
    environment = subprocess.run(
        [ROOT / "trainer_image/install.sh", "templates"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    (found,) = Path(environment).glob("lib/python*/site-packages/trl/chat_templates")
    return found


@cache
def template(name: str) -> str:
    return (_folder() / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer(text: str) -> Any:
    """Returns a tokenizer with a token for each byte, so that tests can tell all characters apart.

    Markers that the template ``text`` contains are single tokens.
    """
    special = sorted({*_ALWAYS, *_MARKERS.findall(text)} - set(_PLAIN))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *_PLAIN, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(special)
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in _PLAIN])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", bos_token="<bos>")
    made.chat_template = text
    return made
