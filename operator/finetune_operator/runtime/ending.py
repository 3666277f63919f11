"""Ends the process in time, whatever its tasks and threads do."""

import logging
import os
import threading

log = logging.getLogger(__name__)

#: Seconds from a fault to the end of the process, for reconciles and calls to stores that are in progress.
FAULT_SECONDS = 10.0
#: Of them, for reconciles.
FAULT_DRAIN_SECONDS = 2.0
#: Seconds after the drain in which a process that was stopped may end by itself: less than the grace period of its pod.
STOP_SECONDS = 8.0


def end_within(seconds: float) -> None:
    """Ends the process with code 1 after that time, unless it has ended by itself.

    It then does not release the Lease, which expires: what it still does to a store might not have ended. A thread
    waits, because neither the event loop nor the interpreter ends while a task or a call in a thread does not.
    """

    def end() -> None:
        log.error("the process has not ended in %.0f s: it ends now, without releasing the Lease", seconds)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
