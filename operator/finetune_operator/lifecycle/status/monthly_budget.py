"""``status.monthlyBudget``."""

from finetune_operator.api.status_stages import MonthlyBudgetStatus
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.cost import rounded_down


def monthly_budget_status(
    observation: Observation, stages: JobStages, *, changed: bool
) -> MonthlyBudgetStatus | None:
    """Returns the budget of the namespace; None if the profile sets none.

    The usage moves with the time, so it is reported anew only with another change of the status.

    Args:
        observation: of the job.
        stages: the state of its stages.
        changed: whether the status changes in other respects, or its report of the usage is old.
    """
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
    stays = limit.used is None or (not changed and previous is not None and previous.used is not None)
    return previous if same and stays else found
