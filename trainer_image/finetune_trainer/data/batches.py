"""Which rows a step trains on: a function of the seed and the step's number alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from finetune_trainer.data.examples import Examples
from finetune_trainer.data.layout import Batch


class BatchRows(Protocol):
    """Rows by number, as arrays."""

    @property
    def tokens(self) -> Examples: ...

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """The rows with these numbers, filled up with empty rows (weight zero) to ``size``."""


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureComponent:
    """Rows that stand one after the other, and how many of them an epoch shows. More than there are: some again;
    fewer: the next ones come in the next epoch."""

    rows: int
    shown: int


@dataclass(slots=True, kw_only=True)
class TrainBatches:
    """The batches of a training, by step from 0.

    Epochs follow each other without a gap. Where the one part shows all of its rows, row number n of the whole
    training is row n mod R of epoch n div R, in that epoch's own order. Of several parts each goes through its own
    rows in the same way, at its own pace, and an epoch's order says which part is next. A resumed run asks for its
    step and gets what an undisturbed one gets, whatever the number of processes.
    """

    rows: BatchRows
    parts: Sequence[MixtureComponent] = ()
    """Whose rows sum to all; empty: all are one part, shown once an epoch."""
    batch_size: int
    seed: int
    shuffle: bool
    _orders: dict[tuple[int, int], Numbers] = field(default_factory=dict, init=False)
    """Those that the present epoch needs, by part (-1: among parts) and the part's own epoch."""
    _epoch: int = field(default=-1, init=False)
    _start: Numbers = field(init=False)
    """Each part's first row, and the end."""
    _first: Numbers = field(init=False)
    """Each part's first place in an epoch before it is ordered, and the end."""

    def __post_init__(self) -> None:
        self.parts = self.parts or (MixtureComponent(rows=len(self.rows), shown=len(self.rows)),)
        self._start = np.cumsum([0, *(part.rows for part in self.parts)])
        self._first = np.cumsum([0, *(part.shown for part in self.parts)])

    @property
    def epoch(self) -> int:
        """Rows of an epoch."""
        return int(self._first[-1])

    def batch(self, step: int) -> Batch:
        return self.rows.batch([self.row(n) for n in self.numbers(step)], self.batch_size)

    def numbers(self, step: int) -> range:
        """The places in the whole training's stream of rows that ``step`` takes."""
        return range(step * self.batch_size, (step + 1) * self.batch_size)

    def row(self, number: int) -> int:
        """Which row stands at this place of the stream."""
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

    def _order(self, part: int, epoch: int) -> Numbers:
        key = (part, epoch)
        if key not in self._orders:
            self._orders[key] = self._made(part, epoch)
        return self._orders[key]

    def _made(self, part: int, epoch: int) -> Numbers:
        size = self.epoch if part < 0 else self.parts[part].rows
        if self.shuffle:
            # The single part's key is that of the training; others have their number in it.
            return permutation(size, self.seed, epoch, *((part + 1,) if len(self.parts) > 1 else ()))
        if part >= 0:
            return np.arange(size)
        # Evenly: the k-th of n rows of a part belongs to the place (k + 1/2)/n of the epoch.
        places = np.concatenate([(np.arange(each.shown) + 0.5) / each.shown for each in self.parts])
        return np.argsort(places, kind="stable")


def permutation(size: int, seed: int, *key: int) -> Numbers:
    """An order of ``size`` numbers that is the same on every machine."""
    # Philox is specified bit for bit, so the order does not depend on the numpy release either.
    words = np.random.SeedSequence([seed & 0xFFFF_FFFF, *key]).generate_state(2, np.uint64)
    return np.argsort(np.random.Philox(key=words).random_raw(size), kind="stable")


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` rows in the weights' proportion, by largest remainder; at least one each."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [max(1, math.floor(each)) for each in exact]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda i: exact[i] - counts[i])] += 1
    while sum(counts) > total:
        counts[max((i for i in range(len(counts)) if counts[i] > 1), key=lambda i: counts[i] - exact[i])] -= 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBatches:
    """Every row once, in order; the last batch is filled up with rows of weight zero."""

    rows: BatchRows
    batch_size: int

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.rows), self.batch_size):
            yield self.rows.batch(range(start, min(start + self.batch_size, len(self.rows))), self.batch_size)


def steps_for(rows: int, epochs: float, batch_size: int) -> int:
    """Optimizer steps that show ``rows`` rows ``epochs`` times, the last batch filled from the next epoch."""
    # A decimal such as 0.1 times 30 is a hair above 3; rounding before the ceiling keeps it at 3.
    return max(1, math.ceil(round(math.ceil(round(rows * epochs, 9)) / batch_size, 9)))
