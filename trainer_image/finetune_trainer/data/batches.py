"""Which rows a step trains on: a function of the seed and the step's number alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from finetune_trainer.data.layout import Batch, TokenFile


class BatchRows(Protocol):
    """Rows by number, as arrays."""

    @property
    def tokens(self) -> TokenFile: ...

    def __len__(self) -> int: ...

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """The rows with these numbers, filled up with empty rows (weight zero) to ``size``."""


@dataclass(slots=True, kw_only=True)
class TrainBatches:
    """The batches of a training, by step from 0.

    Epochs follow each other without a gap: row number n of the whole training is row n mod R of epoch n div R, in that
    epoch's own order. A resumed run asks for its step and gets what an undisturbed one gets, whatever the number of
    processes.
    """

    rows: BatchRows
    batch_size: int
    seed: int
    shuffle: bool
    _order: tuple[int, npt.NDArray[np.int64]] | None = field(default=None, init=False)

    def batch(self, step: int) -> Batch:
        return self.rows.batch([self._row(n) for n in self.numbers(step)], self.batch_size)

    def numbers(self, step: int) -> range:
        """The places in the whole training's stream of rows that ``step`` takes."""
        return range(step * self.batch_size, (step + 1) * self.batch_size)

    def _row(self, number: int) -> int:
        epoch, place = divmod(number, len(self.rows))
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._permutation(epoch))
        return int(self._order[1][place])

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(len(self.rows))
        # Philox is specified bit for bit, so the order is the same on every machine and numpy release.
        key = np.random.SeedSequence([self.seed & 0xFFFF_FFFF, epoch]).generate_state(2, np.uint64)
        draws = np.random.Philox(key=key).random_raw(len(self.rows))
        return np.argsort(draws, kind="stable")


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
