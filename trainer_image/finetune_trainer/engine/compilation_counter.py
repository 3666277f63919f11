"""Counts this process's compilations, from JAX's own events."""

from dataclasses import dataclass
from typing import Self

_REQUESTED = "/jax/compilation_cache/compile_requests_use_cache"
_FOUND = "/jax/compilation_cache/cache_hits"
#: Duration of compiling a program or of reading it from the cache.
_SECONDS = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class CompilationCounter:
    """Counts from ``begin`` on, every program however small."""

    requested: int = 0
    """Number of programs that were needed."""
    found: int = 0
    """Number of those that were in the compilation cache."""
    seconds: float = 0.0
    """Seconds spent compiling and reading from the cache."""

    @classmethod
    def begin(cls) -> Self:
        from jax import monitoring

        counted = cls()
        monitoring.register_event_listener(counted._event)
        monitoring.register_event_duration_secs_listener(counted._duration)
        return counted

    @property
    def compiled(self) -> int:
        """Number of programs that were in no cache."""
        return self.requested - self.found

    def _event(self, event: str, **_: str | int) -> None:
        self.requested += event == _REQUESTED
        self.found += event == _FOUND

    def _duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _SECONDS:
            self.seconds += duration_secs
