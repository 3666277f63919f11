"""A backend whose reads and writes are a function of the test."""

from collections.abc import Callable, Sequence

from finetune_storage.calls import StoreCall, current

type Work = Callable[[StoreCall, str], bytes | None]


class Scripted:
    def __init__(self, work: Work) -> None:
        self._work = work

    def read(self, uri: str, limit: int | None = None) -> bytes | None:
        return self._work(current(), uri)

    def read_part(self, uri: str, start: int, size: int) -> bytes | None:
        return self._work(current(), uri)

    def names(self, uri: str, *, limit: int, longest: int) -> Sequence[str]:
        raise NotImplementedError

    def write(self, uri: str, content: bytes) -> None:
        self._work(current(), uri)

    def create(self, uri: str, content: bytes) -> bool:
        raise NotImplementedError
