"""Time limits: of the job's active time, of waiting for nodes, of starting up, of a training step, and of a stage
without steps."""

from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, Progress, Stage
from finetune_operator.api.timestamps import after, stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.capacity import no_capacity
from finetune_operator.lifecycle.attempts.disruption import PREEMPTED, disruption
from finetune_operator.lifecycle.children.pod_blocker import lacks_input, pod_blocker
from finetune_operator.lifecycle.children.pods import first_start, last_start, oldest_wait, running_span
from finetune_operator.planning import Plan
from finetune_operator.planning.plan import TimeLimits

#: Reasons. If the operator ends an attempt, it first writes a record with one of them.
DEADLINE_EXCEEDED = "DeadlineExceeded"
STARTUP_TIMEOUT = "StartupTimeout"
HUNG = "Hung"
STAGE_TIMEOUT = "StageTimeout"
PODS_MISSING = "PodsMissing"
POD_NOT_STARTED = "PodNotStarted"

#: Those that no later record of the trainer changes.
DETERMINED = (HUNG, STARTUP_TIMEOUT, STAGE_TIMEOUT, PODS_MISSING, POD_NOT_STARTED)

#: Reasons for ending a training that completes no step, as its progress record shows.
STANDING_STILL = (HUNG, STARTUP_TIMEOUT, PREEMPTED)

#: Seconds between two observations of an attempt that JobSet is about to restart.
INTERRUPTED_LOOK = 5.0
#: Maximum number of seconds for which an unreadable run folder explains missing progress. A training that cannot save
#: for longer has ended.
_LONGEST_OUTAGE = 6 * 3600


def active_exceeded(seconds: int | None) -> Failure:
    """Returns the failure of a job whose stages have run for ``seconds``, its limit."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=DEADLINE_EXCEEDED,
        message=f"The stages have run for the {seconds} s of spec.activeDeadlineSeconds.",
        fix="Raise spec.activeDeadlineSeconds and spec.retry.generation: training continues from its last checkpoint.",
    )


def overdue(
    attempt: Attempt,
    plan: Plan,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None = None,
) -> Failure | None:
    """Returns the record of a live attempt that has exceeded a limit and has to be ended; None if it has not.

    ``readable_since``: when the run folder became readable again; records before it may be missing. None: it has always
    been readable.
    """
    since = _in_vain_since(attempt, plan.limits, progress, readable_since)
    if since is None:
        return _silent(attempt, plan.limits, progress, now, readable_since)
    if now - since <= timedelta(seconds=plan.limits.pre_running):
        return None
    return _not_started(attempt, plan) or no_capacity(attempt, plan)


def next_due(
    attempt: Attempt,
    limits: TimeLimits,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None,
) -> float | None:
    """Returns the seconds until an attempt has waited for nodes, or reported nothing, for too long.

    None if no limit applies, and if the limit has passed without effect because the run folder cannot be read.
    """
    since = _in_vain_since(attempt, limits, progress, readable_since)
    if since is not None:
        return max(1.0, limits.pre_running - (now - since).total_seconds() + 1.0)
    silence = _silence(attempt, limits, progress, readable_since)
    left = silence[1] - (now - silence[0]).total_seconds() if silence else -1.0
    return None if left < 0 else left + 1.0


def waiting_since(attempt: Attempt, progress: Progress | None) -> datetime | None:
    """Returns when the attempt began to wait for nodes, or for its pods to be started there; None if it does not wait.

    If pods are missing that have run since the JobSet was resumed or restarted, they were deleted, and JobSet restarts
    all pods; a pod that replaces another one waits from its own creation. Neither waiting for quota nor a JobSet that
    another client has suspended counts.
    """
    if attempt.running or not may_run(attempt):
        return None
    waiting = [pod for pod in attempt.pods if not pod.started]
    ran = attempt.files is not None or first_start(attempt.pods) is not None or stepped(attempt, progress)
    if waiting and not attempt.key.stage.on_tpu and all(lacks_input(pod) for pod in waiting):
        # The input is missing on every node, and waiting for it on CPU costs nothing.
        return None
    if ran:
        return oldest_wait(waiting)
    since = oldest_wait(waiting) or unsuspended_at(attempt)
    return after(since, -_waited_before(attempt).total_seconds()) if since else None


def _waited_before(attempt: Attempt) -> timedelta:
    """Returns how long an attempt that never ran has waited in earlier admissions by Kueue."""
    ran = attempt.written is not None or attempt.key.restart > 0
    return timedelta() if ran or attempt.workload is None else attempt.workload.past_execution


def given_up(attempt: Attempt, plan: Plan) -> Failure | None:
    """Returns the record of an attempt without quota whose waits for nodes, over all admissions, exceed the limit; else
    None."""
    limit = timedelta(seconds=plan.limits.pre_running)
    return no_capacity(attempt, plan) if _waited_before(attempt) >= limit else None


def _in_vain_since(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> datetime | None:
    """Returns when the wait that ``preRunningDeadlineSeconds`` limits began; None if the attempt does not wait.

    If pods replace each other repeatedly, it begins when the limit without progress has passed.
    """
    since, last = waiting_since(attempt, progress), _patience(attempt, limits, progress, readable_since)
    return min(since, last) if since and last else since


def _patience(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> datetime | None:
    """Returns when the limit without progress ends for an attempt that has run, whether pods are missing or not.

    Counted from its last step, or from its first process. None if the attempt has not run.
    """
    if progress and stepped(attempt, progress):
        moved, most = progress.updated, limits.no_step
    else:
        first = first_start(attempt.pods)
        resumed = attempt.jobset.resumed_at if attempt.jobset else None
        if first is None:
            return None
        moved, most = max(first, resumed or first), _most_silence(attempt, limits)
    return after(_heard(moved, readable_since), most)


def interrupted(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether the attempt has run and pods are missing, so that JobSet is about to restart all of them."""
    if attempt.running or not may_run(attempt):
        return False
    if waiting_since(attempt, progress) is not None:
        return False
    # Records of an earlier run show nothing about the current one.
    here = attempt.files is not None and attempt.files == attempt.written
    return stepped(attempt, progress) or first_start(attempt.pods) is not None or here


