"""Bounded reads of the records in a run folder.

Tenants write run folders: every read has a limit, and a record that is unreadable is noted instead of raised.
"""

import re
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from finetune_contract import Stage
from finetune_operator.artifacts.port import (
    RECORD_LIMIT,
    ListingTooLarge,
    ObjectStore,
    ObjectTooLarge,
    StorageError,
)
from finetune_operator.cli.run_folder import explanation
from finetune_operator.comparison import ParsedLines, parsed_lines

#: Bytes of a file with one record per line, and its lines. 100,000 evaluation rows have 30 MB.
LINES_LIMIT, MOST_LINES = 64 * 2**20, 500_000
#: A record of an attempt: its folder's name, of stage, number and restart, and what it is.
_ATTEMPT = re.compile(
    f"({'|'.join(stage.short for stage in Stage)})-([0-9]{{1,3}})(?:\\.([0-9]{{1,6}}))?/(request|result|failure)\\.json"
)

type AttemptPlace = tuple[Stage, int, int]
"""Stage, number of the JobSet, and restart."""


def files_by_attempt(names: Sequence[str]) -> dict[AttemptPlace, set[str]]:
    """Returns which of ``request``, ``result`` and ``failure`` each attempt has, by the names below ``attempts/``.

    Names of anything else are ignored.
    """
    found: dict[AttemptPlace, set[str]] = {}
    for match in filter(None, map(_ATTEMPT.fullmatch, names)):
        short, number, restart, kind = match.groups()
        found.setdefault((Stage.from_short(short), int(number), int(restart or 0)), set()).add(kind)
    return found


class RecordReader:
    """Reads records, and collects in ``unreadable`` a sentence for each record, or part of one, that is unreadable.

    Methods raise CliError if the store does not respond as expected.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.unreadable: list[str] = []

    async def read(self, uri: str, limit: int) -> bytes | None:
        """Returns a file; None if it does not exist, or is larger than ``limit`` bytes."""
        try:
            return await self._store.read(uri, limit=limit)
        except ObjectTooLarge as error:
            self.unreadable.append(f"{uri} is not read: {error.message}.")
            return None
        except StorageError as error:
            raise explanation(error) from error

    async def record[T: BaseModel](self, uri: str, model: type[T], limit: int = RECORD_LIMIT) -> T | None:
        """Returns a record; None if there is none, or no valid one."""
        content = await self.read(uri, limit)
        if content is None:
            return None
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            self.unreadable.append(f"{uri} is not a valid record: {where[:128]}: {first['msg'][:128]}.")
            return None

    async def lines[T: BaseModel](self, uri: str, model: type[T], line_bytes: int) -> ParsedLines[T]:
        """Returns the records of a file with one per line of at most ``line_bytes``; none if it is unreadable."""
        nothing: ParsedLines[T] = ParsedLines(records=(), rejected=0, first_fault="")
        content = await self.read(uri, LINES_LIMIT)
        if content is None:
            return nothing
        try:
            found = parsed_lines(content, model, most_lines=MOST_LINES, line_bytes=line_bytes)
        except ValueError as error:
            self.unreadable.append(f"{uri} is not read: it has {error}.")
            return nothing
        self.note_rejected(uri, found.rejected, found.first_fault)
        return found

    def note_rejected(self, uri: str, rejected: int, first_fault: str) -> None:
        """Notes the number of lines that are left out, if there are any."""
        if rejected:
            self.unreadable.append(
                f"{uri}: lines that are not valid records are left out: {rejected:,} ({first_fault})."
            )

    async def names(self, folder: str) -> Sequence[str]:
        """Returns the names of the files below a folder, relative to it; none if there are too many."""
        try:
            return await self._store.list(folder)
        except ListingTooLarge as error:
            self.unreadable.append(f"{error.uri} is not read: {error.message}.")
            return ()
        except StorageError as error:
            raise explanation(error) from error
