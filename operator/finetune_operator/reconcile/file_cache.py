"""Cache of run folder files that are final, so that observing a long job costs few requests."""

import zlib
from collections import OrderedDict
from collections.abc import Hashable


class FileCache:
    """Compressed file contents by job and URI.

    They are kept while the job is live. Beyond ``limit_bytes``, the least recently used jobs are evicted.

    Args:
        limit_bytes: maximum size of all compressed contents together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._jobs: OrderedDict[Hashable, dict[str, bytes]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Size of all compressed contents in bytes."""
        return self._size

    @property
    def jobs(self) -> int:
        """Number of jobs with cached contents."""
        return len(self._jobs)

    def get(self, job: Hashable, uri: str) -> bytes | None:
        """Returns the file's content; None if it is not cached."""
        files = self._jobs.get(job)
        if files is None or uri not in files:
            return None
        self._jobs.move_to_end(job)
        return zlib.decompress(files[uri])

    def keep(self, job: Hashable, uri: str, content: bytes) -> None:
        """Caches a file that is final."""
        files = self._jobs.setdefault(job, {})
        self._jobs.move_to_end(job)
        self._size -= len(files.get(uri, b""))
        # The fastest level: records repeat their keys, so that any level compresses them well.
        files[uri] = zlib.compress(content, 1)
        self._size += len(files[uri])
        while self._size > self._limit:
            self.forget(next(iter(self._jobs)))

    def forget(self, job: Hashable) -> None:
        """Drops the contents of a job that is finished or deleted."""
        self._size -= sum(len(each) for each in self._jobs.pop(job, {}).values())
