"""The API server's clock, told by the ``Date`` of its answers.

Ages, deadlines and backoffs compare the present with times that the control plane has written. So its clock counts, and
that of the operator's own machine may be wrong, or be set, at any moment.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic


class ServerClock:
    """Right within a second after one answer, and better with each.

    Args:
        fallback: the time as long as nothing has been told.
        clock: seconds that nobody sets.
    """

    def __init__(self, fallback: Callable[[], datetime], *, clock: Callable[[], float] = monotonic) -> None:
        self._fallback = fallback
        self._clock = clock
        self._ahead: float | None = None
        """Seconds since 1970 on the server, when ours were 0."""

    def told(self, date: str | None) -> None:
        """The server has just sent this ``Date``, which is cut to the second. One that is none says nothing."""
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        earliest = second - self._clock()
        # What was known is kept where it agrees, so that time does not jump to and fro within the second.
        self._ahead = earliest if self._ahead is None else min(max(self._ahead, earliest), earliest + 1)

    def now(self) -> datetime:
        if self._ahead is None:
            return self._fallback()
        return datetime.fromtimestamp(self._ahead + self._clock(), UTC)
