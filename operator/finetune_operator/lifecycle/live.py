"""A live attempt: how it goes, and when it is ended."""

from dataclasses import replace

from finetune_contract import Failure, Stage
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle import children, deadlines
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import replacement, suspension
from finetune_operator.lifecycle.conclude import SAFETY_LOOK, conclude, deleting
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.observed import Observed
from finetune_operator.lifecycle.queueing import Queueing, Standing, queueing
from finetune_operator.lifecycle.situation import Course, Situation, Wait, queued
from finetune_operator.lifecycle.stages import Survey
from finetune_operator.lifecycle.status import pace
from finetune_operator.lifecycle.waits import input_wait, missing_secret, no_pods, recovering
from finetune_operator.planning import Refused
from finetune_operator.rendering import CpuPoolTooSmall, content_of, render_jobset

#: Seconds from a JobSet to its first pod: one where nothing is in the way.
NO_PODS_SECONDS = 20.0


def watch(observed: Observed, look: Survey, refused: Refused | None) -> Decision:
    """An attempt is alive: say how it goes."""
    attempt = look.live
    assert attempt is not None, "called for a live attempt"
    if not refused and _edited(look, attempt):
        return end(observed, look, attempt, replacement())
    queue = queueing(
        attempt.jobset, attempt.workload, served=observed.workloads is not None, now=observed.now
    )
    if queue and queue.without_quota:
        situation = queued(look.current.stage, queue, refused)
        return conclude(observed, situation, look, _next_look(observed, look, attempt))
    late = deadlines.overdue(
        attempt,
        look.plan.limits,
        observed.folder.progress,
        look.plan.placement.capacity,
        observed.now,
    )
    if late:
        return end(observed, look, attempt, late)
    running = attempt.running
    wait = input_wait(look)
    if queue and queue.standing is Standing.CHECKED:
        wait = Wait(reason=WaitingReason.CAPACITY, message=queue.message, since=queue.since)
    obstacle = None if running else children.hindrance(attempt.pods)
    if _makes_no_pods(observed, attempt, queue):
        wait = Wait(reason=WaitingReason.INPUT, message=no_pods(look.plan, attempt))
    if obstacle:
        wait = Wait(reason=obstacle.reason, message=obstacle.message, since=obstacle.since)
        if obstacle.missing_reference:
            refused = missing_secret(look.plan, obstacle.message)
            wait = replace(wait, message=refused.message)
    situation = Situation(
        course=Course.ACTIVE,
        refused=refused,
        running=running,
        starting=not running,
        recovering=not running and recovering(look),
        wait=wait,
        queue=queue,
    )
    return conclude(observed, situation, look, _next_look(observed, look, attempt))


def suspend(observed: Observed, look: Survey, attempt: Attempt, refused: Refused | None) -> Decision:
    """It saves and ends, and nobody is charged."""
    situation = Situation(course=Course.SUSPENDING, refused=refused, running=attempt.running)
    return _noted(deleting(observed, look, situation), attempt, suspension())


def end(observed: Observed, look: Survey, attempt: Attempt, why: Failure) -> Decision:
    """It is stopped, and the next one follows."""
    situation = Situation(course=Course.ACTIVE, starting=True, recovering=recovering(look))
    return _noted(deleting(observed, look, situation), attempt, why)


def stop(observed: Observed, look: Survey, attempt: Attempt, refused: Refused | None) -> Decision:
    """A leftover of a stage that is done or given up."""
    situation = Situation(course=Course.SUSPENDING, refused=refused, running=attempt.running)
    return deleting(observed, look, situation)


def _next_look(observed: Observed, look: Survey, attempt: Attempt) -> float:
    """Seconds. Only training writes to its run folder before it ends, and no watch tells of that."""
    if attempt.running and attempt.key.stage is Stage.TRAIN:
        regular = pace(observed.live_jobs)
    else:
        regular = max(SAFETY_LOOK if attempt.pods else NO_PODS_SECONDS, pace(observed.live_jobs))
    due = (
        deadlines.next_due(attempt, look.plan.limits, observed.now),
        deadlines.active_left(look.plan.limits, look.attempts, observed.now),
    )
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _makes_no_pods(observed: Observed, attempt: Attempt, queue: Queueing | None) -> bool:
    if attempt.jobset is None or attempt.pods or attempt.key.restart or children.deleting(attempt.jobset):
        return False
    let_go = children.let_go_at(attempt.jobset, queued=queue is not None)
    return let_go is not None and (observed.now - let_go).total_seconds() > NO_PODS_SECONDS


def _edited(look: Survey, attempt: Attempt) -> bool:
    """JobSet is about to start again what the spec no longer asks for. Placement is read when an attempt begins."""
    jobset = attempt.jobset
    if jobset is None or attempt.key.restart == 0 or attempt.running or children.deleting(jobset):
        return False
    try:
        now = render_jobset(look.plan, attempt.key.stage, attempt.key.number, look.findings)
    except (Refused, CpuPoolTooSmall):
        return False
    return content_of(now) != content_of(jobset)


def _noted(decision: Decision, attempt: Attempt, why: Failure) -> Decision:
    """The note comes before the signal: whatever the trainer says last, the attempt ended of that."""
    noted = attempt.files.failure if attempt.files else None
    return decision if noted == why else replace(decision, records=((attempt.key, why),))
