"""The API server's clock, derived from the ``Date`` header of its responses.

Ages, deadlines and backoffs compare the present with timestamps that the control plane has written. So they use the
server's clock: the clock of the operator's own machine may be wrong, or be set, at any time.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic


class ServerClock:
    """Estimates the server's time: within one second after the first response, then ever more precisely.

    Args:
        fallback: returns the time before the first response.
        clock: monotonic clock in seconds, which is never set.
    """

    def __init__(self, fallback: Callable[[], datetime], *, clock: Callable[[], float] = monotonic) -> None:
        self._fallback = fallback
        self._clock = clock
        self._ahead: float | None = None
        """Server time in seconds since 1970 when the local monotonic clock was 0; None before the first response."""

    def observe_date(self, date: str | None) -> None:
        """Records the ``Date`` of a response that just arrived, cut to the second. An invalid one is ignored."""
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        earliest = second - self._clock()
        # The earlier estimate is kept where it agrees, so that time does not jump back and forth within the second.
        self._ahead = earliest if self._ahead is None else min(max(self._ahead, earliest), earliest + 1)

    def now(self) -> datetime:
        if self._ahead is None:
            return self._fallback()
        return datetime.fromtimestamp(self._ahead + self._clock(), UTC)
