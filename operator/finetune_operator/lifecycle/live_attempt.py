"""The live attempt: how it proceeds, and when it is stopped."""

from dataclasses import dataclass, replace
from functools import cached_property

from finetune_contract import ContractUnsupported, Failure, FailureClass
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle.attempts import deadlines, stragglers
from finetune_operator.lifecycle.attempts.attempt import Attempt, seconds_beside_others
from finetune_operator.lifecycle.attempts.capacity import RefusedPods, refused_pods, short_job
from finetune_operator.lifecycle.attempts.deadlines import AttemptDeadlines
from finetune_operator.lifecycle.attempts.pending_records import Record
from finetune_operator.lifecycle.attempts.pod_failures import died
from finetune_operator.lifecycle.attempts.stop_records import (
    EVICTED,
    earlier_run,
    eviction,
    replacement,
    sent_elsewhere,
)
from finetune_operator.lifecycle.attempts.usage import counted, uncovered_run
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.kueue import QueueStatus, QuotaState, queue_status
from finetune_operator.lifecycle.decision import (
    SAFETY_SECONDS,
    DetailRequest,
    NextStep,
    ObjectReference,
    Wait,
    stop,
)
from finetune_operator.lifecycle.facts import Facts
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause, queued
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stops import Stop, seconds_to_stop
from finetune_operator.lifecycle.unremovable import unremovable
from finetune_operator.lifecycle.waiting import NO_PODS_SECONDS, attempt_blocker, input_wait, recovering
from finetune_operator.planning import Refused
from finetune_operator.rendering import CpuPoolTooSmall, render_jobset

#: Seconds by which the running time of an attempt that is being stopped must grow before its record is written again.
_SAVING_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class _Live:
    """The live attempt of a job whose plan is known."""

    facts: Facts
    attempt: Attempt

    @property
    def observation(self) -> Observation:
        return self.facts.observation

    @cached_property
    def queue(self) -> QueueStatus | None:
        served, now = self.observation.workloads is not None, self.observation.now
        return queue_status(self.attempt.jobset, self.attempt.workload, served=served, now=now)

    @cached_property
    def deadlines(self) -> AttemptDeadlines:
        plan = self.facts.planned.plan
        return AttemptDeadlines(attempt=self.attempt, plan=plan, observation=self.observation)

    @cached_property
    def refusal(self) -> RefusedPods | None:
        return refused_pods(self.attempt, self.facts.planned.plan, self.observation)


def watch(facts: Facts, attempt: Attempt) -> NextStep:
    """Reports how the live attempt of a job whose plan and run folder are known proceeds, or stops it."""
    stages, live = facts.planned, _Live(facts=facts, attempt=attempt)
    if unfit := _unfit(stages, attempt, facts.refused):
        return carry_out(facts, attempt, Stop(record=unfit))
    if live.queue and live.queue.without_quota:
        return _watch_queue(live, live.queue)
    late, short = _late(live), short_job(attempt, stages.plan, facts.observation.now)
    step = _end_late(facts, attempt, late) if late else _watch_pods(live)
    if short and facts.observation.events is None:
        # Only Events show whether pods are refused, or come late.
        return replace(step, details=DetailRequest(events=ObjectReference(kind="Job", name=short)))
    return step


def _watch_queue(live: _Live, queue: QueueStatus) -> NextStep:
    """Reports on an attempt without quota, or stops it."""
    facts, attempt, stages = live.facts, live.attempt, live.facts.planned
    evicted = _evicted(attempt)
    if over := deadlines.given_up(attempt, stages.plan) or _begins_anew(attempt, evicted):
        return carry_out(facts, attempt, Stop(record=over))
    seen = _record(facts, attempt, evicted) if evicted and attempt.files else _earlier(facts, attempt)
    state = queued(stages.plan, stages.current.stage, queue)
    return facts.step(Wait(), state, seen, requeue_after=_requeue_after(live))


