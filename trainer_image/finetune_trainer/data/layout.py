"""Lays out examples in rows of one length, one per row or several packed into a row. Pure, numpy only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finetune_trainer.data.examples import Examples, Int64Array

#: Arrays that MaxText's loss reads, each int32 of shape [rows, length].
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
    """Groups of numbers, stored in two arrays: group i is ``numbers[ends[i - 1]:ends[i]]``."""

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
        return cls(numbers=np.arange(count), ends=np.arange(1, count + 1))

    @classmethod
    def joined(cls, parts: Sequence["RaggedIndices"]) -> "RaggedIndices":
        """Returns the concatenated groups, with numbers shifted to be consecutive across parts."""
        numbers = np.cumsum([0, *(len(part.numbers) for part in parts)])[:-1]
        return cls(
            numbers=np.concatenate(
                [part.numbers + start for part, start in zip(parts, numbers, strict=True)]
            ),
            ends=np.concatenate([part.ends + start for part, start in zip(parts, numbers, strict=True)]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """Rows of ``length`` positions, each with the examples that ``members`` lists for it, in order."""

    tokens: Examples
    members: RaggedIndices
    length: int

    def __len__(self) -> int:
        return len(self.members)

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """Returns the rows with these numbers, padded with empty rows (weight zero) to ``size`` rows."""
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
            # MaxText's loss counts targets whose segment is not 0, so the mask does not depend on a padding id.
            row["targets_segmentation"][here] = np.where(example.trained[1:], segment, 0)
            start = here.stop


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """Layout of texts in rows of ``length`` positions."""

    length: int
    packing: bool

    def groups(self, lengths: Int64Array) -> RaggedIndices:
        """Returns the examples of each row: one, or as many as fit.

        An example of n tokens takes n - 1 positions, because its last token is only a target.
        """
        return pack(lengths - 1, self.length) if self.packing else RaggedIndices.single(len(lengths))

    def rows(self, tokens: Examples, members: RaggedIndices) -> SequenceRows:
        return SequenceRows(tokens=tokens, members=members, length=self.length)


def pack(sizes: npt.ArrayLike, capacity: int) -> RaggedIndices:
    """Groups the indices of ``sizes`` by best fit decreasing: the sizes of each group sum to at most ``capacity``.

    No size may exceed ``capacity``. Deterministic. Each index is in exactly one group, indices ascend within a group,
    and groups are ordered by their first index.

    Takes about a second for a million rows: groups are indexed by their remaining capacity, and a bit set of the
    existing remaining capacities yields the tightest fit without a search.
    """
    needed = np.asarray(sizes, np.int64)
    group_of = np.zeros(len(needed), np.int64)
    count = 0
    groups_by_remaining: dict[int, list[int]] = {}
    # Bit n is set if a group has a remaining capacity of n.
    remaining_bits = 0
    order = np.argsort(-needed, kind="stable")
    for index, size in zip(order.tolist(), needed[order].tolist(), strict=True):
        sufficient = remaining_bits >> size
        if sufficient:
            # The lowest bit that is set belongs to the tightest fit.
            remaining = size + (sufficient & -sufficient).bit_length() - 1
            group = groups_by_remaining[remaining].pop()
            if not groups_by_remaining[remaining]:
                remaining_bits ^= 1 << remaining
        else:
            remaining, group, count = capacity, count, count + 1
        group_of[index] = group
        groups_by_remaining.setdefault(remaining - size, []).append(group)
        remaining_bits |= 1 << (remaining - size)
    return _grouped(group_of, count)


def _grouped(group: Int64Array, count: int) -> RaggedIndices:
    """Returns the indices of each of ``count`` groups, given the group of each index."""
    first = np.full(count, len(group), np.int64)
    np.minimum.at(first, group, np.arange(len(group)))
    rank = np.empty(count, np.int64)
    rank[np.argsort(first)] = np.arange(count)
    ranked = rank[group]
    return RaggedIndices(
        numbers=np.argsort(ranked, kind="stable"), ends=np.cumsum(np.bincount(ranked, minlength=count))
    )
