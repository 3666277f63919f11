"""Selects the rows of each training step as a function of only the seed and the step's number."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from finetune_trainer.data.examples import Examples, Int64Array
from finetune_trainer.data.layout import Batch, RaggedIndices


class BatchRows(Protocol):
    """Rows that can be read by number as the arrays of a batch."""

    @property
    def tokens(self) -> Examples: ...

    @property
    def members(self) -> RaggedIndices:
        """Numbers of the examples in each row, in their order."""

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """Returns the rows with these numbers, padded with empty rows (weight zero) to ``size`` rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureComponent:
    """Consecutive rows of a mixture, and how many of them an epoch uses.

    If ``shown`` exceeds ``rows``, an epoch repeats some rows; if it is smaller, the next epoch continues with the
    remaining rows.
    """

    rows: int
    shown: int


@dataclass(slots=True, kw_only=True)
class TrainBatches:
    """The batches of a training run, by step from 0.

    Epochs follow each other without a gap. With a single part that uses all of its R rows, row n of the whole run is
    row n mod R of epoch n div R, in that epoch's order. With several parts, each iterates over its rows in the same way
    but at its own rate, and the epoch's order determines which part comes next. A resumed run gets the same batches as
    an uninterrupted one, regardless of the number of processes.
    """

    rows: BatchRows
    parts: Sequence[MixtureComponent] = ()
    """Parts of the mixture, which together cover all rows. If empty, all rows are one part used once per epoch."""
    batch_size: int
    seed: int
    shuffle: bool
    _orders: dict[tuple[int, int], Int64Array] = field(default_factory=dict, init=False)
    """Orders that the current epoch needs, by part (-1 for the order of parts) and the part's own epoch."""
    _epoch: int = field(default=-1, init=False)
    _start: Int64Array = field(init=False)
    """Each part's first row, followed by the total number of rows."""
    _first: Int64Array = field(init=False)
    """Each part's first position in an unordered epoch, followed by the epoch's length."""

    def __post_init__(self) -> None:
        self.parts = self.parts or (MixtureComponent(rows=len(self.rows), shown=len(self.rows)),)
        self._start = np.cumsum([0, *(part.rows for part in self.parts)])
        self._first = np.cumsum([0, *(part.shown for part in self.parts)])

    @property
    def epoch(self) -> int:
        return int(self._first[-1])

    def batch(self, step: int) -> Batch:
        return self.rows.batch([self.row(n) for n in self.numbers(step)], self.batch_size)

    def numbers(self, step: int) -> range:
        """Returns the positions of ``step``'s rows in the whole run's stream of rows."""
        return range(step * self.batch_size, (step + 1) * self.batch_size)

    def row(self, number: int) -> int:
        epoch, place = divmod(number, self.epoch)
        if epoch != self._epoch:
            self._orders.clear()
            self._epoch = epoch
        if len(self.parts) == 1:
            return int(self._order(0, epoch)[place])
        slot = int(self._order(-1, epoch)[place])
        at = int(np.searchsorted(self._first, slot, side="right")) - 1
        part = self.parts[at]
        own = epoch * part.shown + slot - int(self._first[at])
        return int(self._start[at] + self._order(at, own // part.rows)[own % part.rows])

    def _order(self, part: int, epoch: int) -> Int64Array:
        key = (part, epoch)
        if key not in self._orders:
            self._orders[key] = self._made(part, epoch)
        return self._orders[key]

    def _made(self, part: int, epoch: int) -> Int64Array:
        size = self.epoch if part < 0 else self.parts[part].rows
        if self.shuffle:
            # The key contains the part's number only if there are several parts.
            return permutation(size, self.seed, epoch, *((part + 1,) if len(self.parts) > 1 else ()))
        if part >= 0:
            return np.arange(size)
        # Spread evenly: the k-th of a part's n rows belongs at (k + 1/2)/n of the epoch.
        places = np.concatenate([(np.arange(each.shown) + 0.5) / each.shown for each in self.parts])
        return np.argsort(places, kind="stable")


def permutation(size: int, seed: int, *key: int) -> Int64Array:
    """Returns a permutation of ``size`` numbers that is the same on every machine."""
    # Philox is specified bit for bit, so the order does not depend on the numpy release either.
    words = np.random.SeedSequence([seed & 0xFFFF_FFFF, *key]).generate_state(2, np.uint64)
    return np.argsort(np.random.Philox(key=words).random_raw(size), kind="stable")


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Distributes ``total`` rows in proportion to the weights, by largest remainder; at least one row each."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [max(1, math.floor(each)) for each in exact]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda i: exact[i] - counts[i])] += 1
    while sum(counts) > total:
        counts[max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: counts[i] - exact[i])] -= 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBatches:
    """Batches with every row once, in order. The last batch is padded with rows of weight zero."""

    rows: BatchRows
    batch_size: int

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.rows), self.batch_size):
            yield self.rows.batch(range(start, min(start + self.batch_size, len(self.rows))), self.batch_size)


def steps_for(rows: int, epochs: float, batch_size: int) -> int:
    """Returns the number of optimizer steps for ``epochs`` epochs of ``rows`` rows.

    The last batch is filled with rows of the next epoch.
    """
    # In floating point, 0.1 * 30 is slightly above 3; rounding before the ceiling keeps it at 3.
    return max(1, math.ceil(round(math.ceil(round(rows * epochs, 9)) / batch_size, 9)))
