"""The usage of attempts: active time, chip hours and cost.

Each run is measured by its pods, the trainer's record, and the records that the operator writes in case pods and
trainer's record are deleted. The usage in the last status is a floor, to which the time since then is added: so usage
never falls when pods or records are deleted, and all later time is counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from finetune_contract import Failure, Outcome, Stage, StageResult
from finetune_contract.base import MOST_PRICE, MOST_SECONDS
from finetune_operator.api import ConditionType
from finetune_operator.api.status_stages import ActiveTime
from finetune_operator.api.timestamps import whole_second
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.wait_times import recorded_waits
from finetune_operator.lifecycle.children.pods import running_span
from finetune_operator.lifecycle.observation import AttemptFiles, Observation
from finetune_operator.planning import Plan
from finetune_operator.planning.slices.topology import FlavorTerms

type Interval = tuple[datetime, datetime]
type Records = tuple[Failure | None, StageResult | None]
"""The operator's record and the trainer's result."""
type Part = tuple[float, "UsageRate"]
"""Seconds, and the rate that applies to them."""

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage while processes ran; waiting does not count."""

    seconds: float = 0.0
    """Active time of all stages."""
    chip_hours: float = 0.0
    cost: float | None = None
    """Each hour at the price of the flavor on which it ran; hours without a price are free. None if the profile has no
    price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRate:
    """What an hour of one attempt uses."""

    chips: int
    price: float | None
    """Price of a chip hour; None if the profile has none."""
    known: bool = True
    """False: the rate is unknown, and that of the job's current slice is assumed."""

    @property
    def fields(self) -> dict[str, Any]:
        """The rate as fields of a failure record."""
        price = None if self.price is None else min(self.price, MOST_PRICE)
        return {"chips": self.chips, "chip_hour_price": price}


def usage(plan: Plan, attempts: Sequence[Attempt], observation: Observation) -> Usage:
    """Returns the usage of all attempts of a job with a plan: see :func:`usage_at`."""
    recorded = _recorded_rates(attempts)
    rated = [(attempt, rate_of(attempt, plan, recorded)) for attempt in attempts]
    return usage_at(rated, _present_rate(plan), observation)


def usage_at(
    rated: Sequence[tuple[Attempt, UsageRate]], present: UsageRate, observation: Observation
) -> Usage:
    """Returns the usage of attempts at these rates until the beginning of the current second, which is what
    :func:`active_time` reports: never less than the job's status reports now, and never more time than has passed.

    ``present``: the rate of the job's current slice.
    """
    now, previous = observation.now.replace(microsecond=0), observation.status
    as_of = previous.active_time.as_of if previous.active_time else None
    # Usage that was reported while the rate was known is better than an estimate with the current rate.
    lengths = [(run_seconds(attempt, now), rate) for attempt, rate in rated if rate.known or not as_of]
    created = observation.job.creation_timestamp or previous.start_time
    seen = _sum(lengths, _seconds_since(created, now), present=present)
    later = [(run_seconds_since(attempt, as_of, now), rate) for attempt, rate in rated] if as_of else []
    if unobserved := _unobserved(observation, now):
        rate = next((rate for attempt, rate in reversed(rated) if attempt.key.stage.on_tpu), present)
        # No longer than what is measured, if that is of the same time.
        later = max([later, [(unobserved, rate)]], key=lambda parts: _sum(parts, present=present).chip_hours)
    since = _sum(later, _seconds_since(as_of, now), present=present)
    seconds = previous.active_time.seconds if previous.active_time else 0
    reported = Amounts.of(previous.cost)
    priced = seen.cost is not None or (previous.cost is not None and previous.cost.amount is not None)
    return Usage(
        seconds=max(seen.seconds, seconds + since.seconds),
        chip_hours=max(seen.chip_hours, float(reported.chip_hours) + since.chip_hours),
        cost=max(seen.cost or 0.0, float(reported.cost) + (since.cost or 0.0)) if priced else None,
    )


def _unobserved(observation: Observation, now: datetime) -> float:
    """Returns the seconds from the last report until the namespace was served again, if chips were at work then.

    They count: how long pods ran in the meantime is known only by objects that tenants may have deleted.
    """
    status, until = observation.status, observation.unobserved_until
    running = status.is_true(ConditionType.RUNNING)
    if until is None or status.active_time is None or not (running and status.stage and status.stage.on_tpu):
        return 0.0
    return max(0.0, (min(until, now) - status.active_time.as_of).total_seconds())


