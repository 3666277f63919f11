"""The live attempt: how it proceeds, and when it is stopped."""

from dataclasses import replace

from finetune_contract import ContractUnsupported, Failure, FailureClass
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle.attempts import deadlines, stragglers
from finetune_operator.lifecycle.attempts.attempt import Attempt, progress_of, seconds_beside_others
from finetune_operator.lifecycle.attempts.capacity import RefusedPods, refused_pods, short_job
from finetune_operator.lifecycle.attempts.pod_failures import died
from finetune_operator.lifecycle.attempts.stop_records import (
    EVICTED,
    earlier_run,
    eviction,
    replacement,
    sent_elsewhere,
)
from finetune_operator.lifecycle.attempts.usage import counted, rate_of, uncovered_run
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.kueue import QueueStatus, QuotaState, queue_status
from finetune_operator.lifecycle.decision import (
    SAFETY_SECONDS,
    DetailRequest,
    NextStep,
    ObjectReference,
    Record,
    Wait,
    stop,
)
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause, queued
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.spending import seconds_left
from finetune_operator.lifecycle.stops import Stop
from finetune_operator.lifecycle.unknown_progress import readable_since
from finetune_operator.lifecycle.unremovable import unremovable
from finetune_operator.lifecycle.waiting import NO_PODS_SECONDS, attempt_blocker, input_wait, recovering
from finetune_operator.planning import Refused
from finetune_operator.rendering import CpuPoolTooSmall, render_jobset

#: Seconds by which the running time of an attempt that is being stopped must grow before its record is written again.
_SAVING_SECONDS = 10.0


def watch(observation: Observation, stages: JobStages, refused: Refused | None) -> NextStep:
    """Reports how the live attempt proceeds, or stops it."""
    attempt = stages.live
    assert attempt is not None, "called for a live attempt"
    if unfit := _unfit(stages, attempt, refused):
        return end(observation, stages, attempt, unfit)
    queue = queue_status(
        attempt.jobset, attempt.workload, served=observation.workloads is not None, now=observation.now
    )
    if queue and queue.without_quota:
        if over := deadlines.given_up(attempt, stages.plan) or _begins_anew(attempt):
            return end(observation, stages, attempt, over)
        evicted = _evicted(attempt)
        return NextStep(
            action=Wait(
                records=_record(observation, stages, attempt, evicted)
                if evicted
                else _earlier(stages, attempt)
            ),
            state=queued(stages.plan, stages.current.stage, queue, refused),
            stages=stages,
            requeue_after=_requeue_after(observation, stages, attempt),
        )
    return _watch_pods(observation, stages, attempt, queue, refused)


def _watch_pods(
    observation: Observation,
    stages: JobStages,
    attempt: Attempt,
    queue: QueueStatus | None,
    refused: Refused | None,
) -> NextStep:
    """Reports on an attempt that may have pods, or stops it."""
    short = short_job(attempt, stages.plan, observation)
    if short and observation.events is None:
        # Only Events show whether pods are refused, or come late.
        known = _watch_pods(replace(observation, events=()), stages, attempt, queue, refused)
        return replace(known, details=DetailRequest(events=ObjectReference(kind="Job", name=short)))
    refusal = refused_pods(attempt, stages.plan, observation)
    late = _deadlines(observation, stages, attempt).overdue
    if refusal and refusal.until <= observation.now:
        late = refusal.record
    if seconds_beside_others(attempt, observation.now) == 0:
        late = attempt.recorded or died(attempt) or late
    silent = late and late.reason in deadlines.STANDING_STILL
    if late and not (silent and observation.folder.progress_unknown):
        return _end_late(observation, stages, attempt, late)
    running = attempt.running
    wait = input_wait(stages)
    if queue and queue.quota_state is QuotaState.CHECKED:
        wait = WaitCause(reason=WaitingReason.CAPACITY, message=queue.message, since=queue.since)
    obstacle = attempt_blocker(observation, stages, attempt, queue)
    kept = unremovable(observation, attempt)
    if kept:
        wait, running = kept, False
    elif obstacle:
        wait, refused = obstacle.wait, obstacle.refused or refused
    state = JobState(
        phase=JobPhase.STALLED if obstacle and obstacle.stalled else JobPhase.ACTIVE,
        refused=refused,
        running=running,
        recovering=not running
        and (
            recovering(stages)
            or (refusal is None and deadlines.recovering(attempt, observation.folder.progress))
        ),
        wait=wait,
        stuck=kept is not None,
        queue=queue,
    )
    about = obstacle.about if obstacle and observation.events is None else None
    return NextStep(
        action=Wait(records=_earlier(stages, attempt) or _seen_failing(observation, stages, attempt)),
        state=state,
        stages=stages,
        requeue_after=_requeue_after(observation, stages, attempt, refusal),
        details=DetailRequest(events=about) if about else None,
    )


