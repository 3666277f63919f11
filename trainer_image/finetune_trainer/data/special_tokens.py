"""Compares tokenizer, rows and model: tokens without an embedding, and tokens that end an answer.

Published models differ in these respects and train well: vocabularies padded beyond the tokenizer, several end tokens,
no padding token, an added token that only an image model reads. Training on an id without an embedding is an error; all
other differences are remarks.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune_contract import ExitCode, Remark
from finetune_trainer.checkpoints.declared_tokens import CONFIG, DeclaredIds, declared, stop_ids
from finetune_trainer.data.dataset import Dataset, SourceSubset
from finetune_trainer.data.examples import Int64Array, TrainedRuns
from finetune_trainer.data.prepare import PreparedSource
from finetune_trainer.data.remarks import note, problem
from finetune_trainer.errors import StageError
from finetune_trainer.tokens.template import Renderer

_SHOWN = 3
#: Number of tokens at the end of an answer of which one must be special: templates may write white space after it.
_CLOSING = 3
#: Most tokens that are reported as ends.
_MOST = 64


def beyond(tokenizer: Any, vocab_size: int) -> dict[int, str]:
    """Returns the tokenizer's tokens for which the model has no embedding, by id."""
    return {index: token for token, index in tokenizer.get_vocab().items() if index >= vocab_size}


def require_embeddings(tokenizer: Any, vocab_size: int) -> None:
    """Raises ``StageError`` 64 if the model has no embedding for a token that rows need.

    These are the regular tokens, without which the tokenizer is another model's, and the tokens for begin (bos) and end
    (eos) of a sequence. Other tokens added beyond the vocabulary are allowed; only rows that contain one are rejected
    (``require_known``).
    """
    unknown = beyond(tokenizer, vocab_size)
    if not unknown:
        return
    regular = unknown.keys() - set(getattr(tokenizer, "added_tokens_decoder", {}))
    if regular:
        raise StageError(
            ExitCode.BAD_REQUEST, "TokenizerTooLarge", "the tokenizer has more tokens than the model",
            where="spec.model", actual=f"{max(unknown) + 1} tokens", expected=f"at most {vocab_size}",
            fix="Use the tokenizer that belongs to the model.",
        )  # fmt: skip
    for name in ("bos_token", "eos_token"):
        index = getattr(tokenizer, f"{name}_id")
        if index is not None and index in unknown:
            raise StageError(
                ExitCode.BAD_REQUEST, "SpecialTokenUnknown", f"the model has no embedding for the tokenizer's {name}",
                where="spec.model", actual=f"{unknown[index]}, id {index}",
                expected=f"an id below the model's {vocab_size}",
                fix=f"Correct {name} in tokenizer_config.json, or use the tokenizer that belongs to the model.",
            )  # fmt: skip


def require_known(source: PreparedSource, tokenizer: Any, vocab_size: int) -> None:
    """Raises ``StageError`` 65 for the first row with a token for which the model has no embedding."""
    unknown = beyond(tokenizer, vocab_size)
    number = source.tokens.first_from(vocab_size) if unknown else None
    if number is not None:
        (row,) = source.index.places(np.asarray([number], np.int64))
        _require(
            source.tokens.read(number).ids.tolist(), unknown, vocab_size, ExitCode.BAD_DATA, "a row",
            where=f"{source.spec.path}, {row}", fix="Remove the token from the row or from the chat template.",
        )  # fmt: skip


def require_known_prompts(
    prompts: Sequence[str], renderer: Renderer, tokenizer: Any, vocab_size: int
) -> None:
    """Raises ``StageError`` 64 for the first invalid prompt of ``evaluation.prompts``.

    A prompt is invalid if the chat template rejects it or if the model has no embedding for one of its tokens.
    """
    unknown = beyond(tokenizer, vocab_size)
    for number, prompt in enumerate(prompts):
        _require(
            renderer.prompt(prompt), unknown, vocab_size, ExitCode.BAD_REQUEST, "a prompt",
            where=f"spec.evaluation.prompts[{number}]", fix="Remove the token from the prompt.",
        )  # fmt: skip


def _require(
    ids: Sequence[int], unknown: Mapping[int, str], vocab_size: int, code: ExitCode, what: str, **said: str
) -> None:
    index = next((index for index in ids if index >= vocab_size), None)
    if index is not None:
        raise StageError(
            code, "TokenUnknown", f"{what} contains a token that the model has no embedding for",
            actual=f"{unknown.get(index, '')} (id {index})", expected=f"ids below the model's {vocab_size}", **said,
        )  # fmt: skip


