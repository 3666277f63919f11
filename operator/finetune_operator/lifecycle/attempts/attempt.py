"""The attempts of a job, derived from JobSets, pods and the run folder's listing."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from finetune_contract import Failure, Outcome, Progress, Stage, StageResult
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import last_start
from finetune_operator.lifecycle.children.workload import Workload, newest
from finetune_operator.lifecycle.observation import AttemptFiles, Observation, RetryRecord, TakeoverRecord
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import jobset_name

#: Maximum for one job, over all stages: every decision classifies all of them.
MOST_ATTEMPTS = 1000
#: Seconds for which containers that others have added to a pod may outlive the trainer.
OTHERS_SECONDS = 45


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt with everything observed about it."""

    key: AttemptKey
    jobset_name: str
    """Name of its JobSet, whether that exists or not."""
    ordinal: int
    """Position among the stage's attempts, from 1, which users see; restarts inside JobSets count."""
    jobset: JobSet | None
    pods: tuple[Pod, ...]
    files: AttemptFiles | None
    """Records of the current or last run; None if the trainer has not written any (yet)."""
    written: AttemptFiles | None = None
    """All records, also those of earlier runs of the attempt."""
    follows: datetime | None = None
    """For a restart inside the JobSet: when the attempt before it ended. None if unknown, and for other attempts."""
    restarted: bool = False
    """Whether the JobSet has been restarted since.

    JobSet restarts after a disruption, and after a suspension if a pod's end was counted as its Job's failure.
    """
    ended_by_suspension: bool = False
    """Whether a restart follows, and this was the last run before the JobSet was resumed: the suspension ended it."""
    over: bool = False
    """Whether the trainer has ended, and only containers that others have added keep its pods, see
    :func:`seconds_beside_others`."""
    workload: Workload | None = None
    """Kueue's Workload of the JobSet; None if the JobSet is in no queue, or Kueue has not created a Workload yet."""
    progress: Progress | None = None
    """What the training reports; None if this attempt has reported nothing yet."""

    @property
    def result(self) -> StageResult | None:
        """The trainer's record of the current or last run."""
        return self.files.result if self.files else None

    @property
    def recorded(self) -> Failure | None:
        """The failure record of the current or last run, by the operator or by a process that failed."""
        return self.files.failure if self.files else None

    @property
    def live(self) -> bool:
        """Whether its trainer may still run, so that no other attempt may start."""
        if self.over:
            return False
        jobset_live = self.jobset is not None and not self.restarted and not self.jobset.ended
        return jobset_live or any(pod.live for pod in self.pods)

    @property
    def trainer_ended(self) -> bool:
        """Whether processes have ended and none runs or is about to, of the pods that exist."""
        found = [(pod.live, pod.terminations) for pod in self.pods if pod.runs_trainer]
        return any(ends for _, ends in found) and all(ends or not live for live, ends in found)

    @property
    def running(self) -> bool:
        """Whether all expected pods exist and were started."""
        # JobSet creates the other pods of a slice once the first one has a node.
        expected = self.jobset.pods_expected if self.jobset else 1
        return len(self.pods) >= expected and all(pod.started for pod in self.pods)

    @property
    def may_run(self) -> bool:
        """Whether its JobSet may have pods now."""
        return self.jobset is not None and not self.jobset.deleting and not self.jobset.suspended

    @property
    def resumed_at(self) -> datetime | None:
        """When its JobSet was resumed; None if that is suspended, never was, or is deleted."""
        return self.jobset.resumed_at if self.jobset else None

    @property
    def stepped(self) -> bool:
        """Whether the training has completed a step in the current run."""
        own, jobset = self.progress, self.jobset
        began = jobset and (jobset.resumed_at or jobset.creation_timestamp)
        if own is None or (began and own.updated < began):
            return False
        earlier = self.written.result if self.written and self.files and not self.result else None
        begun = last_start(self.pods)
        # A trainer that Kueue stops may report and save after the JobSet was resumed. Its own clock may be fast.
        late = earlier and own.updated <= earlier.finished and (begun is None or own.updated < begun)
        return not late

    @property
    def unsuspended_at(self) -> datetime | None:
        """Since when its pods can be created; None if unknown. A restart inside the JobSet follows the attempt before
        it."""
        if self.jobset is None:
            return None
        if self.key.restart:
            # If the attempt before has no record yet, the operator is about to write it.
            return max(self.follows, self.resumed_at or self.follows) if self.follows else None
        return self.jobset.unsuspended_at(queued=self.jobset.queue is not None)


