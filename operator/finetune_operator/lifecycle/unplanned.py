"""The limits of a job without a usable plan, and what it has used of them.

Whether the job would be admitted now does not matter: a plan may be lost while the job's spec is invalid or its profile
is deleted. Running time, chip hours and cost in the status are a floor; what has run since is counted by the chips of
the JobSets.
"""

from collections.abc import Iterator, Sequence

from finetune_operator.ledger.amounts import Amounts
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import Usage, UsageRate, usage_at
from finetune_operator.lifecycle.children.fields import amount, section
from finetune_operator.lifecycle.job import Control
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.spending import exhausted, month_stop, monthly_limit
from finetune_operator.lifecycle.stops import Limits
from finetune_operator.objects import Object
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.merge import merge
from finetune_operator.planning.slices.topology import terms


def unplanned_limits(observation: Observation, used: Usage) -> Limits:
    """Returns the limits in the present spec and profile; if the profile is deleted, too, those in the status."""
    name, profile = _profile(observation)
    control = Control.parse(merge(section(profile, "defaults"), section(observation.job.document, "spec")))
    month = monthly_limit(observation, used, profile.get("owner"))
    return Limits(
        observation=observation,
        seconds=used.seconds,
        active=None if control.deadline is None else int(control.deadline),
        exceeded=exhausted(_ceilings(observation, control, name, profile, used)),
        month=month_stop(month) if month and month.exhausted else None,
    )


def unplanned_usage(observation: Observation, attempts: Sequence[Attempt]) -> Usage:
    """Returns the usage in the status, and what the JobSets show of the time since."""
    rated = [(attempt, unplanned_rate(attempt, observation)) for attempt in attempts]
    return usage_at(rated, UsageRate(chips=0, price=None, known=False), observation)


def unplanned_rate(attempt: Attempt, observation: Observation) -> UsageRate:
    """Returns what an hour of the attempt uses, by its JobSet. A chip hour costs what the profile says of the JobSet's
    flavor, else what the status' hours have cost."""
    jobset = attempt.jobset
    if jobset is None or not attempt.key.stage.on_tpu:
        return UsageRate(chips=0, price=None, known=False)
    terms_by_flavor = terms(_profile(observation)[1].get("flavors", ()))
    flavor, reported = terms_by_flavor.get(jobset.flavor or ""), observation.status.cost
    price, used = flavor.chip_hour_price if flavor else None, Amounts.of(reported)
    if price is None and used.chip_hours and reported and reported.amount is not None:
        price = float(used.cost / used.chip_hours)
    # Chips are None if a limit is no quantity, which no JobSet of the operator has.
    return UsageRate(chips=jobset.chips or 0, price=price, known=False)


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
