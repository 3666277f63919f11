"""Whether the store denies one run folder or everything."""

import itertools
from collections.abc import Hashable
from urllib.parse import urlsplit


class Denials:
    """What the store has answered of late, by bucket and job: rights are granted on a bucket or on a folder of it.

    A run folder is denied alone where its listing was answered and a file was not, or where that of another job in the
    same bucket has been read since the first denial.
    """

    def __init__(self) -> None:
        self._looks = itertools.count()
        self._answered: dict[str, int] = {}
        self._denied: dict[Hashable, int] = {}

    def answered(self, job: Hashable, uri: str) -> None:
        """The job's run folder could be read."""
        self._denied.pop(job, None)
        self._answered[urlsplit(uri).netloc] = next(self._looks)

    def alone(self, job: Hashable, uri: str, *, listed: bool) -> bool:
        """Of a run folder that was denied now; ``listed``: its listing was answered."""
        first = self._denied.setdefault(job, next(self._looks))
        return listed or self._answered.get(urlsplit(uri).netloc, -1) > first

    def forget(self, job: Hashable) -> None:
        """It is not looked at any more."""
        self._denied.pop(job, None)
