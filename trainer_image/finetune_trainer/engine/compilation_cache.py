"""Compiled programs that outlive their process: JAX's persistent compilation cache, kept in the stage's own storage.

JAX's cache reads ``gs://`` through gcsfs, which retries for a minute per file when a bucket does not answer, and never
replaces an entry that it cannot read. This one holds the same entries, each behind its sha256, and never fails a stage
or delays it for long: what cannot be read within seconds is compiled, and what is damaged is compiled and replaced.

**Everyone who may write to the folder runs code in every process that reads it.** It belongs to one namespace.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jax
from jax._src import compilation_cache  # JAX has no public way to supply a cache implementation
from jax._src.compilation_cache_interface import CacheInterface

from finetune_trainer.storage import StorageClient, join, name_of

_LOG = logging.getLogger(__name__)
#: Longest wait for one entry in seconds; after it, the process stops using the folder.
_READ_SECONDS, _WRITE_SECONDS = 20.0, 120.0
#: The same for all entries of a process together: a consistently slow store would hold a slice longer than compiling
#: does.
_ALL_READS_SECONDS, _ALL_WRITES_SECONDS = 180.0, 600.0
#: Age at which an unused entry is deleted. A used entry is written again, which resets its age, at its first use after
#: ``_RENEWED``: storage reports when an object was written, not when it was read.
_KEPT, _RENEWED = timedelta(days=30), timedelta(days=7)
_DIGEST_BYTES = hashlib.sha256().digest_size
_TYPE = "application/octet-stream"


def use_compilation_cache(folder: str, store: StorageClient, *, first: bool) -> None:
    """Makes this process read compiled programs from ``folder``; process 0 also writes what it compiles there.

    Call it before anything is compiled. ``folder``: ``gs://`` or ``file://``.
    """
    programs = StorageCompilationCache(folder, store, first=first, now=lambda: datetime.now(UTC))
    # JAX makes a path of the name, which is not possible for file://; only this class uses it.
    jax.config.update("jax_compilation_cache_dir", "kept-by-the-stage")
    compilation_cache.get_file_cache = lambda path: (programs, path)
    if first:
        threading.Thread(target=programs.collect, name="programs", daemon=True).start()


class StorageCompilationCache(CacheInterface):
    """Implements JAX's cache interface. Keys and values are JAX's own; a stored value is prefixed with its sha256."""

    def __init__(
        self, folder: str, store: StorageClient, *, first: bool, now: Callable[[], datetime]
    ) -> None:
        """``first``: whether this is process 0, which alone writes. ``now``: the clock to compare the store's times
        with."""
        self._folder, self._store, self._first, self._now = folder, store, first, now
        self._path = Path(folder)  # used only in JAX's log
        self._reads = self._writes = True
        self._reading, self._writing = _ALL_READS_SECONDS, _ALL_WRITES_SECONDS
        """Seconds left for reads and for writes."""
        self._given: set[str] = set()
        """Keys that JAX was given. If JAX still puts such a key, it could not use the value."""
        self._damaged: set[str] = set()
        self._ageing: Mapping[str, datetime] = {}

    def get(self, key: str) -> bytes | None:
        """The entry; None if there is none, it is damaged, or it cannot be read now."""
        if not self._reads:
            return None
        started = time.monotonic()
        try:
            kept = _within(
                min(_READ_SECONDS, self._reading), lambda: self._store.read_or_none(self._uri(key))
            )
        except Exception as error:  # noqa: BLE001 - on any storage error the program can be compiled
            self._reads = False
            _LOG.warning(
                "compiled programs cannot be read from %s, so this process compiles itself: %s",
                self._folder,
                error,
            )
            return None
        self._reading -= time.monotonic() - started
        if self._reading <= 0:
            self._reads = False
            _LOG.warning(
                "compiled programs are read too slowly from %s: this process compiles itself", self._folder
            )
        if kept is None:
            return None
        value = _verified_content(kept)
        if value is None:
            self._damaged.add(key)
            _LOG.warning("the compiled program %s is damaged; it is compiled and replaced", self._uri(key))
            return None
        self._given.add(key)
        if self._first and self._uri(key) in self._ageing:
            self._write(key, value, replace=True)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Stores what JAX has compiled. JAX calls it in process 0 alone."""
        self._write(key, value, replace=key in self._given or key in self._damaged)

    def collect(self) -> None:
        """Deletes entries that were not used for a month, and notes those that have to be written again when used."""
        ageing = {}
        try:
            for entry in self._store.entries(self._folder):
                age = self._now() - entry.updated
                if age > _KEPT:
                    self._store.delete(entry.uri)
                    _LOG.info(
                        "the compiled program %s was not used for a month; it is deleted", name_of(entry.uri)
                    )
                elif age > _RENEWED:
                    ageing[entry.uri] = entry.updated
        except Exception as error:  # noqa: BLE001 - the next process tries again
            _LOG.warning("compiled programs in %s were not checked for their age: %s", self._folder, error)
        self._ageing = ageing

    def _write(self, key: str, value: bytes, *, replace: bool) -> None:
        if not self._writes:
            return
        write = self._store.write if replace else self._store.create
        started = time.monotonic()
        try:
            _within(
                min(_WRITE_SECONDS, self._writing),
                lambda: write(self._uri(key), _with_digest(value), content_type=_TYPE),
            )
        except Exception as error:  # noqa: BLE001 - the program is compiled; the next process compiles it again
            self._writes = False
            _LOG.warning(
                "compiled programs cannot be stored in %s, so the next process compiles them again: %s",
                self._folder,
                error,
            )
            return
        self._writing -= time.monotonic() - started
        if self._writing <= 0:
            self._writes = False
            _LOG.warning("compiled programs are written too slowly to %s: no more are stored", self._folder)

    def _uri(self, key: str) -> str:
        return join(self._folder, key)


def _with_digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest() + value


def _verified_content(kept: bytes) -> bytes | None:
    """The value without its digest; None if they do not match."""
    digest, value = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    return value if hashlib.sha256(value).digest() == digest else None


def _within[T](seconds: float, call: Callable[[], T]) -> T:
    """The call's result. Raises what it raises, or TimeoutError; the call then continues on its thread."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            result.set_exception(error)

    threading.Thread(target=run, name="program", daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(f"no response within {seconds:.0f} s") from error
