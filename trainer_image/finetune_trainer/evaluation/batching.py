"""Chooses the number of rows of a compiled program.

The number is limited by the memory and by the number of inputs, and halved when the devices run out of memory.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jax.errors import JaxRuntimeError

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError

_LOG = logging.getLogger(__name__)


class RowCapacity(Protocol):
    """Number of rows that fit on the devices, as ``placement.DeviceRowCapacity`` computes it."""

    @property
    def groups(self) -> int:
        """Number of groups of devices that share a row. A batch's number of rows is a multiple of it."""

    def rows(self, *, tokens: int, logits: int) -> int:
        """Returns how many rows of ``tokens`` positions fit, each with logits for ``logits`` positions at once."""


@dataclass(slots=True, kw_only=True)
class Batching:
    """Batch sizes of one kind of program. Remembers how often they were halved."""

    row_capacity: RowCapacity
    _halvings: int = field(default=0, init=False)

    def rows(self, count: int, *, tokens: int, logits: int) -> int:
        """Returns the number of rows for ``count`` texts: the smallest power of two per group that holds all of them.

        At most as many as fit on the devices.
        """
        groups = self.row_capacity.groups
        needed = groups << (-(-count // groups) - 1).bit_length()
        return min(needed, self._most(tokens, logits))

    def _most(self, tokens: int, logits: int) -> int:
        groups = self.row_capacity.groups
        return max(
            groups,
            (self.row_capacity.rows(tokens=tokens, logits=logits) >> self._halvings) // groups * groups,
        )

    def over[Result](
        self,
        numbers: Sequence[int],
        attempt: Callable[[Sequence[int], int], Sequence[Result]],
        *,
        tokens: int,
        logits: int,
    ) -> Iterator[tuple[Sequence[int], Sequence[Result]]]:
        """Calls ``attempt`` on consecutive batches of ``numbers`` and yields each batch with its results.

        ``attempt`` receives the batch and the number of rows of its program. When the devices run out of memory, the
        batch is repeated with half of the rows. All hosts run the same programs on equal devices, so they halve at the
        same batches.

        Raises ``StageError`` 78 if not even one row per group of devices fits.
        """
        done = 0
        while done < len(numbers):
            rows = self.rows(len(numbers), tokens=tokens, logits=logits)
            some = numbers[done : done + rows]
            try:
                found = attempt(some, rows)
            except JaxRuntimeError as error:
                if not is_exhausted(error):
                    raise
                if rows <= self.row_capacity.groups:
                    raise _too_long(error) from error
                while self._most(tokens, logits) >= rows:
                    self._halvings += 1
                _LOG.warning("%d rows per batch do not fit the devices' memory: trying half of them", rows)
                continue
            done += len(some)
            yield some, found


def is_exhausted(error: BaseException) -> bool:
    """Whether JAX reports that a device has run out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


def _too_long(error: BaseException) -> StageError:
    return StageError(
        ExitCode.OUT_OF_MEMORY, "EvaluationOutOfMemory",
        "a single text of the evaluation does not fit the devices' memory",
        where="spec.evaluation", actual=" ".join(str(error).split())[:300],
        fix="Lower evaluation.generation.maxNewTokens, remove the longest rows, or use a larger slice.",
    )  # fmt: skip
