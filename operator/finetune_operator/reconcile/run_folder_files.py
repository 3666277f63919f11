"""Reads files for one observation of a run folder, within bounds, and caches final ones for later observations."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

from pydantic import BaseModel, ValidationError

from finetune_contract.versions import CONTRACT_VERSION, major_of
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import RECORD_LIMIT, ObjectStore, ObjectTooLarge, StoredBytes

#: Maximum number of bytes that one observation reads.
_READ_LIMIT = 16 * 2**20
#: Maximum number of bytes of all records that one observation holds, as JSON and abbreviated where possible: enough for
#: more than a thousand attempts. In memory they take up to seven times as much (tests/unit/reconcile/test_memory.py).
HELD_LIMIT = 5 * 2**18


class UnreadableError(Exception):
    """A record, or the run folder as a whole, cannot be read."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MalformedRecordError(UnreadableError):
    """A file is not a valid record of the kind that its name indicates, or too large for one."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.RECORD_MALFORMED, message)


class NewerRecordError(UnreadableError):
    """A file is a record of a newer major version of the contract."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.CONTRACT_NEWER, message)


def parsed[T: BaseModel](uri: str, content: bytes, model: type[T]) -> T:
    """Parses ``content`` as a record of type ``model``.

    Raises MalformedRecordError or NewerRecordError, with a message that names ``uri`` and does not end in a period.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        major = major_of(content)
        if major is not None and major > CONTRACT_VERSION.major:
            raise NewerRecordError(
                f"{uri} was written under version {major} of the contract, and this operator supports up to "
                f"{CONTRACT_VERSION}. Upgrade the operator"
            ) from error
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise MalformedRecordError(
            f"{uri} is not a valid {model.__name__}: {where[:128]}: {first['msg'][:256]}"
        ) from error


def by_store[T: BaseModel](record: T, content: bytes) -> T:
    """Returns a record that says when it was written with the store's time instead of the node's, whose clock may be
    wrong."""
    stored = content.stored if isinstance(content, StoredBytes) else None
    if stored is None or "updated" not in type(record).model_fields:
        return record
    return record.model_copy(update={"updated": stored})


def _too_large(uri: str, what: str, limit: int) -> UnreadableError:
    text = f"{uri}: the records of this run folder {what} more than {limit:,} bytes in total"
    return UnreadableError(Reason.RUN_FOLDER_TOO_LARGE, text)


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


class RunFolderFiles:
    """Reads the files of one run folder, which untrusted users may have written.

    The bytes read and the bytes held are bounded over all files together. ``job``: key of the job in the cache.
    """

    def __init__(self, store: ObjectStore, remembered: FileCache, job: Hashable) -> None:
        self._store = store
        self._remembered = remembered
        self._job = job
        self._unread = _READ_LIMIT
        self._room = HELD_LIMIT

    @property
    def held_bytes(self) -> int:
        """Size of all records that were read, as JSON."""
        return HELD_LIMIT - self._room

    async def read[T: BaseModel](
        self,
        uri: str,
        model: type[T],
        *,
        limit: int = RECORD_LIMIT,
        final: Callable[[T], bool] | None = None,
        settled_if_bad: bool = False,
        kept: Callable[[T], T] | None = None,
    ) -> T | None:
        """Returns the record in a file; None if the file does not exist (yet).

        Raises MalformedRecordError, NewerRecordError, UnreadableError and StorageError.

        Args:
            limit: maximum size of the file in bytes.
            final: returns whether the file cannot change any more, given its record; None: it can.
            settled_if_bad: whether a file with a malformed record cannot change any more either.
            kept: returns the part of the record that is needed; None: everything is.
        """
        known = None if final is None else self._remembered.get(self._job, uri)
        try:
            content = known if known is not None else await self._fetch(uri, limit)
            if content is None:
                return None
            found = by_store(parsed(uri, content, model), content)
        except (MalformedRecordError, ObjectTooLarge) as error:
            if settled_if_bad and known is None:
                # Cached as empty, since its content is of no use.
                self._remembered.keep(self._job, uri, b"")
            raise MalformedRecordError(str(error)) from error
        record = kept(found) if kept else found
        if record is not found:
            content = record.model_dump_json(exclude_defaults=True).encode()
        self._hold(uri, len(content))
        if known is None and final is not None and final(record):
            self._remembered.keep(self._job, uri, content)
        return record

    def _hold(self, uri: str, size: int) -> None:
        """Accounts for a record, cached or not, which is held until the decision is made."""
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
