"""What steps have taken in past trainings of each namespace, by the ledger."""

import logging
from asyncio import Semaphore, sleep
from collections import defaultdict
from datetime import date, timedelta

from finetune_contract import Stage
from finetune_operator.artifacts.port import StorageError
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.planning.estimate.past_runs import DAYS, PastTrainings, TrainingRecords
from finetune_operator.reconcile.ledger_reader import LedgerReader

log = logging.getLogger(__name__)

#: Namespaces whose trainings are read at the same time.
_AT_ONCE = 2
#: Seconds until a ledger is read again that could not be.
_PAUSE = 60.0


class TrainingTimes:
    """The past trainings of all namespaces that this process follows. It is used by one event loop."""

    def __init__(self) -> None:
        self._namespaces: defaultdict[str, TrainingRecords] = defaultdict(TrainingRecords)
        self._places = Semaphore(_AT_ONCE)

    def recorded(self, record: LedgerRecord) -> None:
        """Takes a record that is in the ledger, or waits to be written to it."""
        self._namespaces[record.namespace].add(record)

    def of(self, namespace: str) -> PastTrainings:
        """Returns the namespace's past trainings, as far as they are known."""
        return self._namespaces[namespace].trainings()

    async def read(self, namespace: str, reader: LedgerReader, today: date) -> None:
        """Reads the namespace's trainings of the last days, once. Nothing waits for them."""
        since = today - timedelta(days=DAYS)
        while True:
            try:
                async with self._places:
                    with calls_for_tenant(namespace):
                        async for record in reader.records(since, today, namespace, stage=Stage.TRAIN):
                            self.recorded(record)
            except StorageError as error:
                log.warning(
                    "the ledger cannot be read; past trainings of %s are unknown: %s", namespace, error
                )
                await sleep(_PAUSE)
            except Exception:
                # They are for information only: nothing else may end.
                log.exception(
                    "internal error while reading the ledger; past trainings of %s are unknown", namespace
                )
                return
            else:
                return
