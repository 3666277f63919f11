"""When a checkpoint is saved."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class CheckpointSavePolicy:
    """Saves every so many steps, and when so many seconds have passed since the last save or the beginning.

    All processes must save the same steps, and their clocks differ: the first one's decides. Querying it makes all wait
    for each other, so the answer also says in how many steps to query again: as long as a save is far away, half of the
    steps that are left until then at the pace so far.

    It is a save decision policy for Orbax, which only repeats the result of ``decide``.
    """

    every_steps: int
    every_seconds: int | None
    first_says: Callable[[int], int]
    """Broadcasts the first process's number to all of them."""
    clock: Callable[[], float] = time.monotonic
    latest: int = 0
    """The latest step that was due for saving; 0: none yet."""
    _since: float = field(init=False)
    """The clock's time at that step, or at the beginning."""
    _from: int | None = field(default=None, init=False)
    """The step at that time."""
    _ask: int = field(default=0, init=False)
    """No process queries the first one before this step."""

    def __post_init__(self) -> None:
        self._since = self.clock()

    def decide(self, step: int) -> bool:
        """Whether to save ``step``, which is done. Called once for every step, in ascending order."""
        if self._from is None:
            self._from = step - 1
        due = step % self.every_steps == 0
        if not due and self.every_seconds is not None and step >= self._ask:
            wait = self.first_says(self._steps_left(step, self.every_seconds))
            due, self._ask = wait == 0, step + wait
        if due:
            self.latest, self._from, self._since = step, step, self.clock()
        return due

    def _steps_left(self, step: int, every_seconds: int) -> int:
        """Half of the steps until the next save, at least one; 0: the save is due."""
        assert self._from is not None
        passed = self.clock() - self._since
        if passed >= every_seconds:
            return 0
        if passed <= 0:
            return 1
        return max(1, int((every_seconds - passed) * (step - self._from) / passed / 2))

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: Any) -> bool:  # noqa: ARG002
        """Implements Orbax's policy; the number of ``step`` is in ``step.step``."""
        return bool(step.step == self.latest)
