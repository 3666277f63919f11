"""``status.activeTime``, ``status.cost`` and ``status.monthlyBudget``.

They change with the time, so they are reported only with another change or when the last report is old. The next
reconcile adds to them, so the last report must not be too old.
"""

from math import floor

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_stages import ActiveTime, CostStatus, MonthlyBudgetStatus
from finetune_operator.api.timestamps import whole_second
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.lifecycle.attempts.usage import Usage, active_time, rate_of
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.spending import against

#: Seconds between two reports of the usage while nothing else in the status changes.
_USAGE_SECONDS = 60.0


def usage_status(observation: Observation, stages: JobStages) -> tuple[ActiveTime | None, CostStatus | None]:
    """Returns ``status.activeTime`` and ``status.cost``."""
    if not stages.attempts:
        return observation.status.active_time, observation.status.cost
    costs = observation.status.cost or any(attempt.key.stage.on_tpu for attempt in stages.attempts)
    live = stages.live
    chips = rate_of(live, stages.plan).chips if live and live.running else None
    return active_time(stages.used, observation.now, chips or None), _cost(stages) if costs else None


def is_due(observation: Observation, status: FineTuneJobStatus, *, runs: bool, reports: bool = False) -> bool:
    """Returns whether what moves with the time is to be reported: with any other change, and at a pace while something
    runs.

    ``status``: the new one. ``runs``: whether an attempt may run. ``reports``: whether it has something new to report
    beside its usage.
    """
    previous = observation.status
    if previous.active_time is None or moving_parts(status) != moving_parts(previous):
        return True
    age = (observation.now - previous.active_time.as_of).total_seconds()
    return runs and age >= max(0.0 if reports else _USAGE_SECONDS, observation.status_pace())


def with_unplanned_usage(
    observation: Observation, status: FineTuneJobStatus, used: Usage
) -> FineTuneJobStatus:
    """Returns the status of a job without a usable plan, of which something runs, with what it has used."""
    if not is_due(observation, status, runs=True):
        return status
    chips = sum(jobset.chips or 0 for jobset in observation.jobsets if not jobset.ended)
    update: dict[str, object] = {"active_time": active_time(used, observation.now, chips or None)}
    if status.cost or chips:
        in_money = observation.job.control.cost is not None
        update["cost"] = _grown_cost(status.cost, used, in_money=in_money)
    return status.model_copy(update=update)


def moving_parts(status: FineTuneJobStatus) -> object:
    """Returns the part of a status whose change is written at once; two of them can be compared."""
    return (
        status.observed_generation,
        status.phase,
        status.stage,
        [(each.type, each.status, each.reason) for each in status.conditions or ()],
        [(each.name, each.phase, each.attempt) for each in status.stages or ()],
    )


def _cost(stages: JobStages) -> CostStatus:
    plan, used = stages.plan, stages.used
    left = [ceiling.most - amount for ceiling, amount in against(plan, used)]
    return CostStatus.model_construct(
        chip_hours=rounded_down(used.chip_hours),
        amount=None if used.cost is None else rounded_down(used.cost),
        currency=plan.currency,
        # Of the budget in money if there is one, else of that in chip hours.
        budget_remaining=_remaining(left[-1]) if left else None,
    )


def _grown_cost(reported: CostStatus | None, used: Usage, *, in_money: bool) -> CostStatus:
    """Returns ``status.cost`` from the last report and what is used now. ``in_money``: whether the job's budget limits
    the cost."""
    before = reported or CostStatus.model_construct(chip_hours="0")
    counted, left = Amounts.of(before), before.budget_remaining
    more = used.chip_hours - float(counted.chip_hours)
    if in_money:
        more = (used.cost or 0.0) - float(counted.cost)
    return before.model_copy(
        update={
            "chip_hours": rounded_down(used.chip_hours),
            "amount": None if before.amount is None else rounded_down(used.cost or 0.0),
            "budget_remaining": None if left is None else _remaining(float(left) - max(0.0, more)),
        }
    )


def _remaining(left: float) -> str:
    return decimal(round(max(0.0, left), 4))


def rounded_down(value: float) -> str:
    """Returns chip hours or money to six decimals, so that ten seconds of one cheap chip keep three digits. It is never
    rounded up, because the next status adds to it."""
    whole = floor(value * 1_000_000 + 1e-6)
    return f"{whole / 1_000_000:.6f}".rstrip("0").rstrip(".")


def monthly_budget_status(
    observation: Observation, stages: JobStages, *, due: bool
) -> MonthlyBudgetStatus | None:
    """Returns the budget of the namespace; None if the profile sets none. ``due``: see :func:`is_due`."""
    limit, previous = stages.month, observation.status.monthly_budget
    if limit is None:
        return None
    found = MonthlyBudgetStatus.model_construct(
        month=str(limit.budget.month),
        chip_hours=rounded_down(limit.budget.limit),
        used=None if limit.used is None else rounded_down(limit.used),
        as_of=whole_second(observation.now),
        reset_time=limit.budget.month.end,
    )
    same = previous is not None and (previous.month, previous.chip_hours) == (found.month, found.chip_hours)
    stays = limit.used is None or (not due and previous is not None and previous.used is not None)
    return previous if same and stays else found