def carry_out(
    observation: Observation, stages: JobStages, attempt: Attempt, refused: Refused | None, stop: Stop
) -> NextStep:
    """Stops the attempt: it saves and ends."""
    goes_on = stop.phase is JobPhase.ACTIVE
    state = JobState(
        phase=stop.phase,
        refused=refused,
        running=attempt.running and not goes_on,
        recovering=goes_on and recovering(stages),
        over=stop.over,
    )
    records = _record(observation, stages, attempt, stop.record) if stop.record else ()
    return _stop(observation, stages, state, records)


def stop_over(
    observation: Observation, stages: JobStages, refused: Refused | None, why: Failure | None
) -> NextStep:
    """Deletes the JobSet of an attempt that is over, whose end is already classified. ``why``: the stop that the job's
    user requests; None: the job may run."""
    attempt, phase = stages.leftover, JobPhase.ACTIVE
    assert attempt is not None, "called for an attempt that is over"
    if why:
        phase = Stop(record=why).phase
    others = {each.name for pod in attempt.pods for each in pod.containers if each.state.terminated is None}
    running = f", in which other containers still run: {', '.join(sorted(others)[:5])}" if others else ""
    message = f"the trainer of {attempt.key.stage} has ended, and its pods are deleted{running}."
    wait = WaitCause(reason=WaitingReason.POD, message=message)
    return _stop(observation, stages, JobState(phase=phase, refused=refused, wait=wait))


def end(observation: Observation, stages: JobStages, attempt: Attempt, why: Failure) -> NextStep:
    """It is stopped, and the next attempt follows."""
    return carry_out(observation, stages, attempt, None, Stop(record=why))


def _end_late(observation: Observation, stages: JobStages, attempt: Attempt, late: Failure) -> NextStep:
    """Stops an attempt that is overdue. If it makes no progress, the progress of its hosts is read first, to name the
    one that hangs."""
    recorded = attempt.recorded
    if recorded and recorded.reason == late.reason:
        # Classified before; its pods take their time to end.
        return end(observation, stages, attempt, recorded)
    mesh = stages.plan.mesh
    stands = late.reason in (deadlines.HUNG, deadlines.STARTUP_TIMEOUT)
    if not stands or stages.plan.pathways is not None or mesh.hosts * mesh.slices == 1:
        return end(observation, stages, attempt, late)
    if observation.hosts is None:
        details = DetailRequest(hosts=mesh.hosts * mesh.slices)
        return replace(end(observation, stages, attempt, late), details=details)
    return end(
        observation, stages, attempt, stragglers.identify_stragglers(late, attempt, observation.hosts, mesh)
    )


def _stop(
    observation: Observation, stages: JobStages, state: JobState, records: tuple[Record, ...] = ()
) -> NextStep:
    """Deletes every JobSet that may still run, after the records."""
    attempt = stages.live or stages.leftover
    if attempt and (kept := unremovable(observation, attempt)):
        state = replace(state, wait=kept, stuck=True, running=False)
    return NextStep(
        action=stop(observation.jobsets, records), state=state, stages=stages, requeue_after=SAFETY_SECONDS
    )


def _deadlines(observation: Observation, stages: JobStages, attempt: Attempt) -> deadlines.AttemptDeadlines:
    return deadlines.AttemptDeadlines(
        attempt=attempt,
        plan=stages.plan,
        progress=observation.folder.progress,
        now=observation.now,
        readable_since=readable_since(observation),
    )


def _requeue_after(
    observation: Observation, stages: JobStages, attempt: Attempt, refusal: RefusedPods | None = None
) -> float:
    """Seconds. A running stage reports its progress in the run folder, and no watch reports that."""
    if deadlines.interrupted(attempt, observation.folder.progress):
        regular = observation.urgent_pace(deadlines.INTERRUPTED_LOOK)
    elif attempt.running:
        regular = observation.pace() - observation.folder.progress_age
    else:
        regular = observation.pace(SAFETY_SECONDS if attempt.pods else NO_PODS_SECONDS)
    due = (
        _deadlines(observation, stages, attempt).next_due,
        deadlines.active_left(stages.plan.limits, stages.used),
        seconds_left(stages, attempt),
        seconds_beside_others(attempt, observation.now),
        (refusal.until - observation.now).total_seconds() if refusal else None,
    )
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _evicted(attempt: Attempt) -> Failure | None:
    """Returns the record that Kueue has evicted a run of the attempt. Nothing else shows this once the JobSet is
    deleted."""
    condition = attempt.workload.evicted if attempt.workload else None
    recorded = attempt.recorded
    if condition is None or attempt.files is None or (recorded and recorded.reason != EVICTED):
        return None
    return eviction(attempt, condition)


