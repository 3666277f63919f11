"""Time limits: of the job's active time, of waiting for nodes, of starting up, of a training step, and of a stage
without steps."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, Progress, Stage
from finetune_operator.api import ConditionStatus, ConditionType
from finetune_operator.api.timestamps import after, stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.capacity import no_capacity
from finetune_operator.lifecycle.attempts.disruption import PREEMPTED, disruption
from finetune_operator.lifecycle.children.pod_blocker import lacks_input, pod_blocker
from finetune_operator.lifecycle.children.pods import first_start, last_start, oldest_wait, running_span
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning import Plan

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDeadlines:
    """Limits of a live attempt: how long it may wait for nodes, and how long it may report nothing."""

    attempt: Attempt
    plan: Plan
    observation: Observation

    @property
    def overdue(self) -> Failure | None:
        """The record of the attempt if it has exceeded a limit and has to be ended."""
        limit = self._limit
        if limit is None or self._left(*limit) >= 0:
            return None
        if self._in_vain_since is None:
            return self._silent(*limit)
        return self._not_started() or no_capacity(self.attempt, self.plan)

    @property
    def next_due(self) -> float | None:
        """Seconds until the attempt has waited for nodes, or reported nothing, for too long.

        None if no limit applies, and if the limit has passed without effect because the run folder cannot be read.
        """
        limit = self._limit
        left = self._left(*limit) if limit else -1.0
        return None if left < 0 else left + 1.0

    @property
    def _limit(self) -> tuple[datetime, int] | None:
        """The limit that applies, as a time since when and seconds; None if none does."""
        since = self._in_vain_since
        return (since, self.plan.limits.pre_running) if since else self._silence

    def _left(self, since: datetime, seconds: int) -> float:
        return seconds - (self.observation.now - since).total_seconds()

    @property
    def _in_vain_since(self) -> datetime | None:
        """When the wait that ``preRunningDeadlineSeconds`` limits began; None if the attempt does not wait.

        If pods replace each other repeatedly, it begins when the limit without progress has passed.
        """
        since, last = waiting_since(self.attempt), self._patience
        return min(since, last) if since and last else since

    @property
    def _patience(self) -> datetime | None:
        """When the limit without progress ends for an attempt that has run, whether pods are missing or not.

        Counted from its last step, or from its first process. None if the attempt has not run.
        """
        progress = self.attempt.progress
        if progress and self.attempt.stepped:
            return after(self._heard(progress.updated), self.plan.limits.no_step)
        first = first_start(self.attempt.pods)
        if first is None:
            return None
        return after(self._heard(max(first, self.attempt.resumed_at or first)), self._most_silence)

    @property
    def _silence(self) -> tuple[datetime, int] | None:
        """Since when an attempt that has run reports nothing, and the limit in seconds; None if no limit applies.

        While the object store is unavailable the trainer cannot write either, so the time counts from the store's
        return at the earliest. While a pod replaces another one there is nothing to report either: the time counts from
        that pod's start, unless pods replace each other repeatedly.
        """
        attempt, pre_running = self.attempt, self.plan.limits.pre_running
        if not attempt.running and not attempt.may_run:
            return None
        if moved := self._last_step:
            return self._heard(moved.updated), self.plan.limits.no_step
        begun = last_start(attempt.pods)
        if begun is None and not attempt.pods and attempt.unsuspended_at:
            # The latest possible start of an attempt whose pods are gone.
            begun = after(attempt.unsuspended_at, pre_running)
        if begun is None:
            return None
        if last := self._patience:
            begun = min(begun, after(last, pre_running))
        return self._heard(begun), self._most_silence

    def _heard(self, moved: datetime) -> datetime:
        """Returns from when on the time without reports counts: not before the run folder became readable again, since
        records before that may be missing.

        Repeated outages of the store postpone it no longer than ``_LONGEST_OUTAGE``. What counts while the folder is
        unreadable is what the pods show.
        """
        folder, now = self.observation.folder, self.observation.now
        known = self.observation.status.condition(ConditionType.RUN_FOLDER_READABLE)
        if folder.unreadable or (known is None and folder.progress_unknown is None):
            return moved
        reads = known is not None and known.status is ConditionStatus.TRUE and folder.progress_unknown is None
        since = known.last_transition_time if known and reads else now
        return max(moved, min(since, after(moved, _LONGEST_OUTAGE)))

    @property
    def _most_silence(self) -> int:
        """The limit without reports, in seconds from the start of the processes."""
        limits = self.plan.limits
        by_stage = {Stage.TRAIN: limits.startup, Stage.EVALUATE: limits.evaluate}
        return by_stage.get(self.attempt.key.stage, limits.cpu_stage)

    @property
    def _last_step(self) -> Progress | None:
        """The progress of the present processes; None before their first step: one of before an eviction or a replaced
        pod shows nothing."""
        begun, progress = last_start(self.attempt.pods), self.attempt.progress
        fresh = progress is not None and (begun is None or progress.updated >= begun)
        return progress if fresh and self.attempt.stepped else None

    def _not_started(self) -> Failure | None:
        """Returns the record of an attempt whose pods are all scheduled but not started; None for any other."""
        attempt, plan = self.attempt, self.plan
        waiting = [pod for pod in attempt.pods if not pod.started]
        found = pod_blocker(waiting)
        if found is None or not all(pod.placed and not lacks_input(pod) for pod in waiting):
            return None
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=POD_NOT_STARTED,
            message=f"{attempt.key.stage} has nodes, and its pods were not started in the {plan.limits.pre_running} s "
            f"of spec.preRunningDeadlineSeconds. Last: {found.message.rstrip('.')}."[:1024],
            fix="Ask the platform team what keeps the node from starting it: while the pod exists, kubectl describe "
            f"pod {found.pod} shows it.",
        )

    def _silent(self, since: datetime, limit: int) -> Failure:
        """Returns the record of an attempt that has run and reported nothing for ``limit`` seconds.

        It applies whether pods are missing or not.
        """
        attempt, progress, stage = self.attempt, self._last_step, self.attempt.key.stage
        taken = (
            disruption(attempt, None, ended=since, now=self.observation.now) if stage is Stage.TRAIN else None
        )
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
        if progress:
            return Failure(
                code=ExitCode.UNAVAILABLE,
                reason=HUNG,
                message=f"Training hangs: step {progress.step} of {progress.total_steps} was completed at "
                f"{stamp(progress.updated)}, and no other in the {limit} s of spec.hangPolicy.noStepSeconds since.",
                fix="Training resumes from the last checkpoint. If steps take that long, raise "
                "spec.hangPolicy.noStepSeconds.",
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
            fix="The stage is retried. If it takes that long, raise spec.hangPolicy.stageSeconds.",
        )


def waiting_since(attempt: Attempt) -> datetime | None:
    """Returns when the attempt began to wait for nodes, or for its pods to be started there; None if it does not wait.

    If pods are missing that have run since the JobSet was resumed or restarted, they were deleted, and JobSet restarts
    all pods; a pod that replaces another one waits from its own creation. Neither waiting for quota nor a JobSet that
    another client has suspended counts.
    """
    if attempt.running or not attempt.may_run:
        return None
    waiting = [pod for pod in attempt.pods if not pod.started]
    ran = attempt.files is not None or first_start(attempt.pods) is not None or attempt.stepped
    if waiting and not attempt.key.stage.on_tpu and all(lacks_input(pod) for pod in waiting):
        # The input is missing on every node, and waiting for it on CPU costs nothing.
        return None
    if ran:
        return oldest_wait(waiting)
    since = oldest_wait(waiting) or attempt.unsuspended_at
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


def interrupted(attempt: Attempt) -> bool:
    """Whether the attempt has run and pods are missing, so that JobSet is about to restart all of them."""
    if attempt.running or not attempt.may_run or waiting_since(attempt) is not None:
        return False
    # Records of an earlier run show nothing about the current one.
    here = attempt.files is not None and attempt.files == attempt.written
    return attempt.stepped or first_start(attempt.pods) is not None or here


def recovering(attempt: Attempt) -> bool:
    """Whether the attempt has run, and pods are missing or not started."""
    return not attempt.running and (attempt.stepped or interrupted(attempt))
