"""Distinguishes a store that denies one run folder from one that denies everything."""

import itertools
from collections.abc import Hashable
from urllib.parse import urlsplit


class Denials:
    """The store's latest answers by bucket and job. Permissions are granted on a bucket or on a folder of it.

    A run folder alone is denied if it was listed but one of its files was denied, or if the run folder of another job
    in the same bucket has been read since the first denial.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self._answered: dict[str, int] = {}
        self._denied: dict[Hashable, int] = {}

    def answered(self, job: Hashable, uri: str) -> None:
        """Records that the job's run folder could be read."""
        self._denied.pop(job, None)
        self._answered[urlsplit(uri).netloc] = next(self._order)

    def alone(self, job: Hashable, uri: str, *, listed: bool) -> bool:
        """Records a denial and returns whether it concerns this run folder alone.

        ``listed`` is whether the folder's listing succeeded.
        """
        first = self._denied.setdefault(job, next(self._order))
        return listed or self._answered.get(urlsplit(uri).netloc, -1) > first

    def forget(self, job: Hashable) -> None:
        """Forgets the job, which is no longer observed."""
        self._denied.pop(job, None)
