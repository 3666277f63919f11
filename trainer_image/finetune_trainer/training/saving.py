"""When a checkpoint is saved."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class CheckpointSavePolicy:
    """Every so many steps, and where so many seconds have passed since the last save or the beginning.

    All processes must save the same steps, and their clocks differ: the first one's decides. Asking for it makes all
    wait for each other, so whoever asks also learns in how many steps to ask again: as long as a save is far away,
    half of the steps that are left until then at the pace so far.

    A save decision policy of Orbax, which only repeats what ``decide`` found.
    """

    every_steps: int
    every_seconds: int | None
    first_says: Callable[[int], int]
    """The first process's number, in all of them."""
    clock: Callable[[], float] = time.monotonic
    latest: int = 0
    """The step that was to be saved last; 0: none yet."""
    _since: float = field(init=False)
    """The time of that, or of the beginning."""
    _from: int | None = field(default=None, init=False)
    """The step at that time."""
    _ask: int = field(default=0, init=False)
    """No process asks before this step."""

    def __post_init__(self) -> None:
        self._since = self.clock()

    def decide(self, step: int) -> bool:
        """Whether to save ``step``, which is done. Called once for every step, in rising order."""
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
        """Half of the steps until a save, at least one; 0: it is time."""
        assert self._from is not None
        passed = self.clock() - self._since
        if passed >= every_seconds:
            return 0
        if passed <= 0:
            return 1
        return max(1, int((every_seconds - passed) * (step - self._from) / passed / 2))

    def should_save(self, step: Any, previous_steps: Sequence[Any], *, context: Any) -> bool:  # noqa: ARG002
        """Orbax's question, whose ``step`` has the number in ``step.step``."""
        return bool(step.step == self.latest)
