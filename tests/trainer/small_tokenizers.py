"""Tokenizers of the kinds that models have, trained on a few lines: their tokens span spaces, line breaks and digits."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
#: As in Qwen's and Llama 3's tokenizers.
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEXTS = [
    "The capital of Peru is Lima.\n\nThe river is  wide.\n\n\nQ: 12 plus 345?\nA: 357\n", "  x = 1\n    y = 22\n\n",
    "user\n\nassistant\n\nsystem\nIt's  100 000.\n \n ok", "A: The\nA: Lima\nassistant\nassistant\n\nassistant\n\n\n",
] * 4  # fmt: skip
_SPACE = "\u2581"


def byte_level(*, trim_offsets: bool = False, prefix: bool = False) -> Tokenizer:
    """As Qwen's; with ``trim_offsets`` as Llama 3's, with ``prefix`` as RoBERTa's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    ) if not prefix else pre_tokenizers.ByteLevel(add_prefix_space=True)  # fmt: skip
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    _train(made, alphabet=pre_tokenizers.ByteLevel.alphabet())
    return made


def sentence_piece(*, first: str) -> Tokenizer:
    """As Llama 2's: ``legacy`` writes a space in front of every piece, ``first`` of the first, ``never`` of none."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", _SPACE)
    if first == "legacy":
        made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=first, split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    own, made.pre_tokenizer = made.pre_tokenizer, pre_tokenizers.Metaspace(prepend_scheme="never")
    _train(made, alphabet=[*"?+=", _SPACE], also=[f"<0x{byte:02X}>" for byte in range(256)])
    made.pre_tokenizer = own
    return made


def _train(made: Tokenizer, *, alphabet: Sequence[str], also: Sequence[str] = ()) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[*SPECIAL, *also], initial_alphabet=list(alphabet), show_progress=False
    )
    made.train_from_iterator(_TEXTS, trainer)


KINDS: dict[str, Any] = {
    "Qwen": byte_level,
    "Llama 3": lambda: byte_level(trim_offsets=True),
    "RoBERTa": lambda: byte_level(prefix=True),
    "Llama 2": lambda: sentence_piece(first="legacy"),
    "Llama 2 of today": lambda: sentence_piece(first="first"),
    "Gemma": lambda: sentence_piece(first="never"),
}


@cache
def small(kind: str, template: str | None = None) -> Any:
    """Returns a tokenizer of transformers. ``<s>`` begins texts if the kind is Llama's."""
    inner = KINDS[kind]()
    bos = kind.startswith("Llama")
    if bos:
        ends = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
        )
        inner.post_processor = (
            processors.Sequence([inner.post_processor, ends]) if kind == "Llama 3" else ends
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", unk_token="<unk>", **({"bos_token": "<s>"} if bos else {})
    )
    made.chat_template = template
    return made


def stripping(template: str, **options: bool) -> Any:
    """Returns a tokenizer with a token for each byte whose turn markers have ``options``, such as ``lstrip``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [
            AddedToken(text, special=True, **options)
            for text in ("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<eos>")
        ]
    )
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    made.chat_template = template
    return made
