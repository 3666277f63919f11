"""The budget of the job's namespace for the calendar month: the profile's ``constraints.chipHoursPerMonth``.

One rule: stages on TPUs start while less than the limit is known to be used, and run until all of it is. If the usage
is unknown, none starts, and what runs continues.
"""

from dataclasses import dataclass
from datetime import datetime

from finetune_operator.api import Reason
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import rate_of
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.monthly_limit import FIELD, MonthlyLimit, hours_text
from finetune_operator.planning import Plan
from finetune_operator.planning.errors import whom_to_ask

_HOUR = 3600
#: Seconds between two looks of a job that waits, if there are few jobs.
_LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyStop:
    """Why no stage on TPUs may start now."""

    reason: Reason
    message: str
    fix: str
    stops: bool
    """Whether one that runs must stop, too."""
    until: datetime | None
    """When it ends without an edit; None if that is unknown."""

    @property
    def text(self) -> str:
        return f"{self.message} {self.fix}"


def monthly_stop(stages: JobStages) -> MonthlyStop | None:
    """Returns why the current stage may not start; None if it may, or needs no TPU."""
    limit = stages.month
    due = {stages.current.stage} | ({stages.live.key.stage} if stages.live else set())
    if limit is None or stages.succeeded or not any(stage.on_tpu for stage in due):
        return None
    if not limit.exhausted and limit.used is not None:
        return None
    return _stop(limit, stages.plan)


def must_stop(stages: JobStages) -> MonthlyStop | None:
    """Returns why what runs must stop; None if it may continue, as it does while the usage is unknown."""
    month = monthly_stop(stages)
    return month if month and month.stops else None


def monthly_shortage(stages: JobStages) -> MonthlyStop | None:
    """Returns the same for the condition WithinBudget, which also shows for a job on CPU what will prevent its next
    stage, and nothing for a job that has ended, or continues although the usage is unknown."""
    limit = stages.month
    if limit is None or stages.succeeded or stages.failed:
        return None
    if limit.exhausted:
        return _stop(limit, stages.plan)
    return None if stages.live else monthly_stop(stages)


def _stop(limit: MonthlyLimit, plan: Plan) -> MonthlyStop:
    budget, namespace, contact = limit.budget, plan.job.namespace, whom_to_ask(plan.owner_of_profile)
    if limit.used is not None:
        return month_exhausted(limit, namespace, contact)
    return MonthlyStop(
        reason=Reason.MONTHLY_USAGE_UNKNOWN,
        message=f'{FIELD} of profile "{budget.profile}" is {hours_text(budget.limit)}, and what namespace '
        f"{namespace} has used in {budget.month} is unknown until the operator has read its ledger.",
        fix=f"The job then continues automatically. If this lasts for minutes, ask {contact}.",
        stops=False,
        until=None,
    )


def month_exhausted(limit: MonthlyLimit, namespace: str, contact: str) -> MonthlyStop:
    """Returns why what runs must stop, of a limit that is exhausted. ``contact``: whom to ask to raise it."""
    used = hours_text(limit.used or 0.0)
    budget = limit.budget
    return MonthlyStop(
        reason=Reason.MONTHLY_BUDGET_EXHAUSTED,
        message=f"Namespace {namespace} has used {used} of the {hours_text(budget.limit)} chip hours that "
        f'{FIELD} of profile "{budget.profile}" allows it in {budget.month}.',
        fix=f"The job continues automatically when the next month begins, {stamp(budget.month.end)}, or when the limit "
        f"is raised: ask {contact}.",
        stops=True,
        until=budget.month.end,
    )


def seconds_to_limit(stages: JobStages, attempt: Attempt) -> float | None:
    """Returns the seconds until the namespace reaches its limit, if everything that runs now continues, and ``attempt``
    does; None if there is no limit, it is not known to come closer, or the stage needs no TPU."""
    limit = stages.month
    if limit is None or limit.used is None or not attempt.key.stage.on_tpu:
        return None
    chips = limit.budget.chips + rate_of(attempt, stages.plan).chips
    return (limit.budget.limit - limit.used) / chips * _HOUR if chips else None


def seconds_of_wait(observation: Observation, month: MonthlyStop) -> float:
    """Returns the seconds until a job that may not start looks again. A raised limit, and records that have been read,
    queue it at once."""
    regular = observation.pace(_LOOK_SECONDS)
    if month.until is None:
        return regular
    return max(1.0, min(regular, (month.until - observation.now).total_seconds()))