def _watch_pods(live: _Live) -> NextStep:
    """Reports on an attempt that may have pods."""
    facts, attempt, stages, queue = live.facts, live.attempt, live.facts.planned, live.queue
    running, wait = attempt.running, input_wait(stages)
    if queue and queue.quota_state is QuotaState.CHECKED:
        wait = WaitCause(reason=WaitingReason.CAPACITY, message=queue.message, since=queue.since)
    obstacle = attempt_blocker(live.observation, stages, attempt, queue, live.refusal)
    kept = unremovable(live.observation, attempt)
    if kept:
        wait, running = kept, False
    elif obstacle:
        wait = obstacle.wait
    begins_anew = recovering(stages) or (live.refusal is None and deadlines.recovering(attempt))
    state = JobState(
        phase=JobPhase.STALLED if obstacle and obstacle.stalled else JobPhase.ACTIVE,
        refused=obstacle.refused if obstacle and not kept else None,
        running=running,
        recovering=begins_anew and not running,
        wait=wait,
        stuck=kept is not None,
        queue=queue,
    )
    about = obstacle.about if obstacle and live.observation.events is None else None
    seen = _earlier(facts, attempt) or _seen_failing(facts, attempt)
    step = facts.step(Wait(), state, seen, requeue_after=_requeue_after(live))
    return replace(step, details=DetailRequest(events=about)) if about else step


def watch_unseen(facts: Facts, attempt: Attempt) -> NextStep:
    """Reports on the live attempt of a job whose run folder is unknown, or stops it: the pods alone show when a stage
    without steps takes too long."""
    live = _Live(facts=facts, attempt=attempt)
    late = live.deadlines.overdue
    if late and late.reason == deadlines.STAGE_TIMEOUT:
        return carry_out(facts, attempt, Stop(record=late))
    return facts.step(Wait(), replace(facts.state(), queue=live.queue))


def _late(live: _Live) -> Failure | None:
    """Returns why the attempt has waited, or been silent, for too long; None if it has not."""
    observation, attempt = live.observation, live.attempt
    beside_others = seconds_beside_others(attempt, observation.now) == 0
    if beside_others and (failure := attempt.recorded or died(attempt)):
        return failure
    if live.refusal and live.refusal.until <= observation.now:
        return live.refusal.record
    late = live.deadlines.overdue
    silent = late and late.reason in deadlines.STANDING_STILL
    return None if silent and observation.folder.progress_unknown else late


def carry_out(facts: Facts, attempt: Attempt, stop: Stop) -> NextStep:
    """Stops the attempt: it saves and ends."""
    goes_on = stop.phase is JobPhase.ACTIVE
    records = _record(facts, attempt, stop.record) if stop.record else ()
    if facts.stages is None or (facts.unknown and goes_on):
        return _stop(facts, facts.state(), records)
    state = JobState(
        phase=stop.phase,
        running=attempt.running and not goes_on,
        recovering=goes_on and recovering(facts.stages),
        over=stop.over,
    )
    return _stop(facts, state, records)


def stop_over(facts: Facts, attempt: Attempt) -> NextStep:
    """Deletes the JobSet of an attempt that is over, whose end is already classified."""
    phase = Stop(record=facts.requested).phase if facts.requested else JobPhase.ACTIVE
    others = {each.name for pod in attempt.pods for each in pod.containers if each.state.terminated is None}
    running = f", in which other containers still run: {', '.join(sorted(others)[:5])}" if others else ""
    message = f"the trainer of {attempt.key.stage} has ended, and its pods are deleted{running}."
    wait = WaitCause(reason=WaitingReason.POD, message=message)
    return _stop(facts, JobState(phase=phase, wait=wait))


def _end_late(facts: Facts, attempt: Attempt, late: Failure) -> NextStep:
    """Stops an attempt that is overdue. If it makes no progress, the progress of its hosts is read first, to name the
    one that hangs."""
    observation, stages = facts.observation, facts.planned
    recorded = attempt.recorded
    if recorded and recorded.reason == late.reason:
        # Classified before; its pods take their time to end.
        return carry_out(facts, attempt, Stop(record=recorded))
    mesh = stages.plan.mesh
    step = carry_out(facts, attempt, Stop(record=late))
    stands = late.reason in (deadlines.HUNG, deadlines.STARTUP_TIMEOUT)
    if not stands or stages.plan.pathways is not None or mesh.hosts * mesh.slices == 1:
        return step
    if observation.hosts is None:
        return replace(step, details=DetailRequest(hosts=mesh.hosts * mesh.slices))
    named = stragglers.identify_stragglers(late, attempt, observation.hosts, mesh)
    return carry_out(facts, attempt, Stop(record=named))


