"""A backend whose reads and writes are a function of the test."""

from collections.abc import Callable, Sequence

from finetune_operator.artifacts.calls import StoreCall
from finetune_operator.artifacts.port import StorageError

type Work = Callable[[StoreCall, str], bytes | None]


class Scripted:
    def __init__(self, work: Work, *, seconds: float = 60) -> None:
        self._work = work
        self.seconds = seconds

    def read(self, call: StoreCall, uri: str, limit: int) -> bytes | None:
        return self._work(call, uri)

    def read_part(self, call: StoreCall, uri: str, start: int, size: int) -> bytes | None:
        return self._work(call, uri)

    def list(self, call: StoreCall, uri: str, limit: int) -> Sequence[str]:
        raise NotImplementedError

    def write(self, call: StoreCall, uri: str, content: bytes) -> None:
        self._work(call, uri)

    def create(self, call: StoreCall, uri: str, content: bytes) -> bool:
        raise NotImplementedError

    def explained(self, uri: str, error: Exception) -> StorageError | None:
        return None
