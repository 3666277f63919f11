"""SIGTERM: a request to end this process (preemption, suspend, deletion).

A thread receives it, not a Python signal handler: a handler would wait until the main thread leaves native code, and a
compilation can outlast the grace period. If nothing would be lost, the thread ends the process at once; after a
training step it only records the request, and the training saves before its next step. A training that is almost done
ends successfully.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Protocol


class StopSignal(Protocol):
    """The part of a SIGTERM handler that a training uses."""

    @property
    def requested(self) -> bool: ...

    def defer(self) -> None: ...


class SigtermHandler:
    """Receives SIGTERM from construction on. Create one per process, on the main thread."""

    def __init__(self, end: Callable[[], None]) -> None:
        """``end`` is called on the listening thread for a signal before ``defer``; it does not return."""
        self._end = end
        self._lock = threading.Lock()
        self._deferred = False
        self._requested = threading.Event()
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        self._writer = writer  # keeps the descriptor open as long as this object lives
        threading.Thread(target=self._listen, args=(reader,), name="stopper", daemon=True).start()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def defer(self) -> None:
        """From now on the main thread checks ``requested`` itself. An earlier signal has ended the process."""
        with self._lock:
            self._deferred = True

    def _listen(self, reader: socket.socket) -> None:
        while number := reader.recv(1):
            if number[0] != signal.SIGTERM:
                continue
            with self._lock:
                self._requested.set()
                if not self._deferred:
                    self._end()


class ImmediateStop:
    """A ``StopSignal`` for work that has nothing to save: the process's own ``SigtermHandler`` ends it."""

    requested = False

    def defer(self) -> None:
        """Does nothing: a signal still ends the process at once."""


def exit_now(code: int) -> None:
    """Ends the process without waiting for threads, transfers or other processes."""
    os._exit(code)
