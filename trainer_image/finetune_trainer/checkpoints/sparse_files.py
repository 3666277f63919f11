"""Weight files with only the header and some tensors' values fetched.

The rest of such a file is a hole: the file has the length that its header requires, but takes no space there.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: Bytes of the first request, which contains most headers.
_FIRST = 2**20
#: The format's own limit, in bytes.
_LONGEST_HEADER = 100_000_000
#: Bytes of values that are read at once, and the number of threads that read.
_PIECE, _PARALLEL = 16 * 2**20, 8

type Read = Callable[[int, int], bytes]
"""Returns the bytes of the whole file from one offset up to another."""


def write(target: Path, size: int, read: Read, wanted: Callable[[str], bool]) -> None:
    """Writes the header and the ``wanted`` tensors to ``target``, which gets the file's whole ``size`` in bytes.

    ``read`` reads the original. If that has no complete header, ``target`` has none either.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    first = read(0, min(size, _FIRST))
    values = 8 + int.from_bytes(first[:8], "little")
    if values <= min(size, _LONGEST_HEADER) and values > len(first):
        first += read(len(first), values)
    with target.open("wb") as stream:
        stream.write(first)
        stream.truncate(size)
    pieces = list(_pieces(_ranges(_header(first[8:values]), wanted, values)))

    def fetch(piece: tuple[int, int]) -> None:
        data = read(*piece)
        with target.open("r+b") as stream:
            stream.seek(piece[0])
            stream.write(data)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(fetch, pieces))


def write_header(target: Path, tensors: Mapping[str, tuple[str, Iterable[int], tuple[int, int]]]) -> None:
    """Writes a file with the header of these tensors (dtype, shape, offsets) and none of their values."""
    header = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}
        for name, (dtype, shape, place) in tensors.items()
    }
    begin(target, header, max((end for *_, (_, end) in tensors.values()), default=0))


def begin(target: Path, header: Mapping[str, object], size: int) -> int:
    """Writes a file with this header and a hole for ``size`` bytes of values. Returns the offset of the values."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight bytes
    with target.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + size)
    return 8 + len(text)


def values_size(text: bytes) -> int | None:
    """Bytes of values that a header describes; None if it cannot be read, as opening the file will report that."""
    try:
        return max(
            (int(each["data_offsets"][1]) for name, each in _header(text).items() if name != "__metadata__"),
            default=None,
        )
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def _header(text: bytes) -> Mapping[str, Any]:
    """The parsed header; empty if it cannot be read, as opening the file will report that."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ranges(
    header: Mapping[str, Any], wanted: Callable[[str], bool], values: int
) -> Iterator[tuple[int, int]]:
    """Byte ranges of the wanted tensors in the file, ascending, with adjacent ones merged."""
    places = sorted(
        (start + values, end + values)
        for name, tensor in header.items()
        if name != "__metadata__" and wanted(name)
        for start, end in [tensor["data_offsets"]]
    )
    begun: tuple[int, int] | None = None
    for start, end in places:
        if begun is not None and begun[1] == start:
            begun = (begun[0], end)
            continue
        if begun is not None:
            yield begun
        begun = (start, end)
    if begun is not None:
        yield begun


def _pieces(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, end in ranges:
        for at in range(start, end, _PIECE):
            yield at, min(at + _PIECE, end)
