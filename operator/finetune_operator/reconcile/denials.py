"""Whether the store denies one run folder or everything."""

import itertools
from urllib.parse import urlsplit


class Denials:
    """What the store has answered of late, by bucket and run folder: rights are granted for one or the other.

    A folder is denied alone where its listing was answered and a file was not, or where another folder of the bucket
    has been read since the first denial.
    """

    def __init__(self) -> None:
        self._looks = itertools.count()
        self._answered: dict[str, int] = {}
        self._denied: dict[str, int] = {}

    def answered(self, uri: str) -> None:
        """That run folder could be read."""
        self._denied.pop(uri, None)
        self._answered[urlsplit(uri).netloc] = next(self._looks)

    def alone(self, uri: str, *, listed: bool) -> bool:
        """Of a run folder that was denied now; ``listed``: its listing was answered."""
        first = self._denied.setdefault(uri, next(self._looks))
        return listed or self._answered.get(urlsplit(uri).netloc, -1) > first

    def forget(self, uri: str) -> None:
        """It is not looked at any more."""
        self._denied.pop(uri, None)
