"""A job whose run folder cannot be read. Nothing is created, and nothing that is known is lost.

What the cluster and the job's own status tell is enough to stop: suspension, spec.activeDeadlineSeconds, budgets, and
spec.hangPolicy.blindSeconds act at once. Why an attempt was stopped waits in the status until the run folder can hold
it (:mod:`.pending`). Whether the job has succeeded or failed is decided when the folder can be read again.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import ConditionType, Reason, StagePhase, WaitingReason
from finetune_operator.lifecycle import children, deadlines
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import RUN_FOLDER_UNREADABLE, budget_stop, suspension
from finetune_operator.lifecycle.conclude import conclude, deletion, stoppable
from finetune_operator.lifecycle.conditions import OUTCOME
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.job_state import ForcedSuspension, JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.kueue import queue_status
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.pending import newest_reason, standing, with_pending
from finetune_operator.lifecycle.spending import seconds_left, used_up
from finetune_operator.lifecycle.stages import JobStages, StageState, derive_stages
from finetune_operator.lifecycle.status import moving_parts, pace, usage_is_old
from finetune_operator.lifecycle.times import parse
from finetune_operator.lifecycle.usage import counted, run_seconds
from finetune_operator.lifecycle.wait_times import to_note
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.plan import TimeLimits
from finetune_operator.rendering import jobset_name

#: Seconds; nothing tells the job when the store comes back.
_STORE_LOOK = 5.0
#: What is seen without the run folder; all else stays as it was.
_SEEN = (
    ConditionType.VALID,
    ConditionType.QUOTA_RESERVED,
    ConditionType.RUNNING,
    ConditionType.WITHIN_BUDGET,
    ConditionType.RUN_FOLDER_READABLE,
    ConditionType.SUSPENDED,
    *OUTCOME,
)


def blind_left(observation: Observation, limits: TimeLimits, why: ReadFailure | None) -> float | None:
    """Seconds until a job has run for as long as it may while its run folder alone cannot be read; None: no limit, or
    the folder is not to blame. The condition RunFolderReadable tells since when."""
    if limits.blind is None or why is None or not why.alone:
        return None
    known = _known_readable(observation)
    since = parse(known["lastTransitionTime"]) if known and known["status"] == "False" else observation.now
    return (since + timedelta(seconds=limits.blind) - observation.now).total_seconds()


def readable_since(observation: Observation) -> datetime | None:
    """Of a job whose run folder can be read now: since when. None where the status does not say it."""
    if observation.folder.progress_unknown:
        return observation.now
    known = _known_readable(observation)
    if known is None:
        return None
    return parse(known["lastTransitionTime"]) if known["status"] == "True" else observation.now


def _known_readable(observation: Observation) -> children.Object | None:
    """The job's condition RunFolderReadable, as it was written last."""
    conditions = (observation.job.get("status") or {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == ConditionType.RUN_FOLDER_READABLE), None)


def unseen(limits: TimeLimits, why: ReadFailure) -> Failure:
    """The record that an attempt is stopped because its progress cannot be seen; nothing is charged for it."""
    return Failure(
        code=ExitCode.STOPPED,
        reason=RUN_FOLDER_UNREADABLE,
        message=f"Stopped after the {limits.blind} s of spec.hangPolicy.blindSeconds without knowledge of its "
        f"progress: {why.message}"[:1024],
    )


def halted(why: ReadFailure) -> ForcedSuspension:
    """Why a job is suspended that nobody has suspended."""
    return ForcedSuspension(
        reason=Reason.RUN_FOLDER_UNREADABLE,
        message=f"The progress of the training cannot be seen: {why.message}",
        fix="Put the run folder right: the job then goes on by itself from its last checkpoint.",
    )


def decide_without_run_folder(
    observation: Observation,
    plan: Plan,
    attempts: tuple[Attempt, ...],
    why: ReadFailure,
    refused: Refused | None,
) -> Decision:
    """``attempts``: what JobSets and pods tell of them."""
    live = next((_known(each, observation, plan) for each in reversed(attempts) if each.live), None)
    look = _look(observation, plan, attempts, live)
    held = standing(observation)
    stop, situation = _situation(observation, look, why, newest_reason(held))
    situation = replace(situation, refused=refused, unreadable=why)
    records = held
    if live and stop and live.key not in dict(held):
        seen = counted(live, plan, observation.now) | to_note(live, observation.now)
        records = (*held, (live.key, stop.model_copy(update=seen)))
    decision = conclude(observation, situation, look, _next_look(observation, look, why))
    return replace(
        decision,
        status=with_pending(_kept(observation, look, decision), records),
        deletions=tuple(deletion(each) for each in observation.jobsets if stop and stoppable(each)),
        status_before_deletions=True,
    )


def stopped_by_user(observation: Observation, attempts: tuple[Attempt, ...], decision: Decision) -> Decision:
    """``decision`` about a job that cannot be planned, with what runs stopped where the job is suspended."""
    live = [attempt for attempt in attempts if attempt.live]
    if not observation.job["spec"].get("suspend", False) or not live:
        return decision
    records = {
        attempt.key: suspension().model_copy(
            update={
                "seconds": run_seconds(attempt, observation.now) or None,
                **to_note(attempt, observation.now),
            }
        )
        for attempt in live
    } | dict(standing(observation))
    return replace(
        decision,
        status=with_pending(decision.status, records.items()),
        deletions=tuple(deletion(each) for each in observation.jobsets if stoppable(each)),
        status_before_deletions=True,
    )