def _begins_anew(attempt: Attempt) -> Failure | None:
    """Returns the record of an attempt that has run and was then evicted because it waited too long for nodes.

    It loses its place in the queue anyway. Kueue counts running as waiting, so only the waiting time of a new JobSet
    can be added up.
    """
    workload = attempt.workload
    condition = workload.evicted if workload else None
    recorded = attempt.recorded
    if workload is None or condition is None or (recorded and recorded.reason != EVICTED):
        return None
    ran = attempt.files is not None or attempt.key.restart > 0
    return eviction(attempt, condition) if ran and workload.pods_not_ready_in_time else None


def _unfit(stages: JobStages, attempt: Attempt, refused: Refused | None) -> Failure | None:
    """Returns why the attempt's JobSet is not one that the operator would create and observe now; None if it is."""
    if _of_another_plan(stages, attempt):
        return replacement("its JobSet was created from another plan than the stored one")
    if not refused and _edited(stages, attempt):
        return replacement("the job was edited after its JobSet was created")
    return sent_elsewhere(attempt)


def _of_another_plan(stages: JobStages, attempt: Attempt) -> bool:
    """Returns whether the JobSet was made under another plan than the job's: its image, slice or folder may differ."""
    return attempt.jobset is not None and attempt.jobset.plan_digest != stages.plan.digest


def _edited(stages: JobStages, attempt: Attempt) -> bool:
    """Returns whether an edit of the spec has made the JobSet outdated while nothing of it runs: it is about to
    restart, or waits in a queue for another slice. A running attempt keeps the placement with which it began.

    Only an edit counts, not a difference between releases. A JobSet that does not record its spec is left alone.
    """
    jobset = attempt.jobset
    if jobset is None or attempt.running or jobset.deleting:
        return False
    waits_in_queue = jobset.suspended and not attempt.pods and attempt.files is None
    if attempt.key.restart == 0 and not waits_in_queue:
        return False
    if jobset.spec_digest in (None, stages.plan.spec_digests[attempt.key.stage]):
        return False
    try:
        wanted = render_jobset(stages.plan, attempt.key.stage, attempt.key.number, stages.findings)
    except (Refused, CpuPoolTooSmall, ContractUnsupported):
        return False
    # Replacing a JobSet in a queue loses its place there, so only another slice justifies it.
    return not waits_in_queue or jobset.claim not in (None, JobSet.parse(wanted).claim)


def _earlier(stages: JobStages, attempt: Attempt) -> tuple[Record, ...]:
    """The record of how long an earlier run of the attempt lasted; the present run will replace that run's own."""
    found = uncovered_run(attempt)
    if found is None or (attempt.files and attempt.files.failure):
        return ()
    rate = rate_of(attempt, stages.plan)
    held = {"chips": rate.chips, "chip_hour_price": rate.price} if attempt.key.stage.on_tpu else {}
    return ((attempt.key, earlier_run(attempt).model_copy(update={**found, **held})),)


def _seen_failing(observation: Observation, stages: JobStages, attempt: Attempt) -> tuple[Record, ...]:
    """The record of a process that was seen to fail by the job's own fault, and left none.

    Nothing else shows it if another client deletes pods or JobSet before the JobSet is seen to have ended.
    """
    if attempt.files and (attempt.files.failure or attempt.files.result):
        return ()
    failure = died(attempt)
    if failure is None or failure.failure_class not in (FailureClass.USER, FailureClass.PLATFORM):
        return ()
    return _record(observation, stages, attempt, failure)


def _record(
    observation: Observation, stages: JobStages, attempt: Attempt, why: Failure
) -> tuple[Record, ...]:
    """The record of why the attempt is stopped, unless the run folder has it.

    It is written before the signal, so that it holds whatever the trainer writes last, and it contains what cannot be
    observed any more once the JobSet is gone.
    """
    recorded = attempt.recorded
    progress = progress_of(attempt, observation.folder.progress)
    seen = {
        **counted(attempt, stages.plan, observation.now),
        "start_step": progress.start_step if progress else None,
        "step": progress.step if progress else None,
    }
    record = why.model_copy(update=seen)
    uncounted = dict.fromkeys(seen)
    if (
        recorded
        and recorded.model_copy(update=uncounted) == why.model_copy(update=uncounted)
        and (record.seconds or 0.0) <= (recorded.seconds or 0.0) + _SAVING_SECONDS
    ):
        return ()
    return ((attempt.key, record),)
