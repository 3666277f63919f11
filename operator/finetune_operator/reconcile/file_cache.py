"""Files of run folders that cannot change any more, so that a look at a long job costs few requests."""

import zlib
from collections import OrderedDict
from collections.abc import Hashable


class FileCache:
    """Contents by job and address, compressed.

    They are kept while the job is live; beyond ``limit_bytes`` the jobs that were looked at least recently lose theirs.

    Args:
        limit_bytes: of all contents together, as they are kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._jobs: OrderedDict[Hashable, dict[str, bytes]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._size

    @property
    def jobs(self) -> int:
        """Jobs of which something is kept."""
        return len(self._jobs)

    def get(self, job: Hashable, uri: str) -> bytes | None:
        """None: not remembered."""
        files = self._jobs.get(job)
        if files is None or uri not in files:
            return None
        self._jobs.move_to_end(job)
        return zlib.decompress(files[uri])

    def keep(self, job: Hashable, uri: str, content: bytes) -> None:
        """Remember a file that cannot change any more."""
        files = self._jobs.setdefault(job, {})
        self._jobs.move_to_end(job)
        self._size -= len(files.get(uri, b""))
        # The level that is quickest: records repeat their keys, so any level finds most of it.
        files[uri] = zlib.compress(content, 1)
        self._size += len(files[uri])
        while self._size > self._limit:
            self.forget(next(iter(self._jobs)))

    def forget(self, job: Hashable) -> None:
        """The job has ended or is gone."""
        self._size -= sum(len(each) for each in self._jobs.pop(job, {}).values())
