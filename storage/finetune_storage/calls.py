"""The time limits of blocking calls: they end the work and not only the wait for it."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from time import monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """How long a call waits for a bucket, or for an access token, that does not respond. In seconds."""

    connect: float
    read: float
    """Time for each step of one request."""
    first: float
    longest: float
    """Delays between attempts, which double from the first to the longest."""
    total: float
    """Time of all attempts together."""
    retrying: Callable[[Exception], None] = lambda _: None
    """Called before each further attempt."""


class CallEndedError(Exception):
    """The time of the call is over, it is no longer allowed, or its caller no longer waits: the thread must end."""


class StoreCall:
    """Time limit of one call. Its thread calls :meth:`left` before each step; any thread may call :meth:`abort`.

    Args:
        seconds: from now on.
        allowed: whether the call may continue, asked before each step.
    """

    def __init__(self, seconds: float = math.inf, allowed: Callable[[], bool] = lambda: True) -> None:
        self._ends = monotonic() + seconds
        self._allowed = allowed
        self._lock = Lock()
        self._aborted = False
        self._stop: Callable[[], None] | None = None
        self.headers: Mapping[str, str] = {}
        """Those of the last HTTP response."""

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


_served: ContextVar[StoreCall] = ContextVar("call")


def current() -> StoreCall:
    """Returns the call that this context serves; without one, a new call without limits."""
    return _served.get(None) or StoreCall()


@contextmanager
def served(call: StoreCall) -> Iterator[None]:
    """Makes the steps inside part of the call."""
    token = _served.set(call)
    try:
        yield
    finally:
        _served.reset(token)
