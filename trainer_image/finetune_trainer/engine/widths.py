"""The width of rows: that of the sequences, rounded up to a width that the TPU's attention kernel takes. Pure.

MaxText's splash attention divides a row into blocks, each ``min(block size, width)`` wide. It requires whole blocks,
and blocks of whole lanes (``jax/experimental/pallas/ops/tpu/splash_attention``: ``q_block_size should divide
q_seq_len``, ``bkv_compute must be a multiple of 128``). Rows below 128 use plain attention, which takes any width.
Widths follow from the request alone, never from the platform that computes them: the rows of a training are the same
everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import PreferenceMethod, StageRequest
from finetune_trainer.engine import overrides

#: Positions that a TPU's vector unit processes at a time.
_LANES = 128
#: MaxText's default block size.
_BLOCK = 512
_SIZES = tuple(
    f"sa_block_{part}"
    for part in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
)
#: Width of the narrowest program for texts of any length, and the width from which there is one between two powers of
#: two.
_NARROWEST, _CLOSE_FROM = 64, 1024
#: Number of texts below which they get no program of their own.
_FEW = 16
#: MaxText's settings that determine which widths the kernel takes. Layers with a sliding window have their own sizes,
#: which default to those of the others.
DECIDING = ("attention", *_SIZES, *(f"local_{name}" for name in _SIZES))


def row_width(length: int, settings: Mapping[str, Any]) -> int:
    """The narrowest row for sequences of ``length`` tokens.

    ``settings``: MaxText's; those in ``DECIDING`` count, and a missing one has MaxText's default. If no width near the
    length is a multiple of the block sizes, the width is whole lanes, and MaxText refuses the sizes by name.
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
    """The width of the program for a text of ``length`` tokens, at most half as wide again.

    It is one of few widths, so that few programs are compiled. ``longest``: the most tokens of any text. ``settings``
    as for ``row_width``.
    """
    wide = max(_NARROWEST, 1 << (length - 1).bit_length())
    between = wide // 4 * 3
    if wide > _CLOSE_FROM and length <= between:
        wide = between
    return row_width(max(length, min(wide, longest)), settings)


def group_by_width(
    lengths: Sequence[int], settings: Mapping[str, Any], *, longest: int
) -> dict[int, list[int]]:
    """Indices of the texts by the width of their program, narrow ones first, short texts first.

    A few texts join those of a wider program: compiling a program takes longer than padding them.
    """
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
    """The settings that ``row_width`` reads, from MaxText's whole configuration."""
    return {name: getattr(config, name) for name in DECIDING}


def of_rows(request: StageRequest) -> int:
    """Tokens of a row of the request's batches. Raises ``StageError`` 64 for overrides that users may not set."""
    return row_width(request.data.max_seq_length, overrides.parse(request.engine_overrides))


def of_pairs(request: StageRequest) -> tuple[int, int]:
    """Columns for the prompt and for each answer of a pair, which together make a row.

    Padding of the row goes to the prompts, whose columns' logits are not used. The method must compare answers.
    """
    assert isinstance(request.method, PreferenceMethod), (
        "the contract allows pairs only with a method that compares them"
    )
    answers = request.data.max_seq_length - request.method.max_prompt_length
    return of_rows(request) - answers, answers


def _sizes(settings: Mapping[str, Any]) -> list[Any]:
    found = [settings.get(name) for name in _SIZES]
    local = [settings.get(f"local_{name}") for name in _SIZES]
    return found + [own if own is not None else other for own, other in zip(local, found, strict=True)]
