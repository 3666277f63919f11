"""Collects what the compiler's process compiles, in the format of JAX's persistent compilation cache."""

from pathlib import Path

import jax
from jax._src import compilation_cache  # JAX has no public way to supply a cache implementation
from jax._src.compilation_cache_interface import CacheInterface


class CollectingCache(CacheInterface):
    """JAX's compilation cache for a process that compiles for devices that it does not have.

    Each program becomes a file, and none is read back, because such a client loads no programs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = self._path = folder  # the second name is JAX's, for its log
        self._new: list[str] = []

    @classmethod
    def begin(cls, folder: Path) -> "CollectingCache":
        """Makes this process write what it compiles to ``folder``. Call it before anything is compiled."""
        collected = cls(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.get_file_cache = lambda path: (collected, path)
        return collected

    def get(self, key: str) -> bytes | None:  # noqa: ARG002
        return None

    def put(self, key: str, value: bytes) -> None:
        (self._folder / key).write_bytes(value)
        self._new.append(key)

    def take(self) -> list[str]:
        """The keys of the programs compiled since the last call."""
        new, self._new = self._new, []
        return new
