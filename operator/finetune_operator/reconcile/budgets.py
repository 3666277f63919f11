"""The budgets of namespaces: the limits of profiles, and what has been used in the present month.

The ledger is read once for each namespace and month: after the start of the operator, when the namespace's first job is
observed, and when a month begins. From then on the usage follows from the records that this process writes and from the
statuses that the watch delivers, so that no reconcile reads the ledger.
"""

import asyncio
import logging
from asyncio import sleep
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from datetime import date, datetime, timedelta
from functools import partial

from finetune_contract import Stage
from finetune_operator.artifacts.port import RecordStore, StorageError
from finetune_operator.artifacts.tenant_shares import calls_for_tenant
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.ledger.month_usage import MonthUsage, ProfileUsage
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.job import Job
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, StoredPlan
from finetune_operator.planning.estimate.past_runs import DAYS, PastTrainings
from finetune_operator.planning.merge import lookup
from finetune_operator.reconcile.at_work import AtWork
from finetune_operator.reconcile.ledger_reader import LedgerReader

log = logging.getLogger(__name__)

#: Seconds until the ledger is read again that could not be: the first pause, doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
#: Seconds after which the time is read again while a month lasts, in case the clock has been corrected.
_LOOK_SECONDS = 3600.0
#: Namespaces whose records are read at the same time.
_AT_ONCE = 8
#: Namespaces whose past trainings are read at the same time.
_TRAININGS_AT_ONCE = 2
#: Unwritten statuses that are remembered; those of the jobs that failed first are forgotten. A status has some 10 KB.
_MOST_UNWRITTEN = 256


class UnwrittenStatuses:
    """Statuses that the API server has not taken, so that what their jobs use counts although nothing shows it.

    A tenant can fill the metadata of a job until etcd has no room for its status.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Object] = {}
        """By UID: the job with the status that could not be written last."""

    def keep(self, job: Object) -> None:
        """Takes a job with a status that could not be written. One that reports an error has no newer usage."""
        uid = job["metadata"]["uid"]
        if _reported_at(job) > _reported_at(self._jobs.get(uid, {})):
            self._jobs[uid] = job
        if len(self._jobs) > _MOST_UNWRITTEN:
            del self._jobs[next(iter(self._jobs))]

    def newest(self, job: Object) -> Object:
        """Returns a job with the newer of its status and one that could not be written."""
        # Of two with the same time, one reports an error and repeats the stored status.
        return max(self._jobs.get(job["metadata"]["uid"], job), job, key=_reported_at)


def _reported_at(job: Object) -> str:
    """Timestamps of one format sort as the times do."""
    return str(((job.get("status") or {}).get("activeTime") or {}).get("asOf") or "")


class TrainingTimes:
    """What steps have taken in past trainings, by the ledger: of all namespaces that this process follows."""

    def __init__(self) -> None:
        self._namespaces: defaultdict[str, PastTrainings] = defaultdict(PastTrainings)
        self._places = asyncio.Semaphore(_TRAININGS_AT_ONCE)

    def recorded(self, record: LedgerRecord) -> None:
        """Takes a record that is in the ledger, or waits to be written to it."""
        self._namespaces[record.namespace].add(record)

    def of(self, namespace: str) -> PastTrainings:
        """Returns the namespace's past trainings, as far as they are known. Later ones are added to them."""
        return self._namespaces[namespace]

    async def read(self, namespace: str, reader: LedgerReader, today: date) -> None:
        """Reads the namespace's trainings of the last days, once. Nothing waits for them."""

        async def read() -> None:
            async with self._places:
                with calls_for_tenant(namespace):
                    since = today - timedelta(days=DAYS)
                    async for record in reader.records(since, today, namespace, stage=Stage.TRAIN):
                        self.recorded(record)

        await _until_read(read, f"the past trainings of {namespace}")


