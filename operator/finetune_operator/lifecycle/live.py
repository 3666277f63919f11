"""A live attempt: how it goes, and when it is ended."""

from dataclasses import replace

from finetune_contract import ContractUnsupported, Failure, Stage
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle import children, deadlines, stragglers
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import (
    EVICTED,
    budget_stop,
    earlier_run,
    eviction,
    replacement,
    suspension,
)
from finetune_operator.lifecycle.conclude import SAFETY_LOOK, conclude, deleting
from finetune_operator.lifecycle.decision import Decision, DetailRequest
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause, queued
from finetune_operator.lifecycle.kueue import QuotaState, being_evicted, gave_up, queue_status
from finetune_operator.lifecycle.observation import Observation, ReadFailure
from finetune_operator.lifecycle.spending import BudgetExceeded, seconds_left
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.lifecycle.status import pace, urgent_pace
from finetune_operator.lifecycle.unreadable_folder import halted, readable_since, unseen
from finetune_operator.lifecycle.usage import counted, rate_of, uncovered_run
from finetune_operator.lifecycle.wait_times import to_note
from finetune_operator.lifecycle.waiting import NO_PODS_SECONDS, attempt_blocker, input_wait, recovering
from finetune_operator.planning import Refused
from finetune_operator.rendering import CpuPoolTooSmall, claim_of, plan_of, render_jobset, spec_of

#: An attempt that is ending is noted again when it has run for so much longer.
_SAVING_SECONDS = 10.0


def watch(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, refused: Refused | None
) -> Decision:
    """An attempt is alive: say how it goes."""
    attempt = stages.live
    assert attempt is not None, "called for a live attempt"
    if _of_another_plan(stages, attempt):
        return end(
            observation,
            stages,
            attempt,
            replacement("its JobSet was made under another plan than the stored one"),
        )
    if not refused and _edited(stages, attempt):
        return end(
            observation, stages, attempt, replacement("the job has been edited since its JobSet was made")
        )
    queue = queue_status(
        attempt.jobset, attempt.workload, served=observation.workloads is not None, now=observation.now
    )
    if queue and queue.without_quota:
        if over := deadlines.given_up(attempt, stages.plan) or _begins_anew(attempt):
            return end(observation, stages, attempt, over)
        situation = queued(stages.current.stage, queue, refused)
        decision = conclude(observation, situation, stages, _next_look(observation, stages, attempt))
        evicted = _evicted(attempt)
        if evicted:
            return _noted(observation, stages, decision, attempt, evicted)
        return _kept(stages, decision, attempt)
    late = deadlines.overdue(
        attempt, stages.plan, observation.folder.progress, observation.now, readable_since(observation)
    )
    silent = late and late.reason in deadlines.STANDING_STILL
    if late and not (silent and observation.folder.progress_unknown):
        return _end_late(observation, stages, attempt, late)
    running = attempt.running
    wait = input_wait(stages)
    if queue and queue.standing is QuotaState.CHECKED:
        wait = WaitCause(reason=WaitingReason.CAPACITY, message=queue.message, since=queue.since)
    obstacle = attempt_blocker(observation, stages, attempt, queue)
    if obstacle:
        wait, refused = obstacle.wait, obstacle.refused or refused
    situation = JobState(
        course=JobPhase.STALLED if obstacle and obstacle.stalled else JobPhase.ACTIVE,
        refused=refused,
        running=running,
        starting=not running,
        recovering=not running
        and (recovering(stages) or deadlines.recovering(attempt, observation.folder.progress)),
        wait=wait,
        queue=queue,
    )
    decision = _kept(
        stages, conclude(observation, situation, stages, _next_look(observation, stages, attempt)), attempt
    )
    if obstacle and obstacle.about and observation.events is None:
        return replace(decision, closer=DetailRequest(events=obstacle.about))
    return decision


def suspend(
    observation: Observation, stages: JobStages, attempt: Attempt, refused: Refused | None
) -> Decision:
    """It saves and ends, and nobody is charged."""
    situation = JobState(course=JobPhase.SUSPENDING, refused=refused, running=attempt.running)
    return _noted(observation, stages, deleting(observation, stages, situation), attempt, suspension())


def stop_spending(
    observation: Observation, stages: JobStages, attempt: Attempt, over: BudgetExceeded
) -> Decision:
    """It saves and ends, and nobody is charged."""
    situation = JobState(course=JobPhase.SUSPENDING, running=attempt.running, over=over)
    return _noted(
        observation, stages, deleting(observation, stages, situation), attempt, budget_stop(over.message)
    )


def stop_unseen(observation: Observation, stages: JobStages, attempt: Attempt, why: ReadFailure) -> Decision:
    """It saves and ends, and nobody is charged."""
    situation = JobState(course=JobPhase.SUSPENDING, running=attempt.running, over=halted(why))
    return _noted(
        observation,
        stages,
        deleting(observation, stages, situation),
        attempt,
        unseen(stages.plan.limits, why),
    )


def end(observation: Observation, stages: JobStages, attempt: Attempt, why: Failure) -> Decision:
    """It is stopped, and the next one follows."""
    situation = JobState(course=JobPhase.ACTIVE, starting=True, recovering=recovering(stages))
    return _noted(observation, stages, deleting(observation, stages, situation), attempt, why)


