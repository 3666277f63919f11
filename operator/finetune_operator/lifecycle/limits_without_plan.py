"""A job without a plan that can be used: what runs of it stays within the limits that job and profile name.

Whether the job would be admitted today does not matter: a plan may be lost while the job's spec is invalid or its
profile is gone. What the status says of running time, chip hours and cost is a floor; what has run since is counted by
the JobSets' own chips.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune_contract import Failure
from finetune_operator.lifecycle import children, deadlines
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import budget_stop
from finetune_operator.lifecycle.conclude import stoppable
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.pending import Record
from finetune_operator.lifecycle.spending import exhausted_message
from finetune_operator.lifecycle.times import parse
from finetune_operator.lifecycle.usage import Usage, run_seconds, run_seconds_since
from finetune_operator.lifecycle.wait_times import to_note
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.merge import lookup, merge
from finetune_operator.planning.topology import terms
from finetune_operator.rendering import flavor_of

type Object = Mapping[str, Any]

_HOUR = 3600


def stops_without_plan(observation: Observation, attempts: Sequence[Attempt]) -> tuple[Record, ...]:
    """The attempts that a limit ends now, each with the record of why."""
    live = [each for each in attempts if each.live and each.jobset and stoppable(each.jobset)]
    if not live:
        return ()
    name, profile = _profile(observation)
    spec = merge(profile.get("defaults") or {}, observation.job["spec"])
    used = _used(observation, attempts, profile)
    deadline = _number(spec.get("activeDeadlineSeconds"))
    stop: Failure | None = None
    ended: list[Attempt] = []
    if deadline is not None and used.seconds >= deadline:
        stop, ended = deadlines.active_exceeded(int(deadline)), live
    else:
        over = [
            (limit, amount)
            for limit, amount in _ceilings(observation.job, spec, name, profile, used)
            if amount >= limit.most
        ]
        if over:
            stop = budget_stop(exhausted_message(*over[0]))
            ended = [each for each in live if each.key.stage.on_tpu]
    return tuple((each.key, _noted(each, stop, observation, profile)) for each in ended if stop)


def _noted(attempt: Attempt, stop: Failure, observation: Observation, profile: Object) -> Failure:
    """With what nothing else tells when JobSet and pods are gone."""
    seen: dict[str, Any] = {"seconds": run_seconds(attempt, observation.now) or None}
    if attempt.key.stage.on_tpu:
        price = _price(attempt, observation, profile)
        seen |= {"chips": _chips(attempt), "chip_hour_price": price}
    return stop.model_copy(update=seen | to_note(attempt, observation.now))


def _profile(observation: Observation) -> tuple[str, Object]:
    """Name and spec of the profile that the job was admitted under, as it reads now; empty where it is gone."""
    name = lookup(observation.job.get("status") or {}, "resolved.profile.name")
    named = (each["spec"] for each in observation.profiles if each["metadata"]["name"] == name)
    return str(name), next(named, {})


def _ceilings(
    job: Object, spec: Object, name: str, profile: Object, used: Usage
) -> Iterator[tuple[SpendingLimit, float]]:
    """Each limit with what counts towards it."""
    if not profile and lookup(spec, "budget.maxCost") is None:
        # The profile is gone too: its limit is what the status has counted and what it says is left, in chip hours.
        cost = (job.get("status") or {}).get("cost", {})
        counted, left = _number(cost.get("chipHours")), _number(cost.get("budgetRemaining"))
        if counted is not None and left is not None:
            yield (
                SpendingLimit(most=counted + left, path="the budget in status.cost", fails=False),
                used.chip_hours,
            )
    for limit, path, amount in (
        (lookup(spec, "budget.maxChipHours"), "spec.budget.maxChipHours", used.chip_hours),
        (
            lookup(profile, "constraints.maxChipHours"),
            f'constraints.maxChipHours of profile "{name}"',
            used.chip_hours,
        ),
        (lookup(spec, "budget.maxCost"), "spec.budget.maxCost", used.cost or 0.0),
    ):
        most = _number(limit)
        if most is not None:
            yield SpendingLimit(most=most, path=path, fails=False), amount


def _used(observation: Observation, attempts: Sequence[Attempt], profile: Object) -> Usage:
    status = observation.job.get("status") or {}
    as_of = lookup(status, "activeTime.asOf")
    seconds, hours, cost = (
        _number(lookup(status, path)) or 0.0
        for path in ("activeTime.seconds", "cost.chipHours", "cost.amount")
    )
    for attempt in attempts:
        length = (
            run_seconds_since(attempt, parse(as_of), observation.now)
            if as_of
            else run_seconds(attempt, observation.now)
        )
        each = length * _chips(attempt) / _HOUR
        seconds += length
        hours += each
        cost += each * (_price(attempt, observation, profile) or 0.0)
    return Usage(seconds=seconds, chip_hours=hours, cost=cost)


def _chips(attempt: Attempt) -> int:
    if attempt.jobset is None or not attempt.key.stage.on_tpu:
        return 0
    # None: a limit that is no quantity, which no JobSet of the operator has.
    return children.chips(attempt.jobset) or 0


def _price(attempt: Attempt, observation: Observation, profile: Object) -> float | None:
    """Of a chip hour: as the profile says of the JobSet's flavor, else what the status' hours have cost."""
    flavors = terms(profile.get("flavors", ()))
    found = flavors.get(flavor_of(attempt.jobset) or "") if attempt.jobset else None
    if found and found.chip_hour_price is not None:
        return found.chip_hour_price
    cost = (observation.job.get("status") or {}).get("cost", {})
    hours, amount = _number(cost.get("chipHours")), _number(cost.get("amount"))
    return amount / hours if hours and amount is not None else None


def _number(value: object) -> float | None:
    """None where the object, which may be invalid, holds none."""
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) else None