def attempts_of(observation: Observation) -> tuple[Attempt, ...]:
    """Returns every attempt, ordered by stage, number and restart."""
    jobsets = {jobset.key.jobset: jobset for jobset in observation.jobsets if jobset.key}
    pods = _pods(observation)
    workloads = _workloads(observation)
    keys, _ = _keys(observation, pods)
    last = {key.jobset: key.restart for key in keys}
    before: Counter[Stage] = Counter()
    found: list[Attempt] = []
    progress = observation.folder.progress
    reports = AttemptKey(Stage.TRAIN, progress.attempt, progress.restart) if progress else None
    for key in keys:
        jobset, files = jobsets.get(key.jobset), observation.folder.attempts.get(key)
        before[key.stage] += 1
        restarted = key.restart < last[key.jobset]
        found.append(
            Attempt(
                key=key,
                jobset_name=jobset_name(observation.job.name, *key.jobset),
                ordinal=before[key.stage],
                jobset=jobset,
                pods=tuple(pods.get(key, ())),
                files=_of_this_run(files, jobset, restarted=restarted),
                written=files,
                follows=_end_before(key, observation),
                restarted=restarted,
                ended_by_suspension=key.restart == last[key.jobset] - 1
                and _before_resumption(files, jobset)
                and not _before_resumption(
                    observation.folder.attempts.get(replace(key, restart=key.restart + 1)), jobset
                ),
                workload=workloads.get(jobset.uid) if jobset else None,
                progress=progress if reports == key else None,
            )
        )
    return tuple(found)


def seconds_beside_others(attempt: Attempt, now: datetime) -> float | None:
    """Returns the seconds until an attempt is ended whose pods, and so whose JobSet, Kubernetes keeps for containers
    that others have added; 0 if it is due. None: nothing has ended, or Kubernetes ends the attempt.

    Once one process has failed, the others get their grace period, since they may save. Once all have ended, the
    attempt is over. Other containers first get a while to end by themselves; a node's clock does not prolong it.
    """
    jobset, ended = attempt.jobset, attempt.trainer_ended
    if jobset is None or attempt.restarted or jobset.ended or jobset.suspended:
        return None
    # What is being deleted ends by itself. What the operator has deleted for this reason stays over.
    kept = any(pod.outlives_trainer and pod.deletion_timestamp is None for pod in attempt.pods)
    ends = [end for pod in attempt.pods if pod.runs_trainer for end in pod.terminations]
    failed = [end for end in ends if end.exit_code]
    whole = ended and len(attempt.pods) >= jobset.pods_expected
    if not (ended if jobset.deleting else kept) or not (failed or whole):
        return None
    since = (max if ended else min)([end.finished_at or now for end in (ends if ended else failed)])
    passed = (now - since).total_seconds()
    # A clock that is a little ahead takes nothing from the others' time.
    return OTHERS_SECONDS - max(0.0, passed) if -OTHERS_SECONDS < passed < OTHERS_SECONDS else 0.0


def too_many(observation: Observation) -> bool:
    """Whether :func:`attempts_of` omits the oldest attempts because there are more than ``MOST_ATTEMPTS``."""
    _, cut = _keys(observation, _pods(observation))
    return cut


def _pods(observation: Observation) -> dict[AttemptKey, list[Pod]]:
    pods: dict[AttemptKey, list[Pod]] = {}
    for pod in observation.pods:
        if pod.key:
            pods.setdefault(pod.key, []).append(pod)
    return pods


