"""The limits of a job without a usable plan, and what it has used of them.

Whether the job would be admitted now does not matter: a plan may be lost while the job's spec is invalid or its profile
is deleted. Running time, chip hours and cost in the status are a floor; what has run since is counted by the chips of
the JobSets.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from finetune_contract import Failure
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import Usage, run_seconds, run_seconds_since
from finetune_operator.lifecycle.attempts.wait_times import recorded_waits
from finetune_operator.lifecycle.children.fields import amount, section
from finetune_operator.lifecycle.job import Control
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.spending import exhausted, month_exhausted, monthly_limit
from finetune_operator.lifecycle.stops import Limits
from finetune_operator.objects import Object
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.errors import whom_to_ask
from finetune_operator.planning.merge import merge
from finetune_operator.planning.slices.topology import terms

_HOUR = 3600


def unplanned_limits(observation: Observation, used: Usage) -> Limits:
    """Returns the limits in the present spec and profile; if the profile is deleted, too, those in the status."""
    name, profile = _profile(observation)
    control = Control.parse(merge(section(profile, "defaults"), section(observation.job.document, "spec")))
    month, contact = monthly_limit(observation, used), whom_to_ask(profile.get("owner"))
    return Limits(
        observation=observation,
        seconds=used.seconds,
        active=None if control.deadline is None else int(control.deadline),
        exceeded=exhausted(_ceilings(observation, control, name, profile, used)),
        month=month_exhausted(month, observation.job.namespace, contact)
        if month and month.exhausted
        else None,
    )


def unplanned_usage(observation: Observation, attempts: Sequence[Attempt]) -> Usage:
    """Returns the usage in the status, and what the JobSets show of the time since."""
    elapsed, reported = observation.status.active_time, Amounts.of(observation.status.cost)
    as_of = elapsed.as_of if elapsed else None
    seconds = float(elapsed.seconds) if elapsed else 0.0
    hours, cost = float(reported.chip_hours), float(reported.cost)
    for attempt in attempts:
        length = (
            run_seconds_since(attempt, as_of, observation.now)
            if as_of
            else run_seconds(attempt, observation.now)
        )
        each = length * _chips(attempt) / _HOUR
        seconds += length
        hours += each
        cost += each * (_price(attempt, observation) or 0.0)
    return Usage(seconds=seconds, chip_hours=hours, cost=cost)


def counted_unplanned(attempt: Attempt, why: Failure, observation: Observation) -> Failure:
    """Returns the record of a stop, including what nothing else shows once JobSet and pods are deleted."""
    seen: dict[str, Any] = {"seconds": run_seconds(attempt, observation.now) or None}
    if attempt.key.stage.on_tpu:
        seen |= {"chips": _chips(attempt), "chip_hour_price": _price(attempt, observation)}
    return why.model_copy(update=seen | recorded_waits(attempt, observation.now))


def _profile(observation: Observation) -> tuple[str, Object]:
    """Returns name and present spec of the profile that admitted the job; empty if it is deleted."""
    resolved = observation.status.resolved
    name = resolved.profile.name if resolved and resolved.profile else None
    named = (each["spec"] for each in observation.profiles if each["metadata"]["name"] == name)
    return str(name), next(named, {})


def _ceilings(
    observation: Observation, control: Control, name: str, profile: Object, used: Usage
) -> Iterator[tuple[SpendingLimit, float]]:
    """Yields each limit with the amount that counts towards it."""
    cost = observation.status.cost
    if not profile and cost and cost.budget_remaining is not None and control.cost is None:
        # The profile is deleted, too: its limit is the sum of the used and the remaining chip hours in the status.
        most = float(Amounts.of(cost).chip_hours) + float(cost.budget_remaining)
        yield SpendingLimit(most=most, path="the budget in status.cost", fails=False), used.chip_hours
    allowed = amount(section(profile, "constraints"), "maxChipHours")
    for limit, path, spent in (
        (control.chip_hours, "spec.budget.maxChipHours", used.chip_hours),
        (allowed, f'constraints.maxChipHours of profile "{name}"', used.chip_hours),
        (control.cost, "spec.budget.maxCost", used.cost or 0.0),
    ):
        if limit is not None:
            yield SpendingLimit(most=limit, path=path, fails=False), spent


def _chips(attempt: Attempt) -> int:
    if attempt.jobset is None or not attempt.key.stage.on_tpu:
        return 0
    # None: a limit that is no quantity, which no JobSet of the operator has.
    return attempt.jobset.chips or 0


def _price(attempt: Attempt, observation: Observation) -> float | None:
    """Of a chip hour: as the profile says of the JobSet's flavor, else what the status' hours have cost."""
    flavors = terms(_profile(observation)[1].get("flavors", ()))
    found = flavors.get(attempt.jobset.flavor or "") if attempt.jobset else None
    if found and found.chip_hour_price is not None:
        return found.chip_hour_price
    cost = observation.status.cost
    used = Amounts.of(cost)
    priced = cost is not None and cost.amount is not None
    return float(used.cost / used.chip_hours) if used.chip_hours and priced else None
