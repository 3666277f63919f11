"""Examples laid out in rows of one length: one a row, or several packed into a row. Pure, numpy only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finetune_trainer.data.examples import Examples, Int64Array

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedIndices:
    """Groups of numbers, two arrays for all of them: group i is ``numbers[ends[i - 1]:ends[i]]``."""

    numbers: Int64Array
    ends: Int64Array

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> list[int]:
        found: list[int] = self.numbers[self.ends[index - 1] if index else 0 : self.ends[index]].tolist()
        return found

    def __iter__(self) -> Iterator[list[int]]:
        return (self[index] for index in range(len(self)))

    @classmethod
    def single(cls, count: int) -> "RaggedIndices":
        """One number a group."""
        return cls(numbers=np.arange(count), ends=np.arange(1, count + 1))

    @classmethod
    def joined(cls, parts: Sequence["RaggedIndices"]) -> "RaggedIndices":
        """One after the other, numbered through."""
        numbers = np.cumsum([0, *(len(part.numbers) for part in parts)])[:-1]
        return cls(
            numbers=np.concatenate(
                [part.numbers + start for part, start in zip(parts, numbers, strict=True)]
            ),
            ends=np.concatenate([part.ends + start for part, start in zip(parts, numbers, strict=True)]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """Rows of ``length`` positions; each holds the examples that ``members`` numbers, in order."""

    tokens: Examples
    members: RaggedIndices
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """How texts are laid out."""

    length: int
    packing: bool

    def groups(self, lengths: Int64Array) -> RaggedIndices:
        return assign_rows(lengths, length=self.length, packing=self.packing)

    def rows(self, tokens: Examples, members: RaggedIndices) -> SequenceRows:
        return SequenceRows(tokens=tokens, members=members, length=self.length)


def assign_rows(lengths: Int64Array, *, length: int, packing: bool) -> RaggedIndices:
    """Examples of these lengths, one a row or as many as fit. Of n tokens the last is only predicted, so they take
    n - 1 places."""
    return pack(lengths - 1, length) if packing else RaggedIndices.single(len(lengths))


def pack(sizes: npt.ArrayLike, capacity: int) -> RaggedIndices:
    """Best fit, largest first: groups of indices whose sizes sum to at most ``capacity``. Deterministic; each index
    stands in exactly one group, in rising order, and groups are ordered by their first index.

    Takes about a second for a million rows: open groups are kept by the room that they have left, and a bit for each
    room that some group has tells the tightest one at once.
    """
    wanted = np.asarray(sizes, np.int64)
    group = np.zeros(len(wanted), np.int64)
    by_room: dict[int, list[int]] = {}
    rooms = 0
    count = 0
    order = np.argsort(-wanted, kind="stable")
    for index, size in zip(order.tolist(), wanted[order].tolist(), strict=True):
        enough = rooms >> size
        if enough:
            room = size + (enough & -enough).bit_length() - 1
            chosen = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, chosen, count = capacity, count, count + 1
        group[index] = chosen
        left = room - size
        by_room.setdefault(left, []).append(chosen)
        rooms |= 1 << left
    return _grouped(group, count)


def _grouped(group: Int64Array, count: int) -> RaggedIndices:
    first = np.full(count, len(group), np.int64)
    np.minimum.at(first, group, np.arange(len(group)))
    rank = np.empty(count, np.int64)
    rank[np.argsort(first)] = np.arange(count)
    ranked = rank[group]
    return RaggedIndices(
        numbers=np.argsort(ranked, kind="stable"), ends=np.cumsum(np.bincount(ranked, minlength=count))
    )