def _keys(
    observation: Observation, pods: Mapping[AttemptKey, Sequence[Pod]]
) -> tuple[list[AttemptKey], bool]:
    """Returns the keys of the attempts in order, and whether some were omitted.

    A JobSet has had all restarts up to the newest one that its status or a pod reports. A pod without JobSet and record
    is an attempt only as long as it runs. If there are too many attempts, those that run or have a JobSet take
    precedence, then those with records, then the newest.
    """
    of_jobsets = [jobset.key for jobset in observation.jobsets if jobset.key]
    made = {key.jobset for key in of_jobsets}
    live = [key for key, own in pods.items() if any(pod.live for pod in own)]
    newest = sorted((*of_jobsets, *(key for key in pods if key.jobset in made)), key=_place, reverse=True)
    by_rank = chain(
        sorted(live, key=_place, reverse=True),
        newest,
        sorted(observation.folder.attempts, key=_place, reverse=True),
        (replace(last, restart=each) for last in newest for each in range(last.restart, -1, -1)),
    )
    found: set[AttemptKey] = set()
    for key in by_rank:
        if key not in found and len(found) == MOST_ATTEMPTS:
            return sorted(found, key=_place), True
        found.add(key)
    return sorted(found, key=_place), False


def _place(key: AttemptKey) -> tuple[int, int, int]:
    return key.stage.order, key.number, key.restart


def next_number(
    attempts: Sequence[Attempt],
    stage: Stage,
    takeovers: Sequence[TakeoverRecord] = (),
    foreign_attempts: Collection[AttemptKey] = (),
) -> int:
    """Returns the number of the stage's next attempt.

    ``foreign_attempts``: those in the run folder that are not the job's. Their numbers are skipped as long as others
    are available.
    """
    first = takeovers[-1].first.get(stage, 1) if takeovers else 1
    next_ = max(first, 1 + max((each.key.number for each in attempts if each.key.stage is stage), default=0))
    taken = {key.number for key in foreign_attempts if key.stage is stage}
    return next((number for number in range(next_, MAX_ATTEMPT) if number not in taken), next_)


def since_retry(retry: RetryRecord | None, attempt: Attempt) -> bool:
    """Whether the attempt was created after the last manual retry, and therefore counts. ``retry`` None: no retry."""
    return retry is None or attempt.key.number >= retry.first.get(attempt.key.stage, 1)


def _end_before(key: AttemptKey, observation: Observation) -> datetime | None:
    """Returns when the attempt before this restart ended; None if unknown, and for an attempt that is no restart."""
    if not key.restart:
        return None
    files = observation.folder.attempts.get(replace(key, restart=key.restart - 1))
    result, recorded = (files.result, files.failure) if files else (None, None)
    if recorded and recorded.at and not recorded.written:
        # The record is about one run, which another run may have followed; the attempt's end is not recorded yet.
        return None
    return max(
        (time for time in (result and result.finished, recorded and recorded.written) if time), default=None
    )


def _before_resumption(files: AttemptFiles | None, jobset: JobSet | None) -> bool:
    """Whether the result is that of a run which began before the JobSet's last resumption, and was asked to stop.

    It may end after the resumption, since Kueue can admit the JobSet again while the trainer still saves. The time of
    the resumption is a whole second: a run that began in the same second counts as a later one.
    """
    result = files.result if files else None
    if jobset is None or result is None or result.outcome is not Outcome.STOPPED:
        return False
    resumed = jobset.resumed_at
    return jobset.held or (resumed is not None and result.started < resumed)


def _workloads(observation: Observation) -> dict[str, Workload]:
    """Returns the newest Workload of each JobSet, by the JobSet's uid."""
    found: dict[str, list[Workload]] = {}
    for workload in observation.workloads or ():
        for uid in workload.owner_uids:
            found.setdefault(uid, []).append(workload)
    return {uid: newest(each) for uid, each in found.items()}


def _of_this_run(
    files: AttemptFiles | None, jobset: JobSet | None, *, restarted: bool
) -> AttemptFiles | None:
    """Returns the records without those of earlier runs of the attempt.

    Kueue stops a JobSet by suspending it, which usually fails no Job and counts as no restart. When quota is available
    again, new pods run the same attempt.
    """
    resumed = jobset.resumed_at if jobset else None
    if files is None:
        return None
    result, recorded = files.result, files.failure
    if recorded and recorded.at and result and recorded.at < result.started:
        # A run that began after the recorded one has left a result.
        recorded = None
    if resumed is None:
        return replace(files, failure=recorded)
    earlier = _before_resumption(files, jobset)
    # An attempt that a restart follows ended with the recorded run, unless a later run has left a result.
    another = not restarted or (result is not None and not earlier)
    if recorded and recorded.at and recorded.at < resumed and another:
        recorded = None
    return replace(files, result=None if earlier and not restarted else result, failure=recorded)
