"""What namespaces have used in a month: the records of the ledger, and what statuses report beyond them.

A record is taken when it is written, and the status that calls it recorded follows. In between the usage counts once:
what is known to be recorded of a job is the most that its status, or its records, have shown.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from finetune_operator.api.timestamps import after
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.ledger.job_usage import JobUsage, job_usage
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.ledger.sums import CostSum, item_of
from finetune_operator.objects import Object

#: Longest time since the last report of a running job: its deletion may be observed later than it happened.
_OLDEST_REPORT_SECONDS = 900.0


@dataclass(slots=True)
class _Records:
    """The records of one namespace and month."""

    names: set[str] = field(default_factory=set)
    """Those that are counted."""
    by_profile: defaultdict[str, CostSum] = field(default_factory=lambda: defaultdict(CostSum))
    by_job: defaultdict[str, Amounts] = field(default_factory=lambda: defaultdict(Amounts))
    """By UID."""
    deleted: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By profile: chip hours that jobs have used after the last report of their usage until they were deleted."""
    complete: bool = False
    """Whether all that the ledger contained at some time are among them."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job with usage that is not recorded."""

    usage: JobUsage
    recorded: Amounts
    """What is known to be recorded of it."""
    unrecorded: Amounts
    """What it has used and no record contains. Every reconcile in its namespace reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileUsage:
    """What a namespace has used under a profile."""

    namespace: str
    profile: str
    chip_hours: Decimal
    cost: Mapping[str, Decimal]
    """By currency."""


class MonthUsage:
    """The usage of one month after the other. Pure: callers pass what is written and read, and the time."""

    def __init__(self) -> None:
        self._records: defaultdict[tuple[str, Month], _Records] = defaultdict(_Records)
        self._jobs: defaultdict[str, dict[str, _Job]] = defaultdict(dict)
        """By namespace and UID."""

    def job(self, job: Object) -> None:
        """Takes the newest status of a job."""
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        found, known = job_usage(job), self._jobs[namespace].get(uid)
        if found is None:
            self._jobs[namespace].pop(uid, None)
            return
        self._know(uid, found, found.recorded.at_least(known.recorded if known else Amounts()))

    def gone(self, namespace: str, uid: str, now: datetime) -> None:
        """Forgets a deleted job. What its status reports of it has been given to :meth:`written`, if there is a ledger.

        What it has used since that report is in no record. It counts here until the month ends or another process
        takes over: jobs that are deleted before each report would use nothing.
        """
        job, month = self._jobs[namespace].pop(uid, None), Month.of(now)
        if job is not None:
            end = min(now, after(job.usage.as_of, _OLDEST_REPORT_SECONDS))
            self._records[namespace, month].deleted[job.usage.profile] += job.usage.since(month.begin, end)

    def written(self, record: LedgerRecord) -> None:
        """Takes a record that the ledger contains, or will contain."""
        if self._count(record) and (job := self._jobs[record.namespace].get(record.uid)):
            self._know(record.uid, job.usage, job.recorded + Amounts.of_record(record))

    def read(self, record: LedgerRecord) -> None:
        """Takes a record that the ledger contained before this process wrote to it."""
        self._count(record)

    def complete(self, namespace: str, month: Month) -> None:
        """Takes note that :meth:`read` was given all records of a namespace and month.

        All months but the previous one are forgotten; a record of that may be written again after an error.
        """
        records = self._records[namespace, month]
        records.complete = True
        for uid, job in self._jobs[namespace].items():
            self._know(uid, job.usage, job.recorded)
        for key in [key for key in self._records if key[0] == namespace and key[1] < month.previous]:
            del self._records[key]

    def budget(self, namespace: str, uid: str, profile: str, limit: float, now: datetime) -> MonthlyBudget:
        """Returns the budget of a namespace under a profile, whose limit of chip hours for each namespace and month is
        ``limit``, as it is for the job with that uid."""
        month = Month.of(now)
        records = self._records.get((namespace, month))
        begin, end, jobs = month.begin, min(now, month.end), dict(self._jobs[namespace])
        own = jobs.pop(uid, None)
        others, chips = records.deleted.get(profile, 0.0) if records else 0.0, 0
        for each in jobs.values():
            if each.usage.profile == profile:
                if each.usage.month == month:
                    others += float(each.unrecorded.chip_hours)
                others += each.usage.since(begin, end)
                chips += each.usage.chips_at(now)
        return MonthlyBudget(
            profile=profile,
            month=month,
            limit=limit,
            recorded=float(records.by_profile[profile].chip_hours) if records and records.complete else None,
            others=others,
            chips=chips,
            own=float(own.recorded.chip_hours) if own else 0.0,
        )

    def totals(
        self, month: Month, unobserved_until: Callable[[str], datetime | None] = lambda _: None
    ) -> Iterator[ProfileUsage]:
        """Yields what is known of the month, as recorded or reported, of namespaces whose records are complete.

        ``unobserved_until``: returns the end of the time in which a namespace could not be observed, if there was one:
        chips that ran at the last report count until then.
        """
        for (namespace, of), records in self._records.items():
            if of != month or not records.complete:
                continue
            hours = {name: each.chip_hours for name, each in records.by_profile.items()}
            costs = {name: dict(each.cost) for name, each in records.by_profile.items()}
            for each in self._jobs[namespace].values():
                # Its record will have the day of the report.
                job, left = each.usage, each.unrecorded if each.usage.month == month else Amounts()
                hours[job.profile] = hours.get(job.profile, Decimal(0)) + left.chip_hours
                if until := unobserved_until(namespace):
                    hours[job.profile] += Decimal(job.since(month.begin, min(until, month.end)))
                cost = costs.setdefault(job.profile, {})
                if left.cost:
                    cost[job.currency] = cost.get(job.currency, Decimal(0)) + left.cost
            for name, used in sorted(hours.items()):
                yield ProfileUsage(namespace=namespace, profile=name, chip_hours=used, cost=costs[name])

    def _know(self, uid: str, job: JobUsage, recorded: Amounts) -> None:
        """Takes note of what is recorded of a job: at least its records in the month of its last report, which are all
        that there are if it began in it."""
        records = self._records.get((job.namespace, job.month))
        if records and uid in records.by_job:
            recorded = recorded.at_least(records.by_job[uid])
        self._jobs[job.namespace][uid] = _Job(job, recorded, job.used - recorded)

    def _count(self, record: LedgerRecord) -> bool:
        """Adds a record to the sums of its month. Returns whether it was new.

        Most records are of stages on CPU and have no amounts. A tenant can have any number of them for nothing, so they
        take no memory.
        """
        records, amounts = self._records[record.namespace, Month.of(record.day)], Amounts.of_record(record)
        by_profile = records.by_profile[record.profile]
        if not amounts:
            return False
        name = record_uri("", record)
        if name in records.names:
            return False
        records.names.add(name)
        by_profile.add(item_of(record))
        records.by_job[record.uid] += amounts
        return True
