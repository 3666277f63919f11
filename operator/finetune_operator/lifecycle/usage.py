"""How long attempts have run, on how many chips and at what price.

Counted from what can be seen of each run: its pods, the trainer's record, and the records that the operator leaves
where neither will last. What the last status said is a floor, and what has run since then is added to it: so nothing
falls where pods or records go, and nothing that runs afterwards is lost in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from finetune_contract import Failure, Outcome, Stage, StageResult
from finetune_contract.base import MOST_PRICE, MOST_SECONDS
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.times import parse, stamp
from finetune_operator.planning import Plan
from finetune_operator.planning.topology import FlavorTerms
from finetune_operator.rendering import flavor_of

type Object = Mapping[str, Any]
type Interval = tuple[datetime, datetime]
type Part = tuple[float, "UsageRate"]
"""Seconds at a rate."""
type JobSetKey = tuple[Stage, int]
"""Stage and number of a JobSet."""

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """While processes ran; waiting is not counted."""

    seconds: float = 0.0
    """Of all stages."""
    chip_hours: float = 0.0
    cost: float | None = None
    """Each hour at the price of the flavor that it ran on; hours without a price count nothing. None where the profile
    names no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRate:
    """Of one attempt."""

    chips: int
    price: float | None
    """Of a chip hour."""
    known: bool = True
    """False: nothing tells any more, and it is taken to be that of the slice that the job has now."""


def usage(plan: Plan, attempts: Iterable[Attempt], now: datetime, job: Object) -> Usage:
    """Over all attempts until the second that ``now`` is in began, which is what :func:`active_time` writes; never less
    than the status of the job says, and of any time no more than has passed."""
    now = now.replace(microsecond=0)
    every, previous = tuple(attempts), job.get("status") or {}
    noted = _noted_rates(every)
    rated = [(attempt, rate_of(attempt, plan, noted)) for attempt in every]
    as_of = previous.get("activeTime", {}).get("asOf")
    # What was told while their rate was known is better than what it may have been.
    lengths = [(run_seconds(attempt, now), rate) for attempt, rate in rated if rate.known or not as_of]
    seen = _sum(plan, _within(lengths, _begun(job), now))
    since = _sum(
        plan,
        _within(
            [(run_seconds_since(attempt, parse(as_of), now), rate) for attempt, rate in rated],
            parse(as_of),
            now,
        )
        if as_of
        else [],
    )
    told = previous.get("cost", {})
    costs = [each for each in (seen.cost, _told(told, "amount")) if each is not None]
    return Usage(
        seconds=max(seen.seconds, previous.get("activeTime", {}).get("seconds", 0) + since.seconds),
        chip_hours=max(seen.chip_hours, (_told(told, "chipHours") or 0.0) + since.chip_hours),
        cost=max(seen.cost or 0.0, (_told(told, "amount") or 0.0) + (since.cost or 0.0)) if costs else None,
    )


def _begun(job: Object) -> datetime | None:
    """When the job can have begun to run, as far as is known."""
    told = job["metadata"].get("creationTimestamp") or (job.get("status") or {}).get("startTime")
    return parse(told) if told else None


def _within(parts: Iterable[Part], begin: datetime | None, now: datetime) -> list[Part]:
    """The same, with no more in all than the time since then. Attempts follow each other; a record may say anything."""
    left = max(0.0, (now - begin).total_seconds()) if begin else inf
    found: list[Part] = []
    for length, rate in parts:
        found.append((min(length, left), rate))
        left -= found[-1][0]
    return found


def active_time(used: Usage, now: datetime) -> Object:
    """``status.activeTime``. ``used``: of the same ``now``; the next look counts on from ``asOf``."""
    return {"seconds": int(used.seconds), "asOf": stamp(now)}


def run_seconds(attempt: Attempt, now: datetime) -> float:
    """Seconds that its processes ran, over all runs of it, by whoever saw most of each; 0 where nothing tells."""
    return earlier_run_seconds(attempt) + _ran_now(attempt, now.replace(microsecond=0))


def earlier_run_seconds(attempt: Attempt) -> float:
    """Of these, in the runs before the present one, or the last."""
    note, result = _earlier(attempt)
    last, _ = _last(attempt)
    base = (last.seconds_before or 0.0) if last else 0.0
    told = (note.seconds or 0.0) if note else 0.0
    if result is not None:
        length = max(0.0, (result.finished - result.started).total_seconds())
        same = note is not None and note.at is not None and note.at >= result.started
        told = max(told, (note.seconds_before or 0.0) + length) if same and note else told + length
    return min(max(base, told), MOST_SECONDS)


def uncovered_run(attempt: Attempt) -> dict[str, Any] | None:
    """What is to be noted of an earlier run whose record the next one will replace: when it ended, and how long it and
    those before it have run. None: all is noted."""
    note, result = _earlier(attempt)
    noted = (note.seconds or 0.0) if note else 0.0
    total = earlier_run_seconds(attempt)
    if result is None or total <= noted + 1:
        return None
    same = note is not None and note.at is not None and note.at >= result.started
    return {
        "at": result.finished,
        "seconds": min(total, MOST_SECONDS),
        "seconds_before": (note.seconds_before if same and note else noted) or None,
    }