def _seconds_since(begin: datetime | None, now: datetime) -> float:
    return max(0.0, (now - begin).total_seconds()) if begin else inf


def active_time(used: Usage, now: datetime, chips: int | None = None) -> ActiveTime:
    """Returns ``status.activeTime``, to which the next reconcile adds what has run since ``as_of``.

    ``used``: the usage until ``now``. ``chips``: those of the running attempt; None: none runs on chips.
    """
    return ActiveTime.model_construct(seconds=int(used.seconds), as_of=whole_second(now), chips=chips)


def run_seconds(attempt: Attempt, now: datetime) -> float:
    """Returns the seconds that the attempt's processes ran, over all runs; 0 if unknown.

    If the sources of a run differ, the longest time counts.
    """
    return earlier_run_seconds(attempt) + _ran_now(attempt, now.replace(microsecond=0))


def usage_of(attempt: Attempt, plan: Plan, now: datetime) -> Usage:
    """Returns the usage of one attempt over all its runs, as far as objects and records still show it."""
    return _sum([(run_seconds(attempt, now), rate_of(attempt, plan))], present=_present_rate(plan))


def earlier_run_seconds(attempt: Attempt) -> float:
    """Returns the seconds of the runs before the current or last one."""
    (record, result), (last, _) = _runs(attempt)
    base = (last.seconds_before or 0.0) if last else 0.0
    seconds = (record.seconds or 0.0) if record else 0.0
    if result is not None and record is not None and record.at is not None and record.at >= result.started:
        if not _contains(record, result):
            seconds = max(seconds, (record.seconds_before or 0.0) + _length(result))
    elif result is not None:
        seconds += _length(result)
    return min(max(base, seconds), MOST_SECONDS)


def _contains(record: Failure, result: StageResult) -> bool:
    """Whether the record's ``seconds_before`` may contain the result: a killed run leaves the result of an earlier one.

    If they are of one run, ``seconds`` contain it, except for what the run used after the record was written.
    """
    return (record.seconds_before or 0.0) >= _length(result)


def _length(result: StageResult) -> float:
    return max(0.0, (result.finished - result.started).total_seconds())


def uncovered_run(attempt: Attempt) -> dict[str, Any] | None:
    """Returns the fields to record about an earlier run whose result the next run replaces; None if all is recorded.

    They say when it ended, and how long it and the runs before it ran.
    """
    record, result = _runs(attempt)[0]
    recorded = (record.seconds or 0.0) if record else 0.0
    total = earlier_run_seconds(attempt)
    if result is None or total <= recorded + 1:
        return None
    same = record is not None and record.at is not None and record.at >= result.started
    return {
        "at": result.finished,
        "seconds": min(total, MOST_SECONDS),
        "seconds_before": (record.seconds_before if same and record else recorded) or None,
    }


def counted(attempt: Attempt, rate: UsageRate, now: datetime) -> dict[str, Any]:
    """Returns the fields of the attempt's failure record with its usage and waits, of which the record is the only
    source once JobSet and pods are deleted. ``rate``: what an hour of it uses."""
    found: dict[str, Any] = {"seconds": min(run_seconds(attempt, now), MOST_SECONDS) or None}
    found |= recorded_waits(attempt, now)
    if before := earlier_run_seconds(attempt):
        found["seconds_before"] = min(before, MOST_SECONDS)
    if attempt.key.stage.on_tpu:
        found |= rate.fields
    return found


def rate_of(
    attempt: Attempt, plan: Plan, recorded: Mapping[tuple[Stage, int], UsageRate] | None = None
) -> UsageRate:
    """Returns what an hour of the attempt uses.

    By its JobSet; if that is deleted, by the records; if there are none, by the job's current slice.

    ``recorded``: the rates in the records of all attempts, by JobSet. None: only this attempt's record counts.
    """
    if not attempt.key.stage.on_tpu:
        return UsageRate(chips=0, price=None)
    if attempt.jobset is not None:
        held = attempt.jobset.chips
        return UsageRate(
            chips=plan.chips if held is None else held,
            price=terms_of(attempt.jobset.flavor, plan).chip_hour_price,
        )
    rates = _recorded_rates([attempt]) if recorded is None else recorded
    return rates.get(attempt.key.jobset) or _present_rate(plan)


def terms_of(flavor: str | None, plan: Plan) -> FlavorTerms:
    """Returns the terms of a flavor; the current ones if it is None, or the plan lacks it."""
    placement = plan.placement
    present = FlavorTerms(capacity=placement.capacity, chip_hour_price=placement.chip_hour_price)
    return plan.flavors.get(flavor or "", present)


