"""Cache of run folder files that are final, so that observing a long job costs few requests."""

import zlib
from collections import OrderedDict
from collections.abc import Hashable

#: What a cached file takes beside its URI and its content: the headers of both, and its place in a dictionary.
_FILE_BYTES = 150


def _size_of(uri: str, content: bytes) -> int:
    return len(uri) + len(content) + _FILE_BYTES


class FileCache:
    """Compressed file contents by job and URI.

    They are kept while the job is live. Beyond ``limit_bytes`` in memory, the least recently used jobs are evicted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._jobs: OrderedDict[Hashable, dict[str, bytes]] = OrderedDict()
        self.size = 0
        """Estimated size of all files in memory, in bytes."""

    def get(self, job: Hashable, uri: str) -> bytes | None:
        files = self._jobs.get(job)
        if files is None or uri not in files:
            return None
        self._jobs.move_to_end(job)
        return zlib.decompress(files[uri])

    def keep(self, job: Hashable, uri: str, content: bytes) -> None:
        files = self._jobs.setdefault(job, {})
        self._jobs.move_to_end(job)
        if uri in files:
            self.size -= _size_of(uri, files[uri])
        # The fastest level: records repeat their keys, so that any level compresses them well.
        files[uri] = zlib.compress(content, 1)
        self.size += _size_of(uri, files[uri])
        while self.size > self._limit:
            self.forget(next(iter(self._jobs)))

    def forget(self, job: Hashable) -> None:
        """Drops the contents of a job that is finished or deleted."""
        self.size -= sum(_size_of(*each) for each in self._jobs.pop(job, {}).items())
