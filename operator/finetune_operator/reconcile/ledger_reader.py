"""Reads the records of a ledger: the operator with its own credentials, ``finetune costs`` with the caller's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta

from finetune_contract import Stage
from finetune_operator.artifacts.port import ObjectTooLarge, RecordStore
from finetune_operator.ledger.layout import day_folder
from finetune_operator.ledger.record import RECORD_BYTES, LedgerRecord

#: Objects of one day. The operator writes one for each attempt.
_MOST_OF_A_DAY = 1_000_000
#: Days that are listed, and records that are read, at the same time.
_DAYS, _RECORDS = 8, 32


class LedgerReader:
    """Reads the records of the ledger in a folder of a store, by day."""

    def __init__(self, store: RecordStore, uri: str) -> None:
        self._store = store
        self._uri = uri
        self.unreadable = 0
        """Number of objects that are no records of a version that this release reads."""

    async def records(
        self, since: date, until: date, namespace: str | None = None, *, stage: Stage | None = None
    ) -> AsyncIterator[LedgerRecord]:
        """Yields the records of the days from ``since`` to ``until``, of all namespaces and stages or of one. Raises
        StorageError.

        Of an attempt that was recorded on several days, because the status of its job was lost, the last end counts.
        """
        ended: set[tuple[str, str]] = set()
        # The newest day first.
        days = [until - timedelta(days=number) for number in range((until - since).days + 1)]
        for first in range(0, len(days), _DAYS):
            chunk = days[first : first + _DAYS]
            folders = [day_folder(self._uri, day, namespace) for day in chunk]
            listed = await asyncio.gather(
                *(self._store.list(folder, limit=_MOST_OF_A_DAY) for folder in folders)
            )
            for folder, names in zip(folders, listed, strict=True):
                async for record in self._of_day(folder, names, stage):
                    if record.ends_attempt:
                        key = record.uid, f"{record.stage}-{record.number}.{record.restart}"
                        if key in ended:
                            continue
                        ended.add(key)
                    yield record

    async def _of_day(
        self, folder: str, names: Sequence[str], stage: Stage | None
    ) -> AsyncIterator[LedgerRecord]:
        begin = f"{stage.short}-" if stage else ""
        files = (name for name in names if name.endswith(".json"))
        records = [name for name in files if name.rpartition("/")[2].startswith(begin)]
        for first in range(0, len(records), _RECORDS):
            some = records[first : first + _RECORDS]
            uris = [f"{folder}/{name}" for name in some]
            for record in await asyncio.gather(*map(self._record, uris)):
                if record is not None:
                    yield record
                else:
                    self.unreadable += 1

    async def _record(self, uri: str) -> LedgerRecord | None:
        try:
            content = await self._store.read(uri, limit=RECORD_BYTES)
        except ObjectTooLarge:
            return None
        return LedgerRecord.parse(content) if content is not None else None