def _present_rate(plan: Plan) -> UsageRate:
    return UsageRate(chips=plan.chips, price=plan.placement.chip_hour_price, known=False)


def _recorded_rates(attempts: Iterable[Attempt]) -> dict[tuple[Stage, int], UsageRate]:
    """Returns the recorded rates; all restarts of one JobSet have the same."""
    return {
        attempt.key.jobset: UsageRate(chips=record.chips, price=record.chip_hour_price)
        for attempt in attempts
        if attempt.written and (record := attempt.written.failure) and record.chips is not None
    }


def _runs(attempt: Attempt) -> tuple[Records, Records]:
    """Returns the records that are of earlier runs of the attempt, and those of the current or last one."""
    files, resumed = attempt.written or AttemptFiles(), _resumed(attempt)
    record, result = files.failure, files.result
    begins = [begin for begin in (resumed, result and result.started) if begin]
    recorded_before = (
        record is not None and record.at is not None and any(record.at < each for each in begins)
    )
    stopped = result is not None and result.outcome is Outcome.STOPPED
    result_before = stopped and result is not None and resumed is not None and result.finished < resumed
    earlier = record if recorded_before else None, result if result_before else None
    return earlier, (None if recorded_before else record, None if result_before else result)


def _resumed(attempt: Attempt) -> datetime | None:
    """Returns when the JobSet was resumed for the current run; None if it was not.

    After a restart, the JobSet runs another attempt.
    """
    return None if attempt.restarted else attempt.resumed_at


def _ran_now(attempt: Attempt, now: datetime) -> float:
    _, (record, result) = _runs(attempt)
    if record and result and _resumed(attempt) is None and _contains(record, result):
        result = None
    lengths = [(end - begin).total_seconds() for begin, end in _intervals(attempt, now, result)]
    if record and record.seconds:
        lengths.append(record.seconds - (record.seconds_before or 0.0))
    return max([0.0, *lengths])


def _intervals(attempt: Attempt, now: datetime, result: StageResult | None) -> list[Interval]:
    """Returns the begin and end of the current run by its result and by the pods, if they are known."""
    found: list[Interval] = []
    if result is not None:
        found.append((result.started, result.finished))
    if span := running_span(attempt.pods):
        found.append((span[0], span[1] or now))
    # Pods of the run before may still be terminating, and a node's clock may be wrong.
    earliest = _resumed(attempt) or (attempt.jobset.creation_timestamp if attempt.jobset else None)
    return [(max(begin, earliest) if earliest else begin, min(end, now)) for begin, end in found]


def run_seconds_since(attempt: Attempt, as_of: datetime, now: datetime) -> float:
    """Returns the seconds of the attempt's runs from ``as_of`` until ``now``."""
    (_, earlier), (_, last) = _runs(attempt)
    present = [_overlap(each, as_of, now) for each in _intervals(attempt, now, last)]
    before = _overlap((earlier.started, earlier.finished), as_of, now) if earlier else 0.0
    return before + max([0.0, *present])


def _overlap(interval: Interval, begin: datetime, end: datetime) -> float:
    return max(0.0, (min(interval[1], end) - max(interval[0], begin)).total_seconds())


def _sum(parts: Sequence[Part], most: float = inf, *, present: UsageRate) -> Usage:
    """Returns the usage of the parts, of which at most ``most`` seconds count: attempts never overlap.

    Only records that contain wrong times exceed that. What costs most counts first, so that the record of a cheap
    attempt cannot take the time of an expensive one.
    """
    priced = any(rate.price is not None for rate in (present, *(rate for _, rate in parts)))
    cost = _weighted(parts, most, lambda rate: rate.chips * (rate.price or 0.0)) / _HOUR
    return Usage(
        seconds=min(most, sum(length for length, _ in parts)),
        chip_hours=_weighted(parts, most, lambda rate: rate.chips) / _HOUR,
        cost=cost if priced else None,
    )


def _weighted(parts: Sequence[Part], most: float, weight: Callable[[UsageRate], float]) -> float:
    """Returns the sum of the seconds times their weight, for at most ``most`` seconds, those of the largest first."""
    total = 0.0
    for length, rate in sorted(parts, key=lambda part: -weight(part[1])):
        counted = min(length, most)
        total += counted * weight(rate)
        most -= counted
    return total
