"""What takes too long: running altogether, waiting for nodes, starting up, the next step of training, and a stage that
reports no steps."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, Progress, Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.disruption import PREEMPTED, disruption
from finetune_operator.lifecycle.kueue import admitted_before
from finetune_operator.lifecycle.times import after, stamp
from finetune_operator.lifecycle.usage import Usage, terms_of
from finetune_operator.planning import Plan
from finetune_operator.planning.plan import TimeLimits
from finetune_operator.planning.queueing import QUEUE_LABEL

#: Reasons. Of an attempt that the operator ends, its record has them before.
DEADLINE_EXCEEDED = "DeadlineExceeded"
NO_CAPACITY = "NoCapacity"
STARTUP_TIMEOUT = "StartupTimeout"
HUNG = "Hung"
STAGE_TIMEOUT = "StageTimeout"
PODS_MISSING = "PodsMissing"
POD_NOT_STARTED = "PodNotStarted"

#: Of a training that makes no step, which its progress record tells.
STANDING_STILL = (HUNG, STARTUP_TIMEOUT, PREEMPTED)

#: Seconds between two looks at an attempt that JobSet is about to start again.
INTERRUPTED_LOOK = 5.0
_CPU = "CPU"
#: Seconds for which an unreadable run folder excuses silence. A training that cannot save for that long has ended.
_LONGEST_OUTAGE = 6 * 3600


def active_left(limits: TimeLimits, used: Usage) -> float | None:
    """Seconds that the job may still run; None: as long as it likes."""
    return None if limits.active is None else limits.active - used.seconds


def active_exceeded(seconds: int | None) -> Failure:
    """The job's failure: its stages have run for ``seconds``, as long as they may."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=DEADLINE_EXCEEDED,
        message=f"The stages have run for the {seconds} s of spec.activeDeadlineSeconds.",
        fix="Raise spec.activeDeadlineSeconds and spec.retry.generation: training goes on from its last checkpoint.",
    )


def overdue(
    attempt: Attempt,
    plan: Plan,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None = None,
) -> Failure | None:
    """The record of a live attempt that has come to nothing; it is to be ended then. ``readable_since``: when its run
    folder could be read again, before which what it wrote may be missing."""
    since = _in_vain_since(attempt, plan.limits, progress, readable_since)
    if since is None:
        return _silent(attempt, plan.limits, progress, now, readable_since)
    if now - since <= timedelta(seconds=plan.limits.pre_running):
        return None
    return _not_started(attempt, plan) or _no_capacity(attempt, plan)


def next_due(
    attempt: Attempt,
    limits: TimeLimits,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None,
) -> float | None:
    """Seconds until an attempt has waited for nodes, or has been silent, for too long. None where nothing is counted,
    and where its silence has lasted too long and is not believed, as the run folder cannot be read."""
    since = _in_vain_since(attempt, limits, progress, readable_since)
    if since is not None:
        return max(1.0, limits.pre_running - (now - since).total_seconds() + 1.0)
    silence = _silence(attempt, limits, progress, readable_since)
    left = silence[1] - (now - silence[0]).total_seconds() if silence else -1.0
    return None if left < 0 else left + 1.0


def waiting_since(attempt: Attempt, progress: Progress | None) -> datetime | None:
    """When the attempt began to wait for nodes, or for its pods to be started there; None where it does not.

    Where pods of one that has run since its JobSet was let go, or was restarted, are missing, they have vanished, and
    JobSet starts all of them again; a pod that takes the place of another waits from then on. Waiting for quota is
    another thing, and so is a JobSet that somebody has suspended.
    """
    if attempt.running or not _may_run(attempt):
        return None
    waiting = [pod for pod in attempt.pods if not children.pod_started(pod)]
    ran = (
        attempt.files is not None
        or children.first_start(attempt.pods) is not None
        or stepped(attempt, progress)
    )
    if waiting and not attempt.key.stage.on_tpu and all(children.lacks_input(pod) for pod in waiting):
        # No other node has it either, and it costs nothing to wait for it.
        return None
    if ran:
        return children.waiting_since(waiting)
    since = children.waiting_since(waiting) or _let_go(attempt)
    return since - _waited_before(attempt) if since else None


def _waited_before(attempt: Attempt) -> timedelta:
    """What an attempt in a queue that never had a process has waited in earlier admissions."""
    ran = attempt.written is not None or attempt.key.restart > 0
    return timedelta() if ran else admitted_before(attempt.workload)


def given_up(attempt: Attempt, plan: Plan) -> Failure | None:
    """The record of an attempt without quota that has waited for nodes for too long, in all admissions together."""
    limit = timedelta(seconds=plan.limits.pre_running)
    return _no_capacity(attempt, plan) if _waited_before(attempt) >= limit else None


