"""Writes files on a thread of its own, so that a slow bucket never delays the caller."""

import threading
from collections.abc import Callable


class LatestWriter:
    """Writes files on a thread; newer content for a file replaces content that still waits.

    ``close`` raises the error of the last write; errors of earlier ones only delay what users see.
    """

    def __init__(self, write: Callable[[str, bytes], None], *, pause: float) -> None:
        """``pause``: seconds to wait after a round of writes."""
        self._write = write
        self._pause = pause
        self._waiting: dict[str, bytes | Callable[[], bytes]] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)
        self._thread.start()

    def put(self, uri: str, content: bytes | Callable[[], bytes]) -> None:
        """Schedules a write of ``content``, which may be a function that the writer's thread calls."""
        with self._changed:
            self._waiting[uri] = content
            self._changed.notify()

    def close(self) -> None:
        """Writes what is pending and ends the thread. Raises the last write's error."""
        with self._changed:
            self._closed.set()
            self._changed.notify()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self, *, seconds: float) -> None:
        """Ends the thread without writing what is pending; waits at most ``seconds`` for a write in progress."""
        with self._changed:
            self._waiting = {}
            self._closed.set()
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed.is_set():
                    self._changed.wait()
                if not self._waiting:
                    return
                taken, self._waiting = self._waiting, {}
            for uri, content in taken.items():
                try:
                    self._write(uri, content() if callable(content) else content)
                    self._error = None
                except Exception as error:  # noqa: BLE001 - kept for close; reporting never ends a training
                    self._error = error
            self._closed.wait(self._pause)