def _end_late(observation: Observation, stages: JobStages, attempt: Attempt, late: Failure) -> Decision:
    """Where it stands still, it is asked first which of its hosts does."""
    noted = attempt.files.failure if attempt.files else None
    if noted and noted.reason == late.reason:
        # Judged before; its pods take their time to end.
        return end(observation, stages, attempt, noted)
    mesh = stages.plan.mesh
    stands = late.reason in (deadlines.HUNG, deadlines.STARTUP_TIMEOUT)
    if not stands or stages.plan.pathways is not None or mesh.hosts * mesh.slices == 1:
        return end(observation, stages, attempt, late)
    if observation.hosts is None:
        return replace(
            end(observation, stages, attempt, late), closer=DetailRequest(hosts=mesh.hosts * mesh.slices)
        )
    return end(
        observation, stages, attempt, stragglers.identify_stragglers(late, attempt, observation.hosts, mesh)
    )


def stop(observation: Observation, stages: JobStages, attempt: Attempt, refused: Refused | None) -> Decision:
    """A leftover of a stage that is done or given up."""
    situation = JobState(course=JobPhase.SUSPENDING, refused=refused, running=attempt.running)
    return deleting(observation, stages, situation)


def _next_look(observation: Observation, stages: JobStages, attempt: Attempt) -> float:
    """Seconds. Only training writes to its run folder before it ends, and no watch tells of that."""
    if deadlines.interrupted(attempt, observation.folder.progress):
        regular = urgent_pace(observation.live_jobs, deadlines.INTERRUPTED_LOOK)
    elif attempt.running and attempt.key.stage is Stage.TRAIN:
        regular = pace(observation.live_jobs)
    else:
        regular = pace(observation.live_jobs, SAFETY_LOOK if attempt.pods else NO_PODS_SECONDS)
    due = (
        deadlines.next_due(
            attempt,
            stages.plan.limits,
            observation.folder.progress,
            observation.now,
            readable_since(observation),
        ),
        deadlines.active_left(stages.plan.limits, stages.used),
        seconds_left(stages, attempt) if attempt.key.stage.on_tpu else None,
    )
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _evicted(attempt: Attempt) -> Failure | None:
    """That Kueue has ended a run of it: should somebody delete its JobSet now, nobody else could tell."""
    condition = being_evicted(attempt.workload)
    noted = attempt.files.failure if attempt.files else None
    if condition is None or attempt.files is None or (noted and noted.reason != EVICTED):
        return None
    return eviction(attempt, condition)


def _begins_anew(attempt: Attempt) -> Failure | None:
    """The record of an attempt that has run, and then waited for nodes longer than Kueue lets it. It loses its place
    anyway. Kueue counts running as waiting, so only what a new JobSet waits can be added up."""
    condition = being_evicted(attempt.workload)
    noted = attempt.files.failure if attempt.files else None
    if condition is None or (noted and noted.reason != EVICTED):
        return None
    ran = attempt.files is not None or attempt.key.restart > 0
    return eviction(attempt, condition) if ran and gave_up(attempt.workload) else None


def _of_another_plan(stages: JobStages, attempt: Attempt) -> bool:
    """Whether the JobSet was made under a plan that is not the job's: image, slice or folder may be others."""
    return attempt.jobset is not None and plan_of(attempt.jobset) not in (None, stages.plan.digest)


def _edited(stages: JobStages, attempt: Attempt) -> bool:
    """JobSet is about to start again what the spec no longer asks for, or waits in a queue for another slice than that,
    and nothing of it has run. Placement is read when an attempt begins.

    Only an edit counts, never what a release renders; a JobSet that does not say what was asked for is left alone."""
    jobset = attempt.jobset
    if jobset is None or attempt.running or children.deleting(jobset):
        return False
    queues = jobset["spec"].get("suspend") and not attempt.pods and attempt.files is None
    if attempt.key.restart == 0 and not queues:
        return False
    if spec_of(jobset) in (None, stages.plan.asked[attempt.key.stage]):
        return False
    try:
        now = render_jobset(stages.plan, attempt.key.stage, attempt.key.number, stages.findings)
    except (Refused, CpuPoolTooSmall, ContractUnsupported):
        return False
    # In a queue it would lose its place: only for another slice.
    return not queues or claim_of(jobset) not in (None, claim_of(now))


def _kept(stages: JobStages, decision: Decision, attempt: Attempt) -> Decision:
    """With a note of how long an earlier run of it has lasted, whose record the present one will replace."""
    found = uncovered_run(attempt)
    if found is None or (attempt.files and attempt.files.failure):
        return decision
    rate = rate_of(attempt, stages.plan)
    held = {"chips": rate.chips, "chip_hour_price": rate.price} if attempt.key.stage.on_tpu else {}
    record = earlier_run(attempt).model_copy(update={**found, **held})
    return replace(decision, records=((attempt.key, record),))


def _noted(
    observation: Observation, stages: JobStages, decision: Decision, attempt: Attempt, why: Failure
) -> Decision:
    """The note comes before the signal: whatever the trainer says last, the attempt ended of that. It holds what cannot
    be seen any more when the JobSet is gone."""
    noted = attempt.files.failure if attempt.files else None
    seen = counted(attempt, stages.plan, observation.now) | to_note(attempt, observation.now)
    record = why.model_copy(update=seen)
    uncounted = dict.fromkeys(seen)
    if (
        noted
        and noted.model_copy(update=uncounted) == why.model_copy(update=uncounted)
        and (record.seconds or 0.0) <= (noted.seconds or 0.0) + _SAVING_SECONDS
    ):
        return decision
    return replace(decision, records=((attempt.key, record),))
