"""Circuit breaker: keeps the jobs that need a store from each calling one that does not respond."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.artifacts.tenant_shares import TenantShare, share_of

#: Consecutive failures of a share's calls that open its circuit; one slow folder must not cut off its tenant.
_FAILURES = 3
#: Seconds that a circuit stays open: the first pause, doubled with each further failure up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0


@dataclass(slots=True)
class _Circuit:
    """State of a share whose last call got no response."""

    why: str
    failures: int = 0
    pause: float = 0.0
    until: float = 0.0
    probe_in_flight: bool = False
    """Half-open: one call is in flight that checks whether the store responds again."""


class CircuitBreaker:
    """Holds one circuit per share: one tenant's calls to one bucket.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._circuits: dict[TenantShare, _Circuit] = {}

    async def call[T](self, uri: str, request: Callable[[], Awaitable[T]], refused: Callable[[], None]) -> T:
        """Returns or raises as ``request`` does.

        While the circuit is open, calls ``refused`` instead and raises StorageUnavailable with the message of the last
        failure.
        """
        share = share_of(uri)
        circuit = self._circuits.get(share)
        probing = circuit is not None and circuit.failures >= _FAILURES
        if circuit is not None and probing:
            if circuit.probe_in_flight or self._clock() < circuit.until:
                refused()
                raise StorageUnavailable(uri, circuit.why)
            circuit.probe_in_flight = True
        try:
            answer = await request()
        except StorageUnavailable as error:
            self._failed(self._circuits.setdefault(share, _Circuit(error.message)), error, probing=probing)
            raise
        except Exception:
            # Denied, too large, not found: the store responds.
            self._circuits.pop(share, None)
            raise
        else:
            self._circuits.pop(share, None)
            return answer
        finally:
            if circuit is not None and probing:
                circuit.probe_in_flight = False

    def _failed(self, circuit: _Circuit, error: StorageUnavailable, *, probing: bool) -> None:
        circuit.why = error.message
        circuit.failures += 1
        if probing or circuit.failures == _FAILURES:
            circuit.pause = min(max(_FIRST_PAUSE, 2 * circuit.pause), _LONGEST_PAUSE)
            circuit.until = self._clock() + circuit.pause
