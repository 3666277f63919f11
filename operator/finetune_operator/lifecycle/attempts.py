"""Which attempts there are: JobSets and the run folder's listing taken together."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from finetune_contract import Outcome, Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.kueue import newest
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    AttemptKey,
    Observation,
    RetryRecord,
    TakeoverRecord,
)
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import attempt_of

#: Of one job, over all stages. Each is judged in every decision.
MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt and all that is seen of it."""

    key: AttemptKey
    ordinal: int
    """Which of the stage's attempts it is, restarts inside JobSets counted through, from 1: the number people see."""
    jobset: children.Object | None
    pods: tuple[children.Object, ...]
    files: AttemptFiles | None
    """Of its present run, or the last. None: its trainer has written nothing (yet)."""
    written: AttemptFiles | None = None
    """The same with what was said of earlier runs of it."""
    follows: datetime | None = None
    """Of a restart inside the JobSet: when the one before it had ended, as far as is known."""
    restarted: bool = False
    """The JobSet has been restarted since, which it does after disruptions alone."""
    workload: children.Object | None = None
    """Kueue's, of the JobSet; None where it is in no queue, or Kueue has not seen it yet."""

    @property
    def live(self) -> bool:
        """Something of it may still run: no other attempt may start."""
        jobset_live = (
            self.jobset is not None and not self.restarted and not children.jobset_ended(self.jobset)
        )
        return jobset_live or any(children.pod_live(pod) for pod in self.pods)

    @property
    def running(self) -> bool:
        """All its pods have got a node and an image and were started."""
        # JobSet makes the other pods of a slice once the first has a node.
        expected = children.pods_expected(self.jobset) if self.jobset else 1
        return len(self.pods) >= expected and all(children.pod_started(pod) for pod in self.pods)


def attempts_of(observation: Observation) -> tuple[Attempt, ...]:
    """Every attempt, by stage, number and restart."""
    jobsets = {(key.stage, key.number): jobset for jobset in observation.jobsets if (key := _key(jobset))}
    pods = _pods(observation)
    workloads = _workloads(observation)
    keys, _ = _keys(observation, pods)
    last = {(key.stage, key.number): key.restart for key in keys}
    before: Counter[Stage] = Counter()
    found: list[Attempt] = []
    for key in keys:
        jobset, files = jobsets.get((key.stage, key.number)), observation.folder.attempts.get(key)
        before[key.stage] += 1
        restarted = key.restart < last[key.stage, key.number]
        found.append(
            Attempt(
                key=key,
                ordinal=before[key.stage],
                jobset=jobset,
                pods=tuple(pods.get(key, ())),
                files=_of_this_run(files, jobset, restarted=restarted),
                written=files,
                follows=_end_before(key, observation),
                restarted=restarted,
                workload=workloads.get(jobset["metadata"].get("uid")) if jobset else None,
            )
        )
    return tuple(found)


def too_many(observation: Observation) -> bool:
    """Whether the oldest are left out because there are more than MOST_ATTEMPTS."""
    _, cut = _keys(observation, _pods(observation))
    return cut


def _pods(observation: Observation) -> dict[AttemptKey, list[children.Object]]:
    pods: dict[AttemptKey, list[children.Object]] = {}
    for pod in observation.pods:
        if key := _key(pod):
            pods.setdefault(key, []).append(pod)
    return pods


def _keys(
    observation: Observation, pods: Mapping[AttemptKey, Sequence[children.Object]]
) -> tuple[list[AttemptKey], bool]:
    """Which attempts there are, in order, and whether there are more. A JobSet has had all restarts up to the newest
    that it or a pod of it tells of; a pod alone, without JobSet or record, is an attempt only as long as it runs.

    Of too many, those count that run or have a JobSet now, then those with records, then the newest.
    """
    of_jobsets = [key for jobset in observation.jobsets if (key := _key(jobset))]
    made = {(key.stage, key.number) for key in of_jobsets}
    standing = [key for key, own in pods.items() if any(children.pod_live(pod) for pod in own)]
    newest = sorted(
        (*of_jobsets, *(key for key in pods if (key.stage, key.number) in made)), key=_place, reverse=True
    )
    by_rank = chain(
        sorted(standing, key=_place, reverse=True),
        newest,
        sorted(observation.folder.attempts, key=_place, reverse=True),
        (key for last in newest for key in _until(last)),
    )
    found: set[AttemptKey] = set()
    for key in by_rank:
        if key not in found and len(found) == MOST_ATTEMPTS:
            return sorted(found, key=_place), True
        found.add(key)
    return sorted(found, key=_place), False