def _in_vain_since(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> datetime | None:
    """The same, of the wait that has a limit: where pods take each other's place again and again, it begins when
    silence would have lasted too long."""
    since, last = waiting_since(attempt, progress), _patience(attempt, limits, progress, readable_since)
    return min(since, last) if since and last else since


def _patience(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> datetime | None:
    """When an attempt that has run would have been silent for too long, had all its pods been there: counted from its
    last step, or from its first process. None of one that has not run."""
    if progress and stepped(attempt, progress):
        moved, most = progress.updated, limits.no_step
    else:
        first = children.first_start(attempt.pods)
        resumed = children.resumed_at(attempt.jobset) if attempt.jobset else None
        if first is None:
            return None
        moved, most = max(first, resumed or first), _most_silence(attempt, limits)
    return after(_heard(moved, readable_since), most)


def interrupted(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether it has run and pods of it are gone, so that JobSet is about to start all of them again."""
    if attempt.running or not _may_run(attempt):
        return False
    if waiting_since(attempt, progress) is not None:
        return False
    # What an earlier run has left tells nothing of this one.
    here = attempt.files is not None and attempt.files == attempt.written
    return stepped(attempt, progress) or children.first_start(attempt.pods) is not None or here


def recovering(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether it has run, and lacks pods."""
    return not attempt.running and (stepped(attempt, progress) or interrupted(attempt, progress))


def passed_capacities(attempts: Sequence[Attempt]) -> frozenset[str]:
    """Kinds that had no nodes since the last attempt at a stage that ran. ``attempts``: those since the last retry by
    hand."""
    return frozenset().union(*(_passed(attempts, stage) for stage in Stage if stage.on_tpu))


def _passed(attempts: Sequence[Attempt], stage: Stage) -> frozenset[str]:
    """Of one stage: a later one may have run before this one was asked for again."""
    passed: set[str] = set()
    for attempt in reversed([each for each in attempts if each.key.stage is stage]):
        noted = attempt.files.failure if attempt.files else None
        if noted and noted.reason == NO_CAPACITY:
            passed.add(noted.saw)
        elif not attempt.live:
            break
    return frozenset(passed)


def no_capacity_left(plan: Plan, stage: Stage, attempts: Sequence[Attempt]) -> Failure | None:
    """The job's failure where the stage has waited for every kind of node that it may have. ``attempts``: as above."""
    kinds = {*plan.placement.capacities} if stage.on_tpu else {_CPU}
    passed = _passed(attempts, stage)
    if not passed or kinds - passed:
        return None
    own = [each.files.failure for each in attempts if each.key.stage is stage and each.files]
    last = next(note for note in reversed(own) if note and note.reason == NO_CAPACITY)
    more = " No other kind is left." if stage.on_tpu else ""
    return last.model_copy(update={"message": f"{last.message}{more}"[:1024]})


def _not_started(attempt: Attempt, plan: Plan) -> Failure | None:
    """The record of an attempt whose pods all have nodes, which do not start them; None where that is not so."""
    waiting = [pod for pod in attempt.pods if not children.pod_started(pod)]
    found = children.pod_blocker(waiting)
    if found is None or not all(
        children.pod_placed(pod) and not children.lacks_input(pod) for pod in waiting
    ):
        return None
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=POD_NOT_STARTED,
        message=f"{attempt.key.stage} has nodes, and its pods were not started in the {plan.limits.pre_running} s of "
        f"spec.preRunningDeadlineSeconds. Last: {found.message.rstrip('.')}."[:1024],
        fix=f"Ask the platform team what keeps the node from starting it: kubectl describe pod {found.pod} tells, as "
        "long as it is there.",
    )


def _no_capacity(attempt: Attempt, plan: Plan) -> Failure:
    stage, seconds = attempt.key.stage, plan.limits.pre_running
    found = children.pod_blocker(attempt.pods)
    last = f" Last: {found.message.rstrip('.')}." if found else ""
    if not stage.on_tpu:
        nodes = ", ".join(f"{key}={value}" for key, value in sorted(plan.cpu_pool.node_selector.items()))
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=NO_CAPACITY,
            message=f"{stage} waited for a CPU node for the {seconds} s of spec.preRunningDeadlineSeconds.{last}"[
                :1024
            ],
            saw=_CPU,
            fix=f"Ask the platform team for CPU nodes that have room{f' ({nodes})' if nodes else ''}, or raise "
            "spec.preRunningDeadlineSeconds; then raise spec.retry.generation."[:512],
        )
    capacity = terms_of(attempt.jobset, plan).capacity if attempt.jobset else plan.placement.capacity
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=NO_CAPACITY,
        message=f"{stage} waited for {capacity} capacity for the {seconds} s of spec.preRunningDeadlineSeconds.{last}"[
            :1024
        ],
        saw=capacity,
        fix="Allow other kinds of capacity or another slice in spec.resources.",
    )


