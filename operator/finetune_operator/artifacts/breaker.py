"""A store that does not answer is not asked for a while, so that not every job waits for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.artifacts.shares import Share, share_of

#: Calls of one share that fail in a row before further ones are refused: one slow folder must not blind its tenant.
_FAILURES = 3
#: Seconds without a request; doubled each time the store is still silent, up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0


@dataclass(slots=True)
class _Silence:
    """What is known of a share whose last call was not answered."""

    why: str
    failures: int = 0
    pause: float = 0.0
    until: float = 0.0
    asking: bool = False
    """A call is under way that finds out whether the store is back."""


class Breaker:
    """A circuit breaker per share: one tenant's calls to one bucket.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._silent: dict[Share, _Silence] = {}

    async def ask[T](self, uri: str, request: Callable[[], Awaitable[T]], refused: Callable[[], None]) -> T:
        """What ``request`` returns or raises. While the store is known not to answer nothing is requested: ``refused``
        is called, and StorageUnavailable raised with the last failure's message."""
        share = share_of(uri)
        silence = self._silent.get(share)
        probing = silence is not None and silence.failures >= _FAILURES
        if silence is not None and probing:
            if silence.asking or self._clock() < silence.until:
                refused()
                raise StorageUnavailable(uri, silence.why)
            silence.asking = True
        try:
            answer = await request()
        except StorageUnavailable as error:
            self._failed(self._silent.setdefault(share, _Silence(error.message)), error, probing=probing)
            raise
        except Exception:
            # Refused, too large, not found: it answers.
            self._silent.pop(share, None)
            raise
        else:
            self._silent.pop(share, None)
            return answer
        finally:
            if silence is not None and probing:
                silence.asking = False

    def _failed(self, silence: _Silence, error: StorageUnavailable, *, probing: bool) -> None:
        silence.why = error.message
        silence.failures += 1
        if probing or silence.failures == _FAILURES:
            silence.pause = min(max(_FIRST_PAUSE, 2 * silence.pause), _LONGEST_PAUSE)
            silence.until = self._clock() + silence.pause
