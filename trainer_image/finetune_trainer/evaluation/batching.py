"""How many rows go into a program: what memory leaves, no more than are needed, fewer where the device refuses them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jax.errors import JaxRuntimeError

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError

_LOG = logging.getLogger(__name__)


class RowCapacity(Protocol):
    """What devices hold, as ``placement.DeviceRowCapacity`` computes it."""

    @property
    def groups(self) -> int:
        """Of devices that share a row: a batch has a multiple of so many rows."""

    def rows(self, *, tokens: int, logits: int) -> int:
        """Rows of ``tokens`` positions, each with logits for ``logits`` of them at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRowCapacity:
    """So many rows, whatever they hold."""

    number: int
    groups: int = 1

    def rows(self, *, tokens: int, logits: int) -> int:  # noqa: ARG002
        return self.number


@dataclass(slots=True, kw_only=True)
class Batching:
    """Rows of programs of one kind; remembers how far they were halved."""

    row_capacity: RowCapacity
    _halvings: int = field(default=0, init=False)

    def rows(self, count: int, *, tokens: int, logits: int) -> int:
        """For ``count`` texts: the least power of two in each group that holds them all, or as many as fit."""
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
        """``attempt`` with some of ``numbers`` and the rows of its program, again and again for all of them; with half
        of the rows where the devices' memory does not suffice. On several hosts each runs the same programs on equal
        devices, so all halve alike.

        Raises ``StageError`` 78 where not even one row in each group of devices fits.
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
                _LOG.warning("%d rows at a time do not fit the devices' memory: trying half of them", rows)
                continue
            done += len(some)
            yield some, found


def is_exhausted(error: BaseException) -> bool:
    """Whether JAX says that a device's memory does not suffice."""
    return "RESOURCE_EXHAUSTED" in str(error)


def _too_long(error: BaseException) -> StageError:
    return StageError(
        ExitCode.OUT_OF_MEMORY, "EvaluationOutOfMemory", "the devices do not hold one text of the evaluation",
        where="spec.evaluation", saw=" ".join(str(error).split())[:300],
        fix="Lower evaluation.generation.maxNewTokens, remove the longest rows, or use a larger slice.",
    )  # fmt: skip
