"""Which attempts of a run folder's listing are this job's own.

A run folder is a folder in a bucket: an export, a script or a person may put ``attempts/eval-999/result.json`` there.
Such a file must neither end a stage nor use up attempt numbers, so an attempt counts only with evidence for it:

- a JobSet or a pod of the job has its number, and at least its restart; or
- the job's status names its JobSet, and where that is gone, its restart or, without a gap, one before. The history
  there is cut to its newest entries: once it is full, numbers below one that is named count, too; or
- where the status says nothing of attempts (the job is new, goes on in another job's folder, or its status was lost):
  numbers are given one after the other, so those without a gap count, as far as they come before what is live.

An attempt may so be overlooked where the operator died between creating its JobSet and reporting it, and somebody
deleted the JobSet before the next look. Its number is left out and the stage is run again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from finetune_contract import Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.observation import AttemptKey, Observation, TakeoverRecord
from finetune_operator.lifecycle.pending import pending_records
from finetune_operator.rendering import MAX_RESTART, attempt_of

type Object = Mapping[str, Any]
type Number = tuple[Stage, int]

#: Entries of ``status.attempts.history``.
HISTORY = 10


def own_attempts(
    listed: Collection[AttemptKey],
    takeovers: tuple[TakeoverRecord, ...],
    *,
    job: Object,
    jobsets: Iterable[Object],
    pods: Iterable[Object],
) -> frozenset[AttemptKey]:
    """Those of ``listed`` that there is evidence for.

    Args:
        listed: what the run folder shows, since the last takeover.
        takeovers: the run folder's.
        job: the FineTuneJob, with its status.
        jobsets: its JobSets.
        pods: its pods.
    """
    jobsets, pods = tuple(jobsets), tuple(pods)
    listed = [key for key in listed if key.restart <= MAX_RESTART]
    restarts: dict[Number, int] = {}
    for key in _keys((*jobsets, *pods)):
        restarts[key.stage, key.number] = max(key.restart, restarts.get((key.stage, key.number), 0))
    reported = _reported(job)
    if reported is not None:
        named = _followed(_with_restarts(reported), listed)
        # In another job's folder whose note is gone, numbers that are not named may be of that job.
        alone = bool(takeovers) or "resumeFrom" not in job.get("spec", {})
        full = alone and len(_status(job).get("attempts", {}).get("history", ())) >= HISTORY
        numbers = _below(listed, named) if full else frozenset()
    else:
        named, numbers = {}, _in_a_row(listed, restarts, _live(jobsets, pods), takeovers)
    unnamed = numbers - (restarts | named).keys()
    return frozenset(
        key
        for key in listed
        if key.restart <= restarts.get((key.stage, key.number), named.get((key.stage, key.number), -1))
        or (key.stage, key.number) in unnamed
    )


def with_own_attempts(observation: Observation) -> Observation:
    """The same look, whose run folder holds the job's own attempts alone."""
    folder = observation.folder
    own = own_attempts(
        folder.attempts.keys(),
        folder.takeovers,
        job=observation.job,
        jobsets=observation.jobsets,
        pods=observation.pods,
    )
    strangers = folder.attempts.keys() - own
    if not strangers:
        return observation
    attempts = {key: files for key, files in folder.attempts.items() if key in own}
    return replace(
        observation, folder=replace(folder, attempts=attempts, strangers=folder.strangers | strangers)
    )


def _keys(children_: Iterable[Object]) -> list[AttemptKey]:
    return [AttemptKey(*found) for each in children_ if (found := attempt_of(each))]


def _status(job: Object) -> Object:
    return job.get("status") or {}


def _live(jobsets: Iterable[Object], pods: Iterable[Object]) -> list[Number]:
    """What may still run."""
    live = (
        *(jobset for jobset in jobsets if not children.jobset_ended(jobset)),
        *(pod for pod in pods if children.pod_live(pod)),
    )
    return [(key.stage, key.number) for key in _keys(live)]


def _reported(job: Object) -> list[AttemptKey] | None:
    """The attempts that the status names; None where it says nothing of any."""
    status = _status(job)
    if not status.get("attempts", {}).get("total"):
        return None
    entries = [(each["name"], each) for each in status.get("stages", ()) if "jobSet" in each]
    entries += [(each["stage"], each) for each in status["attempts"].get("history", ())]
    found = [key for key, _ in pending_records(status)]
    for name, each in entries:
        number = each.get("jobSet", "").rpartition("-")[2]
        if name in Stage and number.isdecimal():
            found.append(AttemptKey(Stage(name), int(number), each.get("restart", 0)))
    return found


def _with_restarts(keys: Iterable[AttemptKey]) -> dict[Number, int]:
    newest: dict[Number, int] = {}
    for key in keys:
        newest[key.stage, key.number] = max(key.restart, newest.get((key.stage, key.number), 0))
    return newest


def _followed(named: Mapping[Number, int], listed: Collection[AttemptKey]) -> dict[Number, int]:
    """With the restarts that came after the last look, without a gap: the JobSet that tells of them may be gone."""
    present = set(listed)
    found: dict[Number, int] = {}
    for (stage, number), restart in named.items():
        last = restart
        while AttemptKey(stage, number, last + 1) in present:
            last += 1
        found[stage, number] = last
    return found


def _below(listed: Iterable[AttemptKey], named: Mapping[Number, int]) -> frozenset[Number]:
    """Numbers below the newest one of their stage that is named."""
    newest = {stage: max((n for s, n in named if s is stage), default=0) for stage in Stage}
    return frozenset((key.stage, key.number) for key in listed if key.number < newest[key.stage])


def _in_a_row(
    listed: Iterable[AttemptKey],
    made: Collection[Number],
    live: Collection[Number],
    takeovers: tuple[TakeoverRecord, ...],
) -> frozenset[Number]:
    """Numbers without a gap from the first, or below one that a child has, and before all that is live."""
    present = {(key.stage, key.number) for key in listed}
    last = min((_place(number) for number in live), default=None)
    found: set[Number] = set()
    for stage in Stage:
        number = takeovers[-1].first.get(stage, 1) if takeovers else 1
        newest = max((n for s, n in made if s is stage), default=0)
        while (stage, number) in present or number <= newest:
            found.add((stage, number))
            number += 1
    return frozenset(each for each in found if last is None or _place(each) <= last)


def _place(number: Number) -> tuple[int, int]:
    return number[0].order, number[1]
