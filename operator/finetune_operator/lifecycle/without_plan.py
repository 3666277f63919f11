"""A job without a usable plan: what runs of it stays within the limits of the job and of its profile.

Whether the job would be admitted now does not matter: a plan may be lost while the job's spec is invalid or its profile
is deleted. Running time, chip hours and cost in the status are a floor; what has run since is counted by the chips of
the JobSets.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from finetune_contract import Failure
from finetune_operator.api import FineTuneJobStatus, Reason, WaitingReason
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.pending_records import confirmed_records
from finetune_operator.lifecycle.attempts.stop_records import requested_stop
from finetune_operator.lifecycle.attempts.usage import Usage, run_seconds, run_seconds_since
from finetune_operator.lifecycle.attempts.wait_times import recorded_waits
from finetune_operator.lifecycle.cancellation import is_cancelled
from finetune_operator.lifecycle.decision import NextStep, Wait, stop, stoppable
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.spending import exhausted, month_exhausted, monthly_limit
from finetune_operator.lifecycle.stops import Limits, stop_of
from finetune_operator.planning import Refused
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.errors import whom_to_ask
from finetune_operator.planning.merge import lookup, merge
from finetune_operator.planning.slices.topology import terms

type Object = Mapping[str, Any]

_HOUR = 3600
#: What is missing and may appear without a change of the job.
_MAY_APPEAR = (
    Reason.PROFILE_NOT_FOUND,
    Reason.NO_DEFAULT_PROFILE,
    Reason.CHAT_TEMPLATE_NOT_FOUND,
    Reason.SOURCE_JOB_NOT_FOUND,
    Reason.SOURCE_JOB_RUNNING,
    Reason.SOURCE_JOB_UNUSABLE,
    Reason.RUN_NOT_FOUND,
    Reason.RUN_FOLDER_IN_USE,
    Reason.QUOTA_TOO_SMALL,
)
#: Seconds. No watch reports to the job that a profile, a ConfigMap, a Secret, another job's model or
#: a larger quota has appeared.
_REQUEUE_SECONDS = 15.0
#: The same with any number of other jobs.
_LONGEST_REQUEUE_SECONDS = 60.0


def without_plan(observation: Observation, attempts: Sequence[Attempt], refused: Refused) -> NextStep:
    """Decides about a job that cannot be planned, or whose run folder is another job's.

    Nothing is started, what the status contains stays, and what runs stays within its deadline and its budgets.
    """
    state = JobState(phase=JobPhase.INVALID, refused=refused)
    if refused.reason in _MAY_APPEAR:
        state = replace(state, wait=WaitCause(reason=WaitingReason.INPUT, message=refused.message))
    if refused.reason is Reason.SOURCE_JOB_RUNNING:
        # The job is valid: it starts when the other one is done.
        state = replace(state, phase=JobPhase.ACTIVE, refused=None)
    step = NextStep(
        action=Wait(),
        state=state,
        requeue_after=min(observation.pace(_REQUEUE_SECONDS), _LONGEST_REQUEUE_SECONDS),
        summary=f"Cancelled, and ends when this is corrected: {refused.message}"
        if is_cancelled(observation.job)
        else None,
    )
    if refused.reason is Reason.RUN_FOLDER_TAKEN:
        # Of two jobs in one run folder, the one that has lost it stops writing, even records.
        return replace(step, action=stop(observation.jobsets))
    live = [attempt for attempt in attempts if attempt.live and attempt.jobset]
    if not live:
        return step
    name, profile = _profile(observation)
    used = _used(observation, attempts, profile)
    running = any(attempt.running for attempt in live)
    step = replace(step, used=used, state=replace(state, running=running))
    limits = _limits(observation, name, profile, used)
    stops = [
        (attempt, why)
        for attempt in live
        if attempt.jobset and stoppable(attempt.jobset) and (why := stop_of(limits, attempt))
    ]
    if not stops:
        return step
    records = {
        attempt.key: _noted(attempt, why.record, observation, profile) for attempt, why in stops if why.record
    }
    ended = {attempt.key.jobset for attempt, _ in stops}
    requested = requested_stop(observation.job["spec"])
    return replace(
        step,
        action=stop(
            [jobset for jobset in observation.jobsets if jobset.key and jobset.key.jobset in ended],
            status_first=True,
        ),
        pending=tuple((records | dict(confirmed_records(observation))).items()),
        summary=list(records.values())[-1].message if records and not requested else step.summary,
    )


def _limits(observation: Observation, name: str, profile: Object, used: Usage) -> Limits:
    """Returns the limits in the present spec and profile; if the profile is deleted, too, those in the status."""
    spec = merge(profile.get("defaults") or {}, observation.job["spec"])
    deadline, month = _number(spec.get("activeDeadlineSeconds")), monthly_limit(observation, used)
    namespace, contact = observation.job["metadata"]["namespace"], whom_to_ask(profile.get("owner"))
    return Limits(
        observation=observation,
        seconds=used.seconds,
        active=None if deadline is None else int(deadline),
        spent=exhausted(_ceilings(observation.status, spec, name, profile, used))
        or (month_exhausted(month, namespace, contact) if month and month.exhausted else None),
    )


def _noted(attempt: Attempt, stop: Failure, observation: Observation, profile: Object) -> Failure:
    """Returns the record including what nothing else shows once JobSet and pods are deleted."""
    seen: dict[str, Any] = {"seconds": run_seconds(attempt, observation.now) or None}
    if attempt.key.stage.on_tpu:
        price = _price(attempt, observation, profile)
        seen |= {"chips": _chips(attempt), "chip_hour_price": price}
    return stop.model_copy(update=seen | recorded_waits(attempt, observation.now))


def _profile(observation: Observation) -> tuple[str, Object]:
    """Returns name and present spec of the profile that admitted the job; empty if it is deleted."""
    resolved = observation.status.resolved
    name = resolved.profile.name if resolved and resolved.profile else None
    named = (each["spec"] for each in observation.profiles if each["metadata"]["name"] == name)
    return str(name), next(named, {})


def _ceilings(
    status: FineTuneJobStatus, spec: Object, name: str, profile: Object, used: Usage
) -> Iterator[tuple[SpendingLimit, float]]:
    """Yields each limit with the amount that counts towards it."""
    if not profile and lookup(spec, "budget.maxCost") is None:
        # The profile is deleted, too: its limit is the sum of the used and the remaining chip hours in the status.
        counted, left = (
            (_number(status.cost.chip_hours), _number(status.cost.budget_remaining))
            if status.cost
            else (None, None)
        )
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
    elapsed, reported = observation.status.active_time, observation.status.cost
    as_of = elapsed.as_of if elapsed else None
    seconds = float(elapsed.seconds) if elapsed else 0.0
    hours = (_number(reported.chip_hours) or 0.0) if reported else 0.0
    cost = (_number(reported.amount) or 0.0) if reported else 0.0
    for attempt in attempts:
        length = (
            run_seconds_since(attempt, as_of, observation.now)
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
    return attempt.jobset.chips or 0


def _price(attempt: Attempt, observation: Observation, profile: Object) -> float | None:
    """Of a chip hour: as the profile says of the JobSet's flavor, else what the status' hours have cost."""
    flavors = terms(profile.get("flavors", ()))
    found = flavors.get(attempt.jobset.flavor or "") if attempt.jobset else None
    if found and found.chip_hour_price is not None:
        return found.chip_hour_price
    cost = observation.status.cost
    hours, amount = (_number(cost.chip_hours), _number(cost.amount)) if cost else (None, None)
    return amount / hours if hours and amount is not None else None


def _number(value: object) -> float | None:
    """None where the object, which may be invalid, holds none."""
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) else None