def _situation(  # noqa: PLR0911  one per case
    observation: Observation, look: JobStages, why: ReadFailure, stopped_for: str | None
) -> tuple[Failure | None, JobState]:
    """Why the live attempt is stopped, if it is, and how things stand."""
    suspend = bool(observation.job["spec"].get("suspend", False))
    limits, live = look.plan.limits, look.live
    over = used_up(look)
    wait = WaitCause(
        reason=WaitingReason.RETRY, message=f"the artifact store could not be read: {why.message.rstrip('.')}"
    )
    active = JobState(course=JobPhase.ACTIVE, wait=wait, running=live is not None and live.running)
    if live is None:
        if suspend:
            return None, JobState(course=JobPhase.SUSPENDED)
        if stopped_for == RUN_FOLDER_UNREADABLE and why.alone:
            return None, JobState(course=JobPhase.SUSPENDED, over=halted(why))
        if over and not over.fails and _was_suspended(observation, stopped_for):
            return None, JobState(course=JobPhase.SUSPENDED, over=over)
        return None, active
    left = deadlines.active_left(limits, look.used)
    unseen_left = blind_left(observation, limits, why)
    suspending = JobState(course=JobPhase.SUSPENDING, running=live.running)
    if suspend:
        return suspension(), suspending
    if left is not None and left <= 0:
        return deadlines.active_exceeded(limits.active), active
    if over and live.key.stage.on_tpu:
        return budget_stop(over.message), replace(suspending, over=over)
    if unseen_left is not None and unseen_left <= 0:
        return unseen(limits, why), replace(suspending, over=halted(why))
    late = deadlines.overdue(live, look.plan, None, observation.now)
    if late and late.reason == deadlines.STAGE_TIMEOUT:
        # The only silence that the pods alone tell of.
        return late, active
    queue = queue_status(
        live.jobset, live.workload, served=observation.workloads is not None, now=observation.now
    )
    return None, replace(active, queue=queue)


def _was_suspended(observation: Observation, stopped_for: str | None) -> bool:
    """Whether it is the budget that holds the job up: what else would, is not known."""
    conditions = (observation.job.get("status") or {}).get("conditions", ())
    return stopped_for == Reason.BUDGET_EXHAUSTED or any(
        each["type"] == ConditionType.SUSPENDED and each["reason"] == Reason.BUDGET_EXHAUSTED
        for each in conditions
    )


def _look(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...], live: Attempt | None
) -> JobStages:
    """Of the stage that runs, or that the status spoke of last."""
    last = (observation.job.get("status") or {}).get("stage", Stage.PREFLIGHT)
    view = (
        StageState(stage=live.key.stage, phase=StagePhase.RUNNING, attempts=(live,))
        if live
        else StageState(stage=Stage(last), phase=StagePhase.PENDING)
    )
    # Attempts that have ended are judged when their records can be read.
    return replace(derive_stages(observation, plan, attempts, suspend=False), stages=(view,), judged=())


def _known(attempt: Attempt, observation: Observation, plan: Plan) -> Attempt:
    """With the number that the status gave it: without the run folder, those before it cannot be counted."""
    name = jobset_name(plan.job.name, attempt.key.stage, attempt.key.number)
    told = next(
        (
            each
            for each in (observation.job.get("status") or {}).get("stages", ())
            if each.get("jobSet") == name
        ),
        None,
    )
    if told is None or "attempt" not in told:
        return attempt
    return replace(attempt, ordinal=told["attempt"] + attempt.key.restart - told.get("restart", 0))


def _next_look(observation: Observation, look: JobStages, why: ReadFailure) -> float:
    """Seconds."""
    live = look.live
    due = (
        (
            deadlines.active_left(look.plan.limits, look.used),
            seconds_left(look, live) if live.key.stage.on_tpu else None,
            blind_left(observation, look.plan.limits, why),
        )
        if live and not (live.jobset and children.deleting(live.jobset))
        else ()
    )
    regular = pace(observation.live_jobs, _STORE_LOOK)
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _kept(observation: Observation, look: JobStages, decision: Decision) -> dict[str, object]:
    """The status: what was known from the run folder still holds."""
    previous, told = observation.job.get("status") or {}, dict(decision.status)
    if "resolved" not in previous:
        # A count of those that the cluster shows would pass for a count of all.
        return {name: value for name, value in told.items() if name not in ("stages", "attempts")}
    fresh = {each["type"]: each for each in told["conditions"]}
    known = {each["type"]: each for each in previous["conditions"]}
    seen = ("observedGeneration", "phase", "summary", "waiting")
    kept = {
        **{name: value for name, value in previous.items() if name != "waiting"},
        **{name: told[name] for name in seen if name in told},
        "conditions": [
            fresh[kind] if kind in _SEEN else known.get(kind, fresh[kind]) for kind in map(str, ConditionType)
        ],
    }
    if moving_parts(kept) != moving_parts(previous) or usage_is_old(observation, look):
        kept |= {name: told[name] for name in ("activeTime", "cost") if name in told}
    return kept