def counted(attempt: Attempt, plan: Plan, now: datetime) -> dict[str, Any]:
    """What the record of its end holds of this: nothing else tells when JobSet and pods are gone."""
    found: dict[str, Any] = {"seconds": min(run_seconds(attempt, now), MOST_SECONDS) or None}
    if before := earlier_run_seconds(attempt):
        found["seconds_before"] = min(before, MOST_SECONDS)
    if attempt.key.stage.on_tpu:
        rate = rate_of(attempt, plan)
        price = None if rate.price is None else min(rate.price, MOST_PRICE)
        found |= {"chips": rate.chips, "chip_hour_price": price}
    return found


def rate_of(attempt: Attempt, plan: Plan, noted: Mapping[JobSetKey, UsageRate] | None = None) -> UsageRate:
    """What an hour of it costs. ``noted``: what the records of all attempts say, by JobSet.

    By the JobSet; where it is gone, by the records; by the slice that the job has now where nothing else tells.
    """
    if not attempt.key.stage.on_tpu:
        return UsageRate(chips=0, price=None)
    if attempt.jobset is not None:
        held = children.chips(attempt.jobset)
        return UsageRate(
            chips=plan.chips if held is None else held,
            price=terms_of(attempt.jobset, plan).chip_hour_price,
        )
    key = attempt.key.stage, attempt.key.number
    known = (noted or {}).get(key) or _noted_rates([attempt]).get(key)
    return known or UsageRate(chips=plan.chips, price=_present(plan).chip_hour_price, known=False)


def terms_of(jobset: Object, plan: Plan) -> FlavorTerms:
    """Of the flavor that it was rendered for."""
    name = flavor_of(jobset)
    return plan.flavors.get(name or "", _present(plan))


def _present(plan: Plan) -> FlavorTerms:
    return FlavorTerms(capacity=plan.placement.capacity, chip_hour_price=plan.placement.chip_hour_price)


def _noted_rates(attempts: Iterable[Attempt]) -> dict[JobSetKey, UsageRate]:
    """Restarts of one JobSet have the same."""
    return {
        (attempt.key.stage, attempt.key.number): UsageRate(chips=note.chips, price=note.chip_hour_price)
        for attempt in attempts
        if attempt.written and (note := attempt.written.failure) and note.chips is not None
    }


def _earlier(attempt: Attempt) -> tuple[Failure | None, StageResult | None]:
    """The note and the record that are of earlier runs of the attempt."""
    files = attempt.written
    if files is None:
        return None, None
    note, result = files.failure, files.result
    resumed = _resumed(attempt)
    noted_before = note is not None and (
        note.at is not None
        and ((resumed is not None and note.at < resumed) or (result is not None and note.at < result.started))
    )
    stopped = result is not None and result.outcome is Outcome.STOPPED
    told_before = stopped and result is not None and resumed is not None and result.finished < resumed
    return (note if noted_before else None), (result if told_before else None)


def _last(attempt: Attempt) -> tuple[Failure | None, StageResult | None]:
    """The note and the record that are of its present run, or the last."""
    files, (note, result) = attempt.written, _earlier(attempt)
    if files is None:
        return None, None
    return (None if note else files.failure), (None if result else files.result)


def _resumed(attempt: Attempt) -> datetime | None:
    """When its present run was let go. What comes after a restart is no run of it."""
    return children.resumed_at(attempt.jobset) if attempt.jobset and not attempt.restarted else None


def _ran_now(attempt: Attempt, now: datetime) -> float:
    told = [(end - begin).total_seconds() for begin, end in _intervals(attempt, now)]
    note, _ = _last(attempt)
    if note and note.seconds:
        told.append(note.seconds - (note.seconds_before or 0.0))
    return max([0.0, *told])


def _intervals(attempt: Attempt, now: datetime) -> list[Interval]:
    """From when to when it has run, as each witness of the present run says."""
    found: list[Interval] = []
    _, result = _last(attempt)
    if result is not None:
        found.append((result.started, result.finished))
    if span := children.running_span(attempt.pods):
        found.append((span[0], span[1] or now))
    # Pods of the run before may still be ending, and a node's clock may tell anything.
    earliest = _resumed(attempt) or (children.created_at(attempt.jobset) if attempt.jobset else None)
    return [(max(begin, earliest) if earliest else begin, min(end, now)) for begin, end in found]


def run_seconds_since(attempt: Attempt, as_of: datetime, now: datetime) -> float:
    """Seconds of its runs from then until now."""
    present = [_overlap(each, as_of, now) for each in _intervals(attempt, now)]
    _, result = _earlier(attempt)
    before = _overlap((result.started, result.finished), as_of, now) if result else 0.0
    return before + max([0.0, *present])


def _overlap(interval: Interval, begin: datetime, end: datetime) -> float:
    return max(0.0, (min(interval[1], end) - max(interval[0], begin)).total_seconds())


def _sum(plan: Plan, parts: Iterable[tuple[float, UsageRate]]) -> Usage:
    seconds = hours = cost = 0.0
    priced = plan.placement.chip_hour_price is not None
    for length, rate in parts:
        seconds += length
        hours += length * rate.chips / _HOUR
        cost += length * rate.chips / _HOUR * (rate.price or 0.0)
        priced = priced or rate.price is not None
    return Usage(seconds=seconds, chip_hours=hours, cost=cost if priced else None)


def _told(cost: Object, name: str) -> float | None:
    found = cost.get(name)
    return None if found is None else float(found)