def _may_run(attempt: Attempt) -> bool:
    """Whether its JobSet may have pods now."""
    jobset = attempt.jobset
    return jobset is not None and not children.deleting(jobset) and not children.suspended(jobset)


def _let_go(attempt: Attempt) -> datetime | None:
    """When its pods could be made: a restart inside the JobSet follows the attempt before."""
    jobset = attempt.jobset
    if jobset is None:
        return None
    resumed = children.resumed_at(jobset)
    if attempt.key.restart:
        # Of the attempt before, the record is on its way where there is none.
        return max(attempt.follows, resumed) if attempt.follows and resumed else attempt.follows
    return children.unsuspended_at(jobset, queued=QUEUE_LABEL in jobset["metadata"].get("labels", {}))


def stepped(attempt: Attempt, progress: Progress | None) -> bool:
    """Whether training has made a step in its present run."""
    if attempt.key.stage is not Stage.TRAIN or progress is None:
        return False
    resumed = children.resumed_at(attempt.jobset) if attempt.jobset else None
    fresh = resumed is None or progress.updated >= resumed
    return fresh and (progress.attempt, progress.restart) == (attempt.key.number, attempt.key.restart)


def _silent(
    attempt: Attempt,
    limits: TimeLimits,
    progress: Progress | None,
    now: datetime,
    readable_since: datetime | None,
) -> Failure | None:
    """Of an attempt that has run, whether all its pods are there or not."""
    silence = _silence(attempt, limits, progress, readable_since)
    if silence is None or now - silence[0] <= timedelta(seconds=silence[1]):
        return None
    stage, limit = attempt.key.stage, silence[1]
    taken = disruption(attempt, None, ended=silence[0], now=now) if stage is Stage.TRAIN else None
    if taken:
        return Failure(
            code=ExitCode.STOPPED,
            reason=PREEMPTED,
            message=f"Training has stood still for {limit} s since: {taken.message}"[:1024],
        )
    if progress and _steps_in_this_run(attempt, progress):
        return _hung(limits, progress)
    if children.running_span(attempt.pods) is None:
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=PODS_MISSING,
            message=f"{stage} has no pods any more, and JobSet has not started them again.",
            fix="Look at the JobSet's events and whether its controller runs.",
        )
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
        fix="It is started again. If it takes that long, raise spec.hangPolicy.stageSeconds.",
    )


def _silence(
    attempt: Attempt, limits: TimeLimits, progress: Progress | None, readable_since: datetime | None
) -> tuple[datetime, int] | None:
    """Since when an attempt that has run reports nothing, and for how many seconds it may.

    While the store is away the trainer cannot write either, so silence counts from its return at the earliest. Nor is
    there anything to report while a pod takes the place of another: it counts from that pod's start, unless they take
    each other's place again and again.
    """
    if not attempt.running and not _may_run(attempt):
        return None
    if progress and _steps_in_this_run(attempt, progress):
        return _heard(progress.updated, readable_since), limits.no_step
    begun = children.last_start(attempt.pods) or _unseen_start(attempt, limits)
    if begun is None:
        return None
    if last := _patience(attempt, limits, progress, readable_since):
        begun = min(begun, after(last, limits.pre_running))
    return _heard(begun, readable_since), _most_silence(attempt, limits)


def _heard(moved: datetime, readable_since: datetime | None) -> datetime:
    """From when on silence counts. A store that is away again and again puts it off no longer than one outage may."""
    return moved if readable_since is None else max(moved, min(readable_since, after(moved, _LONGEST_OUTAGE)))


def _most_silence(attempt: Attempt, limits: TimeLimits) -> int:
    """Seconds from its processes' start."""
    by_stage = {Stage.TRAIN: limits.startup, Stage.EVALUATE: limits.evaluate}
    return by_stage.get(attempt.key.stage, limits.cpu_stage)


def _steps_in_this_run(attempt: Attempt, progress: Progress) -> bool:
    """Where a queue has taken the slice away and given it again, or a pod has taken the place of another, the record is
    of before."""
    begun = children.last_start(attempt.pods)
    return stepped(attempt, progress) and (begun is None or progress.updated >= begun)


def _hung(limits: TimeLimits, progress: Progress) -> Failure:
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=HUNG,
        message=f"Training stands still: step {progress.step} of {progress.total_steps} was done at "
        f"{stamp(progress.updated)}, and nothing since for the {limits.no_step} s of "
        "spec.hangPolicy.noStepSeconds.",
        fix="It goes on from the last checkpoint. If steps take that long, raise spec.hangPolicy.noStepSeconds.",
    )


def _unseen_start(attempt: Attempt, limits: TimeLimits) -> datetime | None:
    """The latest moment at which an attempt can have begun to run whose pods are all gone."""
    let_go = _let_go(attempt)
    if attempt.pods or let_go is None:
        return None
    return let_go + timedelta(seconds=limits.pre_running)
