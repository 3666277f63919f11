"""An event loop whose time passes only while it has nothing to do, so that timers of minutes take no time."""

import asyncio
import selectors
from collections.abc import Coroutine


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]  # chosen at run time by the platform
    """Passes the time until the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not found:
            assert timeout is not None, "every task waits for another"
            self.now += max(timeout, 0.0)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_in_virtual_time[T](main: Coroutine[object, object, T]) -> T:
    """Runs a coroutine. The clock of its event loop starts at 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
