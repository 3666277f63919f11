"""Writes the operator's ledger: the records that decisions name, and what is left of deleted jobs.

A record is written after everything that a decision does in the cluster, and the wait for it is short, so that a ledger
that does not respond delays no decision about TPUs. What could not be written stays due: the status of the job counts
it, and the next decision names it again. A deleted job has no next decision; its last record is kept here until it is
written.
"""

import asyncio
import logging
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime

from finetune_operator.artifacts.port import RecordStore, StorageError, StorageUnavailable
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.record import RECORD_BYTES, LedgerRecord
from finetune_operator.lifecycle.accounting.records import closing_records, remainder
from finetune_operator.lifecycle.job import Job
from finetune_operator.objects import Object

log = logging.getLogger(__name__)

#: What to do if the operator lacks a role.
LEDGER_ADVICE = "Give the operator's account roles/storage.objectCreator and objectViewer on the ledger."
#: Seconds for one record. A reconcile waits for as long.
_RECORD_SECONDS = 5.0
#: Seconds until the record of a deleted job is written again: the first pause, doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
#: Records of deleted jobs that are written at the same time.
_AT_ONCE = 8
#: Seconds at shutdown for the records of deleted jobs.
_LAST_SECONDS = 5.0
#: Deleted jobs that are remembered.
_REMEMBERED = 10_000


class Ledger:
    """The ledger of one operator.

    Args:
        store: where it is. It must not be that of the run folders, whose calls tenants can delay.
        uri: the ledger's folder.
        utc_now: the wall clock.
        written: called after each attempt to write a record, with ``ok`` or ``error``.
        recorded: called with each record that the ledger contains, or that is kept here until it does.
    """

    def __init__(
        self,
        store: RecordStore,
        uri: str,
        *,
        utc_now: Callable[[], datetime],
        written: Callable[[str], None],
        recorded: Callable[[LedgerRecord], None] = lambda _: None,
    ) -> None:
        self.uri = uri
        self._recorded = recorded
        self._store = store
        self._utc_now = utc_now
        self._written = written
        self._behind: set[str] = set()
        """UIDs of jobs with records that could not be written."""
        self._closing: dict[str, LedgerRecord] = {}
        """Records of deleted jobs by URI, until they are written."""
        self._closed: OrderedDict[str, None] = OrderedDict()
        """UIDs of the last jobs whose deletion was observed."""
        self._work = asyncio.Event()

    @property
    def pending(self) -> int:
        """Number of jobs, deleted ones included, with records that could not be written."""
        return len(self._behind) + len(self._closing)

    def settled(self, uid: str) -> None:
        """Takes note that the ledger lacks no record of the job."""
        self._behind.discard(uid)

    async def write(self, records: Sequence[LedgerRecord]) -> Sequence[LedgerRecord]:
        """Writes the records of one job in order, and returns them as the ledger contains them.

        A record that exists is not replaced. Fewer are returned if one could not be written, or exists with other
        content: what it lacks is due next.
        """
        found: list[LedgerRecord] = []
        for record in records:
            try:
                found.append(await self._put(record))
            except StorageError as error:
                log.warning("the ledger cannot be written; the attempt stays due: %s", error)
                self._behind.add(record.uid)
                return found
            if found[-1] != record:
                return found
        for record in records:
            self.settled(record.uid)
        return found

    def close(self, job: Object) -> None:
        """Takes a job that was deleted, as it was last observed; :meth:`run` writes what is left to record of it."""
        uid = job["metadata"]["uid"]
        self._closed[uid] = None
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        self.settled(uid)
        for record in closing_records(Job.parse(job), self._utc_now()):
            self._closing.setdefault(record_uri(self.uri, record), record)
            self._recorded(record)
            self._work.set()

    def has_closed(self, uid: str) -> bool:
        """Whether the deletion of the job was observed."""
        return uid in self._closed

    async def run(self) -> None:
        """Writes the records of deleted jobs until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            await self._work.wait()
            self._work.clear()
            if await self._write_closing():
                pause = _FIRST_PAUSE
                continue
            await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._work.set()

    async def finish(self) -> None:
        """Writes the records of deleted jobs a last time. Those that cannot be written are in the log."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._write_closing()
        except TimeoutError:
            pass
        for record in self._closing.values():
            log.error(
                "a deleted job is missing in the ledger, which could not be written: store this as %s: %s",
                record_uri(self.uri, record),
                record.to_json().decode(),
            )
        self._closing.clear()

    async def _write_closing(self) -> bool:
        """Returns whether every record of a deleted job is written."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def write(uri: str, record: LedgerRecord) -> bool:
            async with places:
                try:
                    found = await self._put(record)
                    if rest := remainder(record, found):
                        await self._put(rest)
                except StorageError as error:
                    log.warning("the ledger cannot be written; a deleted job stays due: %s", error)
                    return False
                self._closing.pop(uri, None)
                return True

        return all(await asyncio.gather(*(write(*each) for each in list(self._closing.items()))))

    async def _put(self, record: LedgerRecord) -> LedgerRecord:
        """Writes one record and returns the one that the ledger contains now. Raises StorageError."""
        try:
            async with asyncio.timeout(_RECORD_SECONDS):
                stored = await self._stored(record_uri(self.uri, record), record)
        except TimeoutError as error:
            self._written("error")
            raise StorageUnavailable(self.uri, f"no response within {_RECORD_SECONDS:.0f} s") from error
        except StorageError:
            self._written("error")
            raise
        self._written("ok")
        self._recorded(stored)
        return stored

    async def _stored(self, uri: str, record: LedgerRecord) -> LedgerRecord:
        if await self._store.create(uri, record.to_json()):
            return record
        # Written before a crash, or by the deletion's other observer.
        content = await self._store.read(uri, limit=RECORD_BYTES)
        found = LedgerRecord.parse(content) if content is not None else None
        if found is None or found.uid != record.uid:
            raise StorageError(uri, "is not a record of the ledger: move the object away")
        return found