def _until(newest: AttemptKey) -> Iterator[AttemptKey]:
    """A JobSet's restarts so far, the newest first, those of which nobody has written anything included."""
    return (replace(newest, restart=restart) for restart in range(newest.restart, -1, -1))


def _place(key: AttemptKey) -> tuple[int, int, int]:
    return key.stage.order, key.number, key.restart


def next_number(
    attempts: Sequence[Attempt],
    stage: Stage,
    takeovers: Sequence[TakeoverRecord] = (),
    strangers: Collection[AttemptKey] = (),
) -> int:
    """The number of the stage's next attempt.

    Args:
        attempts: the job's.
        stage: which one.
        takeovers: those of the run folder.
        strangers: attempts in the run folder that are not the job's: their numbers are left out, as long as there are
            others.
    """
    first = takeovers[-1].first.get(stage, 1) if takeovers else 1
    next_ = max(first, 1 + max((each.key.number for each in attempts if each.key.stage is stage), default=0))
    taken = {key.number for key in strangers if key.stage is stage}
    return next((number for number in range(next_, MAX_ATTEMPT) if number not in taken), next_)


def since_retry(retry: RetryRecord | None, attempt: Attempt) -> bool:
    """Whether it was made after the last retry by hand, and counts."""
    return retry is None or attempt.key.number >= retry.first.get(attempt.key.stage, 1)


def _end_before(key: AttemptKey, observation: Observation) -> datetime | None:
    """When the attempt that this one is a restart of had ended."""
    if not key.restart:
        return None
    files = observation.folder.attempts.get(replace(key, restart=key.restart - 1))
    result, noted = (files.result, files.failure) if files else (None, None)
    if noted and noted.at and not noted.written:
        # Of a run of it that another one may have followed. When it ended is noted now.
        return None
    return max((time for time in (result and result.finished, noted and noted.written) if time), default=None)


def _workloads(observation: Observation) -> dict[str | None, children.Object]:
    """By the uid of their JobSet."""
    found: dict[str | None, list[children.Object]] = {}
    for workload in observation.workloads or ():
        for owner in workload["metadata"].get("ownerReferences", ()):
            found.setdefault(owner["uid"], []).append(workload)
    return {uid: newest(each) for uid, each in found.items()}


def _of_this_run(
    files: AttemptFiles | None, jobset: children.Object | None, *, restarted: bool
) -> AttemptFiles | None:
    """Without what was said of an earlier run of the same attempt. Kueue stops a JobSet by suspending it, which mostly
    ends no Job and counts no restart; when there is quota again, the same pods' successors run the same attempt."""
    resumed = children.resumed_at(jobset) if jobset else None
    if files is None:
        return None
    result, noted = files.result, files.failure
    if noted and noted.at and result and noted.at < result.started:
        # A run that began after the one that was noted has left a record.
        noted = None
    if resumed is None:
        return replace(files, failure=noted)
    earlier = result is not None and result.outcome is Outcome.STOPPED and result.finished < resumed
    # An attempt that a restart follows ended with the run that was noted, unless a later one has left a record.
    another = not restarted or (result is not None and not earlier)
    if noted and noted.at and noted.at < resumed and another:
        noted = None
    return replace(files, result=None if earlier and not restarted else result, failure=noted)


def _key(child: children.Object) -> AttemptKey | None:
    found = attempt_of(child)
    return AttemptKey(*found) if found else None