def recovering(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether the attempt has run, and pods are missing or not started."""
    return not attempt.running and (stepped(attempt, progress) or interrupted(attempt, progress))


def _not_started(attempt: Attempt, plan: Plan) -> Failure | None:
    """Returns the record of an attempt whose pods are all scheduled but not started; None for any other."""
    waiting = [pod for pod in attempt.pods if not pod.started]
    found = pod_blocker(waiting)
    if found is None or not all(pod.placed and not lacks_input(pod) for pod in waiting):
        return None
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=POD_NOT_STARTED,
        message=f"{attempt.key.stage} has nodes, and its pods were not started in the {plan.limits.pre_running} s of "
        f"spec.preRunningDeadlineSeconds. Last: {found.message.rstrip('.')}."[:1024],
        fix="Ask the platform team what keeps the node from starting it: while the pod exists, kubectl describe pod "
        f"{found.pod} shows it.",
    )


def may_run(attempt: Attempt) -> bool:
    """Whether the attempt's JobSet may have pods now."""
    jobset = attempt.jobset
    return jobset is not None and not jobset.deleting and not jobset.suspended


def unsuspended_at(attempt: Attempt) -> datetime | None:
    """Returns since when the attempt's pods can be created; None if unknown. A restart inside the JobSet follows the
    attempt before it."""
    jobset = attempt.jobset
    if jobset is None:
        return None
    resumed = jobset.resumed_at
    if attempt.key.restart:
        # If the attempt before has no record yet, the operator is about to write it.
        return max(attempt.follows, resumed) if attempt.follows and resumed else attempt.follows
    return jobset.unsuspended_at(queued=jobset.queue is not None)


def stepped(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether training has completed a step in the attempt's current run."""
    if attempt.key.stage is not Stage.TRAIN or progress is None:
        return False
    resumed = attempt.jobset.resumed_at if attempt.jobset else None
    fresh = resumed is None or progress.updated >= resumed
    earlier = attempt.written and attempt.files and not attempt.files.result and attempt.written.result
    begun = last_start(attempt.pods)
    if earlier and progress.updated <= earlier.finished and (begun is None or progress.updated < begun):
        # A trainer that Kueue stops may report and save after the JobSet was resumed. Its own clock may be fast.
        return False
    return fresh and (progress.attempt, progress.restart) == (attempt.key.number, attempt.key.restart)


def _silent(
    attempt: Attempt,
    limits: TimeLimits,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None,
) -> Failure | None:
    """Returns the record of an attempt that has run and reported nothing for too long; None for any other.

    It applies whether pods are missing or not.
    """
    silence = _silence(attempt, limits, progress, readable_since)
    if silence is None or now - silence[0] <= timedelta(seconds=silence[1]):
        return None
    stage, limit = attempt.key.stage, silence[1]
    taken = disruption(attempt, None, ended=silence[0], now=now) if stage is Stage.TRAIN else None
    if taken:
        return Failure(
            code=ExitCode.STOPPED,
            reason=PREEMPTED,
            message=f"Training has made no progress for {limit} s since: {taken.message}"[:1024],
        )
    if running_span(attempt.pods) is None:
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=PODS_MISSING,
            message=f"{stage} has no pods, and JobSet has not created them again.",
            fix="Check the JobSet's Events, and that the JobSet controller runs.",
        )
    if progress and _steps_in_this_run(attempt, progress):
        return _hung(limits, progress)
    if stage is Stage.TRAIN:
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=STARTUP_TIMEOUT,
            message=f"Training made no step in the {limit} s of spec.hangPolicy.startupSeconds after its pods "
            "had started.",
            fix="If restoring and compiling take that long, raise spec.hangPolicy.startupSeconds.",
        )
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=STAGE_TIMEOUT,
        message=f"{stage} had not ended {limit} s after its pods had started, and spec.hangPolicy.stageSeconds "
        "allows no more.",
        fix="The stage is retried. If it takes that long, raise spec.hangPolicy.stageSeconds.",
    )