def _stop(facts: Facts, state: JobState, records: tuple[Record, ...] = ()) -> NextStep:
    """Deletes every JobSet that may still run, after the records."""
    observation = facts.observation
    attempt = facts.live or facts.planned.leftover
    if attempt and not facts.unknown and (kept := unremovable(observation, attempt)):
        state = replace(state, wait=kept, stuck=True, running=False)
    deletion = stop(observation.jobsets, status_first=facts.unknown)
    return facts.step(deletion, state, records, requeue_after=SAFETY_SECONDS)


def _requeue_after(live: _Live) -> float:
    """Seconds. A running stage reports its progress in the run folder, and no watch reports that."""
    observation, attempt, refusal = live.observation, live.attempt, live.refusal
    if deadlines.interrupted(attempt):
        regular = observation.urgent_pace(deadlines.INTERRUPTED_LOOK)
    elif attempt.running:
        regular = observation.pace() - observation.folder.progress_age
    else:
        regular = observation.pace(SAFETY_SECONDS if attempt.pods else NO_PODS_SECONDS)
    due = (
        live.deadlines.next_due,
        seconds_beside_others(attempt, observation.now),
        (refusal.until - observation.now).total_seconds() if refusal else None,
        *seconds_to_stop(live.facts.limits, live.facts.planned, attempt),
    )
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _evicted(attempt: Attempt) -> Failure | None:
    """Returns the record that Kueue has evicted a run of the attempt. Nothing else shows this once the JobSet is
    deleted."""
    condition = attempt.workload.evicted if attempt.workload else None
    recorded = attempt.recorded
    if condition is None or (recorded and recorded.reason != EVICTED):
        return None
    return eviction(attempt, condition)


def _begins_anew(attempt: Attempt, evicted: Failure | None) -> Failure | None:
    """Returns the record of an attempt that has run and was then evicted because it waited too long for nodes.

    It loses its place in the queue anyway. Kueue counts running as waiting, so only the waiting time of a new JobSet
    can be added up.
    """
    ran = attempt.files is not None or attempt.key.restart > 0
    return evicted if ran and attempt.workload and attempt.workload.pods_not_ready_in_time else None


def _unfit(stages: JobStages, attempt: Attempt, refused: Refused | None) -> Failure | None:
    """Returns why the attempt's JobSet is not one that the operator would create and observe now; None if it is."""
    if attempt.jobset is not None and attempt.jobset.plan_digest != stages.plan.digest:
        # Its image, slice or folder may differ.
        return replacement("its JobSet was created from another plan than the stored one")
    if not refused and _edited(stages, attempt):
        return replacement("the job was edited after its JobSet was created")
    return sent_elsewhere(attempt)


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


def _earlier(facts: Facts, attempt: Attempt) -> tuple[Record, ...]:
    """The record of how long an earlier run of the attempt lasted; the present run will replace that run's own."""
    found = uncovered_run(attempt)
    if found is None or (attempt.files and attempt.files.failure):
        return ()
    if attempt.key.stage.on_tpu:
        found |= facts.rate(attempt).fields
    return ((attempt.key, earlier_run(attempt).model_copy(update=found)),)


def _seen_failing(facts: Facts, attempt: Attempt) -> tuple[Record, ...]:
    """The record of a process that was seen to fail by the job's own fault, and left none.

    Nothing else shows it if another client deletes pods or JobSet before the JobSet is seen to have ended.
    """
    if attempt.files and (attempt.files.failure or attempt.files.result):
        return ()
    failure = died(attempt)
    if failure is None or failure.failure_class not in (FailureClass.USER, FailureClass.PLATFORM):
        return ()
    return _record(facts, attempt, failure)


def _record(facts: Facts, attempt: Attempt, why: Failure) -> tuple[Record, ...]:
    """The record of why the attempt is stopped, unless the run folder has it.

    It is written before the signal, so that it holds whatever the trainer writes last, and it contains what cannot be
    observed any more once the JobSet is gone.
    """
    recorded, progress = attempt.recorded, attempt.progress
    seen = {
        **counted(attempt, facts.rate(attempt), facts.observation.now),
        "start_step": progress.start_step if progress else None,
        "step": progress.step if progress else None,
    }
    record = why.model_copy(update=seen)
    uncounted = dict.fromkeys(seen)
    if (
        facts.stages
        and recorded
        and recorded.model_copy(update=uncounted) == why.model_copy(update=uncounted)
        and (record.seconds or 0.0) <= (recorded.seconds or 0.0) + _SAVING_SECONDS
    ):
        return ()
    return ((attempt.key, record),)
