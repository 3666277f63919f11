"""The model's tokenizer as its tokenizer.json describes it, whatever class its tokenizer_config.json names.

transformers builds some classes (``LlamaTokenizer``, ``GemmaTokenizer``, ``GPT2Tokenizer``, ...) with a normalizer, a
pre-tokenizer and a decoder of their own and takes only vocabulary and merges from tokenizer.json. Published models name
such a class beside a tokenizer.json of another kind: loaded with it, the tokenizers of DeepSeek-R1-Distill-Llama and
deepseek-coder lose every space and line break.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.hub.models import LocalModel

TOKENIZER, CONFIG, PIECES = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
_MARK = "\ufeff"
#: What transformers raises for files that are not a tokenizer's; ImportError for a class that needs another package.
_REFUSALS = (OSError, ValueError, KeyError, TypeError, RecursionError, ImportError)
#: What tokenizers of different kinds disagree on: spaces, line breaks, digits, contractions, accents, other scripts.
_PROBE = (
    "Hello world, 12345 isn't\n\n  def f(x):\n\treturn  x  # IT'S\r\n"
    "he\u0301llo h\u00e9llo \ufb01 \u4f60\u597d \U0001f600\n"
)
#: A text that tokenizers of one SentencePiece file agree on.
_PLAIN = "Hello world"
#: Number of vocabulary entries that are also probed, and the characters that mean a space or a line break in them.
_WORDS, _SPACES = 4096, str.maketrans({"\u0120": " ", "\u2581": " ", "\u010a": "\n"})


def load_tokenizer(model: LocalModel) -> Any:
    """The model's tokenizer, a fast one (it knows which characters each token covers).

    If there is a tokenizer.json, text becomes tokens exactly as it says; special tokens, chat template and further
    settings are those of tokenizer_config.json. Special tokens that it does not name are the defaults of its class, if
    the vocabulary has them. Chat templates are without a byte order mark. Without tokenizer.json, the tokenizer is what
    transformers makes of the other files, if it reads a SentencePiece file as SentencePiece does.

    Raises ``StageError`` 64 or 66.
    """
    tokenizer = _loaded(model)
    tokenizer.chat_template = without_mark(tokenizer.chat_template)
    return tokenizer


def without_mark[Value](value: Value) -> Value:
    """Returns a chat template, or several with their names, without a byte order mark at the beginning of each.

    Some editors write one, and a chat template would render it into every prompt.
    """
    changed: Any = value
    if isinstance(value, str):
        changed = value.removeprefix(_MARK)
    elif isinstance(value, dict):
        changed = {key: without_mark(part) for key, part in value.items()}
    elif isinstance(value, list):
        changed = [without_mark(part) for part in value]
    return changed  # type: ignore[no-any-return]


def _loaded(model: LocalModel) -> Any:
    named = _of_its_class(model)
    if (model.tokenizer_path / TOKENIZER).is_file():
        return _as_written(model, named)
    if not named.is_fast:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "TokenizerNotFast",
            "the tokenizer has no tokenizer.json",
            where=model.tokenizer_source,
            actual=type(named).__name__,
            expected="a fast tokenizer",
            fix="Convert it with transformers and save it again.",
        )
    _require_pieces(model, named)
    return named


def _require_pieces(model: LocalModel, tokenizer: Any) -> None:
    """Raises ``StageError`` 64 if ``tokenizer`` divides a plain text otherwise than the model's SentencePiece file.

    transformers 5 reads such a file, in the folder of some architectures (Mistral) or without a class, without the
    space that SentencePiece writes in front of a text.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        pieces = SentencePieceProcessor(model_file=str(model.tokenizer_path / PIECES))
    except (OSError, RuntimeError):  # there is none, or the file is of another kind
        return
    wanted, found = pieces.encode(_PLAIN), tokenizer(_PLAIN, add_special_tokens=False)["input_ids"]
    if found != wanted:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "TokenizerNotFast",
            f"the tokenizer has no {TOKENIZER}, and transformers does not read {PIECES} as SentencePiece does",
            where=model.tokenizer_source,
            actual=f"{_PLAIN!r} as {tokenizer.convert_ids_to_tokens(found)}",
            expected=f"{pieces.id_to_piece(wanted)}",
            fix=f"Put the {TOKENIZER} of the model's publisher beside it, or one that transformers 4 has saved.",
        )


def misreading_class(model: LocalModel, tokenizer: Any) -> str | None:
    """The class with which ``AutoTokenizer`` loads the model's tokenizer, if it tokenizes or decodes differently.

    ``tokenizer`` is what ``load_tokenizer`` returned; None if both agree. Raises as ``load_tokenizer`` does.
    """
    from transformers import AutoConfig

    beside = {} if model.path == model.tokenizer_path else {"config": AutoConfig.from_pretrained(model.path)}
    named = _of_its_class(model, **beside)
    if type(named) is type(tokenizer):
        return None
    return (
        None if all(_agree(named, tokenizer, text) for text in _probes(tokenizer)) else type(named).__name__
    )


def _of_its_class(model: LocalModel, **options: Any) -> Any:
    """The tokenizer as ``AutoTokenizer`` loads it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model.tokenizer_path), trust_remote_code=False, **options)
    except StrictDataclassError as error:  # it also reads the config.json beside the tokenizer
        raise StageError(
            ExitCode.BAD_REQUEST,
            "InvalidModelConfig",
            "transformers does not accept config.json",
            where=model.tokenizer_source,
            actual=" ".join(str(error).split())[:300],
            expected="a config.json that transformers can read",
            fix="Correct the field that the message names, or copy the model's config.json again.",
        ) from error
    except _REFUSALS as error:
        raise _unusable(model, error) from error


def _as_written(model: LocalModel, named: Any) -> Any:
    """The tokenizer as tokenizer.json describes it. ``named``: the same folder as ``AutoTokenizer`` loads it."""
    from transformers import TokenizersBackend

    if type(named) is TokenizersBackend:
        return named
    try:
        tokenizer = TokenizersBackend.from_pretrained(str(model.tokenizer_path))
    except _REFUSALS as error:
        raise _unusable(model, error) from error
    vocabulary, known = tokenizer.get_vocab(), tokenizer.special_tokens_map
    defaults = {
        name: token
        for name, token in named.special_tokens_map.items()
        if name not in known and isinstance(token, str) and token in vocabulary
    }
    if defaults:
        tokenizer.add_special_tokens(defaults)
    return tokenizer


def _probes(tokenizer: Any) -> Iterator[str]:
    """Texts on which tokenizers of different kinds differ, including this one's tokens and special tokens."""
    special = [str(token) for token in tokenizer.all_special_tokens]
    yield _PROBE
    yield "".join(f"{token}a {token}{token} b\n" for token in special)
    words = itertools.islice(tokenizer.get_vocab(), 0, None, max(1, len(tokenizer) // _WORDS))
    yield " ".join(word.translate(_SPACES) for word in words if word not in special)


def _agree(one: Any, other: Any, text: str) -> bool:
    ids = [each(text, add_special_tokens=False)["input_ids"] for each in (one, other)]
    return bool(ids[0] == ids[1] and one.decode(ids[0]) == other.decode(ids[1]))


def _unusable(model: LocalModel, error: Exception) -> StageError:
    return StageError(
        ExitCode.INPUT_MISSING,
        "TokenizerMissing",
        "the tokenizer cannot be loaded",
        where=model.tokenizer_source,
        actual=" ".join(str(error).split())[:300],
        expected=f"{TOKENIZER} and {CONFIG}",
        fix="Put the tokenizer's files beside the model, or name model.tokenizer (code of its own is never run).",
    )