class Budgets:
    """The budgets of one operator. It is used by one event loop.

    Args:
        store: where the ledger is.
        uri: the ledger's folder; None if the operator keeps none. What is used is then unknown.
        utc_now: the wall clock.
        unobserved_until: returns the end of the time in which a namespace could not be observed; None: there was none.
        at_work: takes the jobs on chips for later leaders; None: none needs them.
    """

    def __init__(
        self,
        store: RecordStore,
        uri: str | None,
        *,
        utc_now: Callable[[], datetime],
        unobserved_until: Callable[[str], datetime | None] = lambda _: None,
        at_work: AtWork | None = None,
    ) -> None:
        self._at_work = at_work
        self._unobserved_until = unobserved_until
        self._reader = LedgerReader(store, uri) if uri is not None else None
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._utc_now = utc_now
        self._usage = MonthUsage()
        self._times = TrainingTimes()
        self._limits: dict[str, float | None] = {}
        """By existing profile; None: it sets none."""
        self._namespaces: dict[str, bool] = {}
        """Namespaces with jobs, and whether their records could be read when they were read last."""
        self.unwritten = UnwrittenStatuses()
        self._found: asyncio.Queue[str] = asyncio.Queue()
        """Namespaces that are not followed yet."""

    # What the watches deliver, and what the ledger writes.

    def profile(self, name: str, profile: Object | None) -> bool:
        """Takes a profile; None: it is deleted. Returns whether its limit has changed."""
        before = self._limits.pop(name, None)
        if profile is not None:
            self._limits[name] = _limit(profile["spec"])
        return before != self._limits.get(name)

    def job(self, job: Object) -> None:
        """Takes the newest version of a job."""
        namespace = job["metadata"]["namespace"]
        if namespace not in self._namespaces:
            self._namespaces[namespace] = True
            self._found.put_nowait(namespace)
        job = self.unwritten.newest(job)
        self._usage.job(job)
        if self._at_work is not None:
            self._at_work.job(job)

    def gone(self, namespace: str, uid: str) -> None:
        """Takes note that a job is deleted."""
        self._usage.gone(namespace, uid, self._utc_now())
        if self._at_work is not None:
            self._at_work.gone(uid)

    def recorded(self, record: LedgerRecord) -> None:
        """Takes a record that is in the ledger, or waits to be written to it."""
        self._usage.written(record)
        self._times.recorded(record)

    # What decisions and metrics read.

    def of(self, job: Job, stored: StoredPlan | Refused | None) -> MonthlyBudget | None:
        """Returns the budget of a job's namespace under its profile; None if the profile sets none.

        The limit is that of the existing profile. Of a deleted one, the limit at the job's admission applies.
        """
        admitted: Object = {}
        resolved = job.status.resolved
        name = resolved.profile.name if resolved and resolved.profile else None
        if isinstance(stored, StoredPlan):
            name, admitted = stored.profile_name, stored.profile
        limit = self._limits[name] if name in self._limits else _limit(admitted)
        if name is None or limit is None:
            return None
        return self._usage.budget(job.namespace, job.uid, name, limit, self._utc_now())

    def past_trainings(self, namespace: str) -> PastTrainings:
        """Returns the namespace's past trainings, as far as they are known."""
        return self._times.of(namespace)

    def totals(self) -> Iterable[ProfileUsage]:
        """Returns what each namespace has used in the present month under each profile, as far as it is known."""
        return self._usage.totals(Month.of(self._utc_now()), self._unobserved_until)

    def limit(self, profile: str) -> float | None:
        """Returns the limit that an existing profile sets for each of its namespaces; None if it sets none."""
        return self._limits.get(profile)

    @property
    def unreadable(self) -> int:
        """Number of namespaces whose records could not be read."""
        return sum(not readable for readable in self._namespaces.values())

    # Reading.

    async def run(self, known: Callable[[str], None]) -> None:
        """Reads the records of each namespace, and again those of each new month, until cancelled.

        ``known`` is called with a namespace when its usage in the present month has become known.
        """
        if self._reader is None:
            await asyncio.Event().wait()
            return
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._follow(await self._found.get(), self._reader, known, group))

    async def _follow(
        self, namespace: str, reader: LedgerReader, known: Callable[[str], None], group: asyncio.TaskGroup
    ) -> None:
        """Reads the records of one namespace, and again those of each new month."""
        past: asyncio.Task[None] | None = None
        while True:
            month = await _until_read(
                partial(self._read, namespace, reader),
                f"the usage of {namespace}",
                failed=lambda: self._namespaces.update({namespace: False}),
            )
            self._namespaces[namespace] = True
            known(namespace)
            if past is None:
                # After the month's records, on which stages may wait.
                past = group.create_task(self._times.read(namespace, reader, self._utc_now().date()))
            while month == Month.of(self._utc_now()):
                left = (month.end - self._utc_now()).total_seconds()
                await sleep(min(_LOOK_SECONDS, max(1.0, left)))

    async def _read(self, namespace: str, reader: LedgerReader) -> Month:
        """Reads all records of one namespace and the present month, which it returns. Raises StorageError."""
        async with self._places:
            today = self._utc_now().date()
            month = Month.of(today)
            with calls_for_tenant(namespace):
                async for record in reader.records(month.first, today, namespace):
                    self._usage.read(record)
        self._usage.complete(namespace, month)
        return month


async def _until_read[T](
    read: Callable[[], Awaitable[T]], what: str, *, failed: Callable[[], None] = lambda: None
) -> T:
    """Returns what ``read`` returns when it succeeds. Until then ``what`` is unknown, which delays stages that would
    start, and ends nothing."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await read()
        except StorageError as error:
            log.warning("the ledger cannot be read; %s is unknown: %s", what, error)
        except Exception:
            log.exception("internal error while reading the ledger; %s is unknown", what)
        failed()
        await sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _limit(spec: Object) -> float | None:
    """Returns the limit of a profile's spec, which may have been stored under another schema; None if it sets none."""
    found = lookup(spec, "constraints.chipHoursPerMonth")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
