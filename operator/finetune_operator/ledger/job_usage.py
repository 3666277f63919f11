"""What a job has used since its last record in the ledger, as its status reports it."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from finetune_contract import Stage
from finetune_operator.api.conditions import is_true
from finetune_operator.api.timestamps import after, parse, stamp, whole_second
from finetune_operator.ledger.amounts import Amounts, amount, text_of
from finetune_operator.ledger.month import Month
from finetune_operator.objects import Object

_HOUR = 3600
#: Longest time in which pods save and end after their job is deleted.
_ENDING_SECONDS = 300.0
_TPU_STAGES = frozenset(stage.value for stage in Stage if stage.on_tpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """The usage of one job."""

    namespace: str
    profile: str
    currency: str
    used: Amounts
    """``status.cost``."""
    recorded: Amounts
    """``status.ledger``: the part of it that the ledger contains."""
    as_of: datetime
    """Time of this report."""
    month: Month
    """Month of this report."""
    chips: int
    """Chips on which its processes ran then; 0 if none ran."""
    until: datetime | None
    """When the last of them have ended, since the job is being deleted; None if it is not."""

    def since(self, begin: datetime, end: datetime) -> float:
        """Returns the chip hours since this report, from ``begin`` to ``end``, if the same chips have been used."""
        if not self.chips:
            return 0.0
        last = end if self.until is None else min(end, self.until)
        return self.chips * max(0.0, (last - max(self.as_of, begin)).total_seconds()) / _HOUR

    def chips_at(self, now: datetime) -> int:
        """Returns the chips that are still used now."""
        return self.chips if self.until is None or now < self.until else 0


def job_usage(job: Object) -> JobUsage | None:
    """Returns the usage of a job; None if it has used nothing, or all of it is recorded and it uses no chips now."""
    status = job.get("status") or {}
    reported = (status.get("activeTime") or {}).get("asOf")
    resolved = status.get("resolved") or {}
    profile = (resolved.get("profile") or {}).get("name")
    if not reported or not profile:
        return None
    ledger = status.get("ledger") or {}
    if is_true(job, "Finished") and not ledger.get("pending"):
        return None
    cost = status.get("cost") or {}
    used, recorded = Amounts.of_document(cost), Amounts.of_document(ledger)
    planned = (resolved.get("resources") or {}).get("chips")
    runs = is_true(job, "Running") and status.get("stage") in _TPU_STAGES
    chips = int(status["activeTime"].get("chips") or planned or 0) if runs else 0
    if not chips and not used - recorded:
        return None
    metadata, as_of = job["metadata"], whole_second(parse(reported))
    deleted = metadata.get("deletionTimestamp")
    return JobUsage(
        namespace=metadata["namespace"],
        profile=profile,
        currency=str(cost.get("currency") or ""),
        used=used,
        recorded=recorded,
        as_of=as_of,
        month=Month.of(as_of),
        chips=chips,
        # A finalizer may keep the job, and its last status, for any time after its JobSets are deleted.
        until=after(parse(deleted), _ENDING_SECONDS) if deleted else None,
    )


def counted_on(job: Object, until: datetime | None) -> Object:
    """Returns a job whose status reports that its chips have been used until then; the job itself if it used none.

    ``until``: end of the time in which its namespace could not be observed; None: there was none.
    """
    found = job_usage(job) if until else None
    if until is None or found is None or not (hours := found.since(found.as_of, until)):
        return job
    status = job["status"]
    cost, used = status.get("cost") or {}, found.used
    chip_hours = used.chip_hours + Decimal(hours)
    more = {"chipHours": text_of(amount(f"{chip_hours:f}"))}
    if used.cost and used.chip_hours:
        # At the price of what was used before, as the status has no other.
        more["amount"] = text_of(amount(f"{used.cost / used.chip_hours * chip_hours:f}"))
    active = status["activeTime"]
    seconds = int(active.get("seconds") or 0) + int((until - found.as_of).total_seconds())
    active = {**active, "seconds": seconds, "asOf": stamp(until)}
    return {**job, "status": {**status, "cost": {**cost, **more}, "activeTime": active}}