def trained_ends(data: Dataset, renderer: Renderer, tokenizer: Any, *, limit: int, pairs: bool) -> list[int]:
    """Returns the special tokens that end an answer of ``data``, those of most answers first.

    Training teaches the model to end its answers with them, so a program that serves it has to stop there. They are
    counted, because the chat template alone does not determine them: rows may have several formats, and a mask may
    leave out the token that closes a turn. The end of an answer is its last trained token apart from white space. An
    answer that may have been cut is not counted: one that reaches the last of ``limit`` tokens of its example or, of
    ``pairs``, has ``limit`` tokens itself. Of a pair, only the chosen answer counts.
    """
    counts: Counter[int] = Counter()
    within: set[int] = set()
    """Special tokens that are followed by further trained text within an answer."""
    special_ids = np.asarray(sorted(renderer.special_ids), np.int32)
    for piece in data.pieces:
        for answers, begins, ends in _whole_answers(piece, limit, pairs=pairs):
            at = np.flatnonzero(np.isin(answers.ids, special_ids))
            run = np.searchsorted(begins, at, side="right") - 1
            at, run = at[run >= 0], run[run >= 0]
            within.update(np.unique(answers.ids[at[at + _CLOSING < ends[run]]]).tolist())
            for back in range(1, _CLOSING + 1):
                inside = ends - back >= begins
                begins, ends = begins[inside], ends[inside]  # noqa: PLW2901
                ids = answers.ids[ends - back]
                distinct, number = np.unique(ids, return_counts=True)
                special = np.isin(distinct, special_ids)
                counts.update(dict(zip(distinct[special].tolist(), number[special].tolist(), strict=True)))
                blank = [
                    index for index in distinct[~special].tolist() if not tokenizer.decode([index]).strip()
                ]
                further = np.isin(ids, blank)
                begins, ends = begins[further], ends[further]  # noqa: PLW2901
    # A token that is also within answers, as between thought and answer, is no end if others are.
    return [index for index, _ in counts.most_common(_MOST) if index not in within or within >= counts.keys()]


def _whole_answers(
    piece: SourceSubset, limit: int, *, pairs: bool
) -> Iterator[tuple[TrainedRuns, Int64Array, Int64Array]]:
    """Yields the trained runs of a source, some at a time, with where those begin and end that are used and not cut."""
    tokens = piece.source.tokens
    past, lengths = tokens.ends(), tokens.lengths()
    used = np.zeros(len(tokens), np.bool_)
    used[piece.chosen] = True
    for runs in tokens.trained_runs():
        _, start, examples, begins, ends = runs
        if pairs:
            kept = (np.diff(examples, prepend=-1) > 0) & (ends - begins < limit)
        else:
            kept = (start + ends < past[examples]) | (lengths[examples] < limit)
        kept &= used[examples]
        yield runs, begins[kept], ends[kept]


def of_model(
    tokenizer: Any, renderer: Renderer, model: Path, vocab_size: int, *, ends: Sequence[int] | None = None
) -> Iterator[Remark]:
    """Yields remarks on differences between tokenizer and model.

    ``model`` is the model's folder. ``ends``: tokens with which the rows' answers end; None if no row was read.
    """
    files = declared(model)
    unknown = beyond(tokenizer, vocab_size)
    if unknown:
        shown = ", ".join(f"{token} ({index})" for index, token in sorted(unknown.items())[:_SHOWN])
        yield note(
            f"The model has no embedding for {len(unknown)} of the tokenizer's tokens: {shown}. No row may "
            "contain them; a program that pads the exported model's inputs with one fails.",
        )
    for file, names in files.items():
        for name, ids in names.items():
            if outside := [index for index in ids if index >= vocab_size]:
                yield problem(
                    f"{file}: {name}_token_id is {outside[0]}, but the model has {vocab_size} tokens.",
                )
    yield from _of_ends(tokenizer, renderer.end_ids() if ends is None else ends, files)
    yield from _of_others(tokenizer, files)


def _of_ends(tokenizer: Any, ends: Collection[int], files: DeclaredIds) -> Iterator[Remark]:
    """Yields remarks if ``ends``, with which answers end in training, or the tokenizer's end are none of the model."""
    stops, eos = stop_ids(files), tokenizer.eos_token_id
    shown = ", ".join(_shown(tokenizer, index) for index in stops[:_SHOWN]) or "no token"
    if further := sorted(set(ends) - set(stops)):
        trained = " or ".join(_shown(tokenizer, index) for index in further)
        yield note(
            f"Answers are trained to end with {trained}, and the base model's files stop at {shown}: the exported "
            "generation_config.json stops at all of them. The card of an exported adapter names them for servers "
            "of the base model.",
        )
    elif stops and eos is not None and eos not in stops:
        yield note(
            f"The tokenizer's end of sequence is {_shown(tokenizer, eos)}, that of the model's files {shown}.",
        )


def _of_others(tokenizer: Any, files: DeclaredIds) -> Iterator[Remark]:
    for name in ("bos", "pad") if CONFIG in files else ():
        theirs, own = files[CONFIG][name], getattr(tokenizer, f"{name}_token_id")
        if own is not None and theirs and own not in theirs:
            yield note(
                f"The tokenizer's {name}_token is {_shown(tokenizer, own)}, config.json's "
                f"{_shown(tokenizer, theirs[0])}. The tokenizer's is used.",
            )


def _shown(tokenizer: Any, index: int) -> str:
    token = tokenizer.convert_ids_to_tokens(index) if index < len(tokenizer) else None
    return f"{token} ({index})" if token else str(index)
