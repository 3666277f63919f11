"""Counts the tokens with which training teaches a model to end its answers.

A program that serves the model has to stop at them. They are counted in the prepared rows, because the chat template
alone does not determine them: rows may have several formats, and a mask may leave out the token that closes a turn.
"""

from collections import Counter
from typing import Any

import numpy as np

from finetune_trainer.data.dataset import Dataset, SourceSubset
from finetune_trainer.data.examples import Int64Array
from finetune_trainer.data.template import Renderer

#: Number of tokens at the end of an answer of which one must be special: templates may write white space after it.
_CLOSING = 3
#: Most tokens that are reported.
_MOST = 64


def trained_ends(data: Dataset, renderer: Renderer, tokenizer: Any, *, limit: int, pairs: bool) -> list[int]:
    """Returns the special tokens that end an answer of ``data``, those of most answers first.

    The end of an answer is its last trained token apart from white space. An answer that may have been cut is not
    counted: one that reaches the last of ``limit`` tokens of its example or, of ``pairs``, has ``limit`` tokens itself.
    Of a pair, only the chosen answer counts.
    """
    counts: Counter[int] = Counter()
    for piece in data.pieces:
        counts.update(_of_piece(piece, renderer, tokenizer, limit=limit, pairs=pairs))
    return [index for index, _ in counts.most_common(_MOST)]


def _of_piece(
    piece: SourceSubset, renderer: Renderer, tokenizer: Any, *, limit: int, pairs: bool
) -> dict[int, int]:
    tokens = piece.source.tokens
    begins, ends = tokens.trained_runs()
    examples = np.searchsorted(tokens.ends(), begins, side="right")
    used = np.zeros(len(tokens), np.bool_)
    used[piece.chosen] = True
    if pairs:
        first = np.diff(examples, prepend=-1) > 0
        kept = first & (ends - begins < limit)
    else:
        kept = (ends < tokens.ends()[examples]) | (tokens.lengths()[examples] < limit)
    kept &= used[examples]
    return _closing(piece, begins[kept], ends[kept], renderer, tokenizer)


def _closing(
    piece: SourceSubset, begins: Int64Array, ends: Int64Array, renderer: Renderer, tokenizer: Any
) -> dict[int, int]:
    """Returns the number of answers that end with each special token, given the answers' offsets in the file."""
    counts: Counter[int] = Counter()
    for back in range(1, _CLOSING + 1):
        inside = ends - back >= begins
        begins, ends = begins[inside], ends[inside]
        ids = piece.source.tokens.trained_at(ends - back)
        distinct, number = np.unique(ids, return_counts=True)
        special = np.isin(distinct, list(renderer.special_ids))
        counts.update(dict(zip(distinct[special].tolist(), number[special].tolist(), strict=True)))
        blank = [index for index in distinct[~special].tolist() if not tokenizer.decode([index]).strip()]
        further = np.isin(ids, blank)
        begins, ends = begins[further], ends[further]
    return counts
