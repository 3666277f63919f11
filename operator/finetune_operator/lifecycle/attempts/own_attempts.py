"""Selects the job's own attempts from a run folder's listing.

A run folder is a folder in a bucket: an export, a script or a person may create ``attempts/eval-999/result.json``.
Such a file must neither end a stage nor use up attempt numbers, so an attempt counts only if one of these confirms it:

- A JobSet or a pod of the job has its number, and at least its restart.
- The job's status names its JobSet and, if that is deleted, its restart or, without a gap, an earlier one. The history
  in the status holds the newest entries only: once it is full, numbers below a named one count, too.
- If the status names no attempts (the job is new, continues in another job's folder, or its status was lost): numbers
  are assigned consecutively, so those without a gap count if they precede every live attempt.

One attempt may be missed: if the operator terminated between creating its JobSet and reporting it, and another client
deleted the JobSet before the next reconcile. Its number is then skipped and the stage runs again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.status_stages import AttemptRecord
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import TakeoverRecord
from finetune_operator.rendering import MAX_RESTART

type Number = tuple[Stage, int]

#: Maximum number of entries of ``status.attempts.history``.
HISTORY = 10


def own_attempts(
    listed: Collection[AttemptKey],
    takeovers: tuple[TakeoverRecord, ...],
    *,
    job: Job,
    jobsets: Sequence[JobSet],
    pods: Sequence[Pod],
) -> frozenset[AttemptKey]:
    """Returns those of ``listed``, the attempts in the run folder since the last takeover, that are confirmed as the
    job's own."""
    listed = [key for key in listed if key.restart <= MAX_RESTART]
    made = {jobset.key for jobset in jobsets if jobset.key} | {pod.key for pod in pods if pod.key}
    restarts = _with_restarts(made)
    reported = _reported(job.status)
    if reported is not None:
        named = _followed(_with_restarts(reported), listed)
        # In another job's folder without its takeover record, numbers that are not named may be that job's.
        alone = bool(takeovers) or not job.control.resumes
        full = alone and len(ended_attempts(job.status)) >= HISTORY
        newest = {stage: max((n for s, n in named if s is stage), default=0) for stage in Stage}
        numbers = {key.jobset for key in listed if full and key.number < newest[key.stage]}
    else:
        named, numbers = {}, _in_a_row(listed, restarts, live_jobsets(jobsets, pods), takeovers)
    unnamed = numbers - (restarts | named).keys()
    return frozenset(
        key
        for key in listed
        if key.restart <= restarts.get(key.jobset, named.get(key.jobset, -1)) or key.jobset in unnamed
    )


def ended_attempts(status: FineTuneJobStatus) -> Sequence[AttemptRecord]:
    """Returns the ends of attempts in the status, oldest first."""
    return (status.attempts.history if status.attempts else None) or ()


def live_jobsets(jobsets: Iterable[JobSet], pods: Iterable[Pod]) -> set[Number]:
    """Returns the JobSets that may still run, or have pods that may."""
    live = {jobset.key for jobset in jobsets if jobset.key and not jobset.ended}
    live |= {pod.key for pod in pods if pod.key and pod.live}
    return {key.jobset for key in live}


def _reported(status: FineTuneJobStatus) -> list[AttemptKey] | None:
    """Returns the attempts that the status names; None if it counts none."""
    if not status.attempts or not status.attempts.total:
        return None
    named = [AttemptKey.of_jobset(each.name, each.job_set, each.restart) for each in status.stages or ()]
    named += [AttemptKey.of_jobset(each.stage, each.job_set, each.restart) for each in ended_attempts(status)]
    return [*(key for key, _ in pending_records(status)), *(key for key in named if key)]


def _with_restarts(keys: Iterable[AttemptKey]) -> dict[Number, int]:
    newest: dict[Number, int] = {}
    for key in keys:
        newest[key.jobset] = max(key.restart, newest.get(key.jobset, 0))
    return newest


def _followed(named: Mapping[Number, int], listed: Collection[AttemptKey]) -> dict[Number, int]:
    """Adds the restarts since the last reconcile, without a gap: the JobSet that counted them may be deleted."""
    present = set(listed)
    return {
        jobset: next(last for last in count(restart) if AttemptKey(*jobset, last + 1) not in present)
        for jobset, restart in named.items()
    }


def _in_a_row(
    listed: Iterable[AttemptKey],
    made: Collection[Number],
    live: Collection[Number],
    takeovers: tuple[TakeoverRecord, ...],
) -> set[Number]:
    """Returns the numbers without a gap from the first, or below a child's number, that precede every live attempt."""
    present = {key.jobset for key in listed}
    last = min(((stage.order, number) for stage, number in live), default=None)
    found: set[Number] = set()
    for stage in Stage:
        number = takeovers[-1].first.get(stage, 1) if takeovers else 1
        newest = max((n for s, n in made if s is stage), default=0)
        while (stage, number) in present or number <= newest:
            found.add((stage, number))
            number += 1
    return {(stage, n) for stage, n in found if last is None or (stage.order, n) <= last}
