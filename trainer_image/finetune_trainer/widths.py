"""How wide rows are: as the sequences need, rounded up to a width that the TPU's attention kernel takes. Pure.

MaxText's splash attention divides a row into blocks, each ``min(block size, width)`` wide. It wants whole blocks, and
blocks of whole lanes (``jax/experimental/pallas/ops/tpu/splash_attention``: ``q_block_size should divide q_seq_len``,
``bkv_compute must be a multiple of 128``). Rows below 128 it leaves to plain attention, which takes any width. Widths
follow from the request alone, never from the platform that computes them: the rows of a training are the same
everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import PreferenceMethod, StageRequest
from finetune_trainer.training import overrides

#: Positions that a TPU's vector unit takes at a time.
_LANES = 128
#: MaxText's block size where nothing is set.
_BLOCK = 512
_SIZES = tuple(
    f"sa_block_{part}"
    for part in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
)
#: The narrowest program for texts of any length, and the width from which there is one between two powers of two.
_NARROWEST, _CLOSE_FROM = 64, 1024
#: Texts that are too few for a program of their own.
_FEW = 16
#: MaxText's settings that decide which widths the kernel takes. Layers with a sliding window have sizes of their own,
#: and without them those of the others.
DECIDING = ("attention", *_SIZES, *(f"local_{name}" for name in _SIZES))


def row_width(length: int, settings: Mapping[str, Any]) -> int:
    """The narrowest row for sequences of ``length`` tokens. ``settings``: MaxText's, of which those in ``DECIDING``
    count; one that is not there has MaxText's default.

    Block sizes that no width near the length is a multiple of leave it at whole lanes: MaxText refuses them by name.
    """
    kernel = settings.get("attention", "autoselected")
    if kernel == "dot_product" or (kernel == "autoselected" and length < _LANES):
        return length
    sizes = [_BLOCK if size is None else int(size) for size in _sizes(settings)]
    narrowest = -(-length // _LANES) * _LANES
    widest = 2 * max(narrowest, *sizes)
    return next(
        (
            width
            for width in range(narrowest, widest + 1, _LANES)
            if all(width % min(size, width) == 0 for size in sizes)
        ),
        narrowest,
    )


def bucket(length: int, settings: Mapping[str, Any], *, longest: int) -> int:
    """The width of the program for a text of ``length`` tokens: one of few, so that few are compiled, and at most half
    as wide again. ``longest``: the most that any text comes to. ``settings`` as for ``row_width``."""
    wide = max(_NARROWEST, 1 << (length - 1).bit_length())
    between = wide // 4 * 3
    if wide > _CLOSE_FROM and length <= between:
        wide = between
    return row_width(max(length, min(wide, longest)), settings)


def group_by_width(
    lengths: Sequence[int], settings: Mapping[str, Any], *, longest: int
) -> dict[int, list[int]]:
    """Numbers of the texts by the width of their program, narrow ones first, short texts first. A few texts go along
    with wider ones: to compile a program takes longer than to pad them."""
    found: dict[int, list[int]] = {}
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        found.setdefault(bucket(lengths[number], settings, longest=longest), []).append(number)
    narrow: list[int] = []
    kept: dict[int, list[int]] = {}
    for width, numbers in found.items():
        narrow += numbers
        if len(narrow) >= _FEW or width == max(found):
            kept[width] = narrow
            narrow = []
    return kept


def settings_of(config: Any) -> dict[str, Any]:
    """What ``row_width`` reads, of MaxText's whole configuration."""
    return {name: getattr(config, name) for name in DECIDING}


def of_rows(request: StageRequest) -> int:
    """Positions of a row of the request's batches. Raises ``StageError`` 64 for overrides that are not the user's to
    set."""
    return row_width(request.data.max_seq_length, overrides.parse(request.engine_overrides))


def of_pairs(request: StageRequest) -> tuple[int, int]:
    """Columns for the prompt and for each answer of a pair, together a row. What a row is wider than its sequences
    goes to the prompts, of whose columns no logits are used. The method is one that compares answers."""
    assert isinstance(request.method, PreferenceMethod), (
        "the contract takes pairs with a method that compares them"
    )
    answers = request.data.max_seq_length - request.method.max_prompt_length
    return of_rows(request) - answers, answers


def _sizes(settings: Mapping[str, Any]) -> list[Any]:
    found = [settings.get(name) for name in _SIZES]
    local = [settings.get(f"local_{name}") for name in _SIZES]
    return found + [own if own is not None else other for own, other in zip(local, found, strict=True)]
