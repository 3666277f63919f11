"""How much this process compiles, as JAX counts it."""

from dataclasses import dataclass
from typing import Self

_REQUESTED = "/jax/compilation_cache/compile_requests_use_cache"
_FOUND = "/jax/compilation_cache/cache_hits"
#: Of compiling, or of reading what was compiled before.
_SECONDS = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class CompilationCounter:
    """Counts from ``begin`` on, every program however small."""

    requested: int = 0
    """Programs that were needed."""
    found: int = 0
    """Of them, those that the compilation cache had."""
    seconds: float = 0.0
    """What both took."""

    @classmethod
    def begin(cls) -> Self:
        from jax import monitoring

        counted = cls()
        monitoring.register_event_listener(counted._event)
        monitoring.register_event_duration_secs_listener(counted._duration)
        return counted

    @property
    def compiled(self) -> int:
        """Programs that no cache had."""
        return self.requested - self.found

    def _event(self, event: str, **_: str | int) -> None:
        self.requested += event == _REQUESTED
        self.found += event == _FOUND

    def _duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _SECONDS:
            self.seconds += duration_secs
