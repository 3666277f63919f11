"""Examples laid out in rows of one length: one a row, or several packed into a row. Pure, numpy only."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from finetune_trainer.data.template import Tokens

#: What MaxText's loss reads: all of shape (rows, length), int32.
BATCH_KEYS = (
    "inputs",
    "inputs_position",
    "inputs_segmentation",
    "targets",
    "targets_position",
    "targets_segmentation",
)
type Batch = Mapping[str, npt.NDArray[np.int32]]


class TokenFile:
    """Examples of any length on disk, read by number. First written, then read; memory holds only the offsets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = path.open("wb")
        self._ends: list[int] = []
        self._words: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, tokens: Tokens) -> None:
        # One word a token: the id, with its sign telling whether it is trained (-1 - id).
        words = np.where(tokens.trained, -1 - tokens.ids, tokens.ids).astype(np.int32)
        assert self._file is not None, "written to the end already"
        self._file.write(words.tobytes())
        self._ends.append((self._ends[-1] if self._ends else 0) + len(words))

    def finish(self) -> None:
        """Ends writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def lengths(self) -> npt.NDArray[np.int64]:
        ends = np.asarray([0, *self._ends], np.int64)
        return ends[1:] - ends[:-1]

    def read(self, index: int) -> Tokens:
        if self._words is None:
            self.finish()
            self._words = np.memmap(self._path, np.int32, mode="r")
        words = np.asarray(self._words[self._ends[index - 1] if index else 0 : self._ends[index]])
        trained = words < 0
        return Tokens(ids=np.where(trained, -1 - words, words).astype(np.int32), trained=trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of ``length`` positions; each holds the examples that ``members`` numbers, in order."""

    tokens: TokenFile
    members: Sequence[Sequence[int]]
    length: int

    def __len__(self) -> int:
        return len(self.members)

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """The rows with these numbers, filled up with empty rows (weight zero) to ``size``."""
        arrays = {key: np.zeros((size, self.length), np.int32) for key in BATCH_KEYS}
        for place, number in enumerate(numbers):
            self._fill({key: array[place] for key, array in arrays.items()}, self.members[number])
        return arrays

    def _fill(self, row: Mapping[str, npt.NDArray[np.int32]], members: Sequence[int]) -> None:
        start = 0
        for segment, member in enumerate(members, start=1):
            example = self.tokens.read(member)
            here = slice(start, start + len(example) - 1)
            positions = np.arange(len(example) - 1)
            row["inputs"][here] = example.ids[:-1]
            row["targets"][here] = example.ids[1:]
            row["inputs_position"][here] = row["targets_position"][here] = positions
            row["inputs_segmentation"][here] = segment
            # MaxText's loss counts the targets whose segment is not 0: the mask needs no pad id.
            row["targets_segmentation"][here] = np.where(example.trained[1:], segment, 0)
            start = here.stop


def lay_out(tokens: TokenFile, *, length: int, packing: bool) -> Rows:
    """One example a row, or as many as fit. Of n tokens the last is only predicted, so they take n - 1 places."""
    tokens.finish()
    if not packing:
        return Rows(tokens=tokens, members=[(index,) for index in range(len(tokens))], length=length)
    return Rows(tokens=tokens, members=pack((tokens.lengths() - 1).tolist(), length), length=length)


def pack(sizes: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Best fit, largest first: groups of indices whose sizes sum to at most ``capacity``. Deterministic; each index
    stands in exactly one group, in rising order, and groups are ordered by their first index."""
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (room left, bin), sorted
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = bisect.bisect_left(room, (sizes[index], -1))
        if at == len(room):
            bins.append([index])
            left, chosen = capacity - sizes[index], len(bins) - 1
        else:
            left, chosen = room.pop(at)
            bins[chosen].append(index)
            left -= sizes[index]
        bisect.insort(room, (left, chosen))
    return sorted(tuple(sorted(members)) for members in bins)
