"""The files that one look at a run folder reads: how much of them, and what is remembered for the next one."""

from collections.abc import Callable, Hashable

from pydantic import BaseModel

from finetune_operator.api import Reason
from finetune_operator.artifacts.port import RECORD_LIMIT, ObjectStore, ObjectTooLarge
from finetune_operator.reconcile.file_cache import FileCache
from finetune_operator.reconcile.records import MalformedRecordError, parsed

#: Bytes that one look reads.
_READ_LIMIT = 16 * 2**20
#: Bytes of all records that one look holds, as JSON and in brief where that is enough: those of more than a thousand
#: attempts. In memory they take up to seven times as much (tests/unit/reconcile/test_memory.py).
HELD_LIMIT = 5 * 2**18


class UnreadableError(Exception):
    """Nothing can be said of the run folder."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def always(_record: object) -> bool:
    return True


def never(_record: object) -> bool:
    return False


def whole[T](record: T) -> T:
    return record


def _too_large(uri: str, what: str, limit: int) -> UnreadableError:
    text = f"{uri}: the records of this run folder {what} more than {limit:,} bytes together"
    return UnreadableError(Reason.RUN_FOLDER_TOO_LARGE, text)


class RunFolderFiles:
    """Others may have written them: what is read and what is held is bounded over all files together.

    Args:
        store: where they lie.
        remembered: what cannot change any more.
        job: of what is remembered.
    """

    def __init__(self, store: ObjectStore, remembered: FileCache, job: Hashable) -> None:
        self._store = store
        self._remembered = remembered
        self._job = job
        self._unread = _READ_LIMIT
        self._room = HELD_LIMIT

    async def read[T: BaseModel](
        self,
        uri: str,
        model: type[T],
        *,
        limit: int = RECORD_LIMIT,
        final: Callable[[T], bool] = never,
        settled_if_bad: bool = False,
        kept: Callable[[T], T] = whole,
    ) -> T | None:
        """None where it is not there (yet).

        Raises MalformedError, NewerError and StorageError.

        Args:
            uri: the file.
            model: what it should hold.
            limit: bytes.
            final: whether a file that says this cannot change any more.
            settled_if_bad: whether one that is no such record cannot either.
            kept: what is needed of it.
        """
        known = None if final is never else self._remembered.get(self._job, uri)
        try:
            content = known if known is not None else await self._fetch(uri, limit)
            if content is None:
                return None
            found = parsed(uri, content, model)
        except (MalformedRecordError, ObjectTooLarge):
            if settled_if_bad and known is None:
                # Without what it holds, which is of no use to anyone.
                self._remembered.keep(self._job, uri, b"")
            raise
        record = kept(found)
        if record is not found:
            content = record.model_dump_json(exclude_defaults=True).encode()
        self._hold(uri, len(content))
        if known is None and final(record):
            self._remembered.keep(self._job, uri, content)
        return record

    def _hold(self, uri: str, size: int) -> None:
        """Remembered or not: it takes its room as long as the look is judged."""
        self._room -= size
        if self._room < 0:
            raise _too_large(uri, "take", HELD_LIMIT)

    async def _fetch(self, uri: str, limit: int) -> bytes | None:
        try:
            content = await self._store.read(uri, limit=limit)
        except ObjectTooLarge:
            self._unread -= limit
            raise
        self._unread -= len(content or b"")
        if self._unread < 0:
            raise _too_large(uri, "have", _READ_LIMIT)
        return content
