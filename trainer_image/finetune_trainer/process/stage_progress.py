"""What the stage is doing, reported for people in a small file of the attempt (:class:`StageProgress`).

A stage names its activity and counts what is done: tensors, rows, files. A thread writes the newest state, at most once
in ``PAUSE_SECONDS``, and only if something has advanced: an activity that stands still shows its age.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from finetune_contract import StageProgress
from finetune_trainer.process.latest_writer import LatestWriter

#: Least number of seconds between two writes.
PAUSE_SECONDS = 10.0
#: Seconds that the end of a stage waits at most for a write in progress.
_LAST_WRITE_SECONDS = 5.0
_DOING = 80


def ignore(_count: int) -> None:
    """Counts nothing: the default of parameters that receive counts."""


class StageProgressReporter:
    """Counts the current activity of a stage. Thread safe; a failing or slow store never fails or delays the stage."""

    def __init__(
        self,
        write: Callable[[bytes], None] | None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: float = PAUSE_SECONDS,
    ) -> None:
        """``write`` replaces the file; None to report nowhere."""
        self._now = now
        self._lock = threading.Lock()
        self._progress: StageProgress | None = None
        self._writer = None if write is None else LatestWriter(lambda _, content: write(content), pause=pause)

    def begin(
        self, doing: str, total: int | None = None, unit: str = "", *, total_bytes: int | None = None
    ) -> None:
        """Begins an activity, which ends the one before. The arguments are those of :class:`StageProgress`."""
        now = self._now()
        with self._lock:
            self._progress = StageProgress(
                doing=doing[:_DOING], total=total, unit=unit, total_bytes=total_bytes, since=now, updated=now
            )
        self._schedule()

    def advance(self, count: int = 1, nbytes: int = 0) -> None:
        """Counts what has been done since the last call. For each tensor, file or batch, not for each row."""
        with self._lock:
            before = self._progress
            if before is None:
                return
            done = _at_most(before.done + count, before.total)
            done_bytes = _at_most(before.done_bytes + nbytes, before.total_bytes)
            changes = {"done": done, "done_bytes": done_bytes, "updated": self._now()}
            self._progress = before.model_copy(update=changes)
        self._schedule()

    def close(self) -> None:
        """Ends the reports. What is not written yet is dropped: the stage's result follows."""
        if self._writer is not None:
            self._writer.abandon(seconds=_LAST_WRITE_SECONDS)

    def _schedule(self) -> None:
        if self._writer is not None:
            self._writer.put("", self._content)

    def _content(self) -> bytes:
        with self._lock:
            assert self._progress is not None, "a write follows the beginning of an activity"
            return self._progress.to_json().encode()


def _at_most(done: int, total: int | None) -> int:
    """A last batch may be padded, and small files come with those that are counted."""
    return done if total is None else min(done, total)


#: Reports nowhere: for evaluations by hand, smoke tests and callers that are no stage.
SILENT = StageProgressReporter(None)
