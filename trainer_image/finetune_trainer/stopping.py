"""SIGTERM: somebody wants this process to end (preemption, suspend, deletion).

A thread, not a Python signal handler, hears it: a handler would wait until the main thread leaves native code, and a
compilation can outlast the grace period. Where nothing would be lost the thread ends the process at once; once a
training has done a step it only takes note, and the training saves before its next step. A training that is all but
done ends well.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Protocol


class StopSignal(Protocol):
    """What a training asks."""

    @property
    def requested(self) -> bool: ...

    def defer(self) -> None: ...


class SigtermHandler:
    """Hears SIGTERM from construction on. One per process, made on the main thread."""

    def __init__(self, end: Callable[[], None]) -> None:
        """``end`` is called on the listening thread for a signal outside ``deferred`` sections; it does not return."""
        self._end = end
        self._lock = threading.Lock()
        self._deferred = False
        self._requested = threading.Event()
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        self._writer = writer  # the descriptor lives as long as this object
        threading.Thread(target=self._listen, args=(reader,), name="stopper", daemon=True).start()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def defer(self) -> None:
        """From here on the main thread looks at ``requested`` itself. A signal that was first has ended the process."""
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
        """Nothing is kept waiting."""


def exit_now(code: int) -> None:
    """Ends the process without waiting for anything: threads, transfers, other processes."""
    os._exit(code)