def _silence(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> tuple[datetime, int] | None:
    """Returns since when an attempt that has run reports nothing, and the limit in seconds; None if no limit applies.

    While the object store is unavailable the trainer cannot write either, so the time counts from the store's return at
    the earliest. While a pod replaces another one there is nothing to report either: the time counts from that pod's
    start, unless pods replace each other repeatedly.
    """
    if not attempt.running and not may_run(attempt):
        return None
    if progress and _steps_in_this_run(attempt, progress):
        return _heard(progress.updated, readable_since), limits.no_step
    begun = last_start(attempt.pods) or _unseen_start(attempt, limits)
    if begun is None:
        return None
    if last := _patience(attempt, limits, progress, readable_since):
        begun = min(begun, after(last, limits.pre_running))
    return _heard(begun, readable_since), _most_silence(attempt, limits)


def _heard(moved: datetime, readable_since: datetime | None) -> datetime:
    """Returns from when on the time without reports counts.

    Repeated outages of the store postpone it no longer than ``_LONGEST_OUTAGE``.
    """
    return moved if readable_since is None else max(moved, min(readable_since, after(moved, _LONGEST_OUTAGE)))


def _most_silence(attempt: Attempt, limits: TimeLimits) -> int:
    """Returns the limit without reports, in seconds from the start of the processes."""
    by_stage = {Stage.TRAIN: limits.startup, Stage.EVALUATE: limits.evaluate}
    return by_stage.get(attempt.key.stage, limits.cpu_stage)


def _steps_in_this_run(attempt: Attempt, progress: Progress) -> bool:
    """Whether the progress record is of the current run, and not of one before an eviction or a replaced pod."""
    begun = last_start(attempt.pods)
    return stepped(attempt, progress) and (begun is None or progress.updated >= begun)


def _hung(limits: TimeLimits, progress: Progress) -> Failure:
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=HUNG,
        message=f"Training hangs: step {progress.step} of {progress.total_steps} was completed at "
        f"{stamp(progress.updated)}, and no other in the {limits.no_step} s of spec.hangPolicy.noStepSeconds since.",
        fix="Training resumes from the last checkpoint. If steps take that long, raise spec.hangPolicy.noStepSeconds.",
    )


def _unseen_start(attempt: Attempt, limits: TimeLimits) -> datetime | None:
    """Returns the latest possible start of an attempt without pods; None if it has pods, or no pods can be created."""
    begun = unsuspended_at(attempt)
    if attempt.pods or begun is None:
        return None
    return after(begun, limits.pre_running)
