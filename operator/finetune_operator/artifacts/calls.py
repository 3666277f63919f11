"""One blocking call in a thread. Its deadline ends the work, not only the wait for it."""

import contextlib
from collections.abc import Callable
from threading import Lock
from time import monotonic


class CallEndedError(TimeoutError):
    """The time of the call is over, or its caller no longer waits: the thread must end."""


class StoreCall:
    """Time limit of one call. Its thread calls :meth:`left` before each step; any thread may call :meth:`abort`.

    Args:
        seconds: from now on.
        allowed: whether the call may continue, asked before each step.
    """

    def __init__(self, seconds: float, allowed: Callable[[], bool]) -> None:
        self._ends = monotonic() + seconds
        self._allowed = allowed
        self._lock = Lock()
        self._aborted = False
        self._stop: Callable[[], None] | None = None
        self.last_modified: str | None = None
        """The header of the last HTTP response."""

    def left(self) -> float:
        """Returns the remaining seconds, more than 0. Raises CallEndedError if none remain or it is not allowed."""
        left = self._ends - monotonic()
        if self._aborted or left <= 0 or not self._allowed():
            raise CallEndedError
        return left

    def stop_by(self, stop: Callable[[], None]) -> None:
        """Registers the function that interrupts the thread's blocking operation; called once, on abort."""
        with self._lock:
            self._stop = stop
            if self._aborted:
                self._end()

    def abort(self) -> None:
        """Ends the work; its result is no longer needed."""
        with self._lock:
            if not self._aborted:
                self._aborted = True
                self._end()

    def _end(self) -> None:
        # The operation may just have ended by itself.
        with contextlib.suppress(Exception):
            if self._stop is not None:
                self._stop()
