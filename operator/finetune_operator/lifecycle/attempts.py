"""Which attempts there are: JobSets and the run folder's listing taken together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from finetune_contract import Outcome, Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.observed import AttemptFiles, AttemptKey, Observed
from finetune_operator.lifecycle.queueing import newest
from finetune_operator.rendering import attempt_of

ORDER = {stage: index for index, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt and all that is seen of it."""

    key: AttemptKey
    jobset: children.Object | None
    pods: tuple[children.Object, ...]
    files: AttemptFiles | None
    """None: its trainer has written nothing (yet)."""
    workload: children.Object | None = None
    """Kueue's, of the JobSet; None where it is in no queue, or Kueue has not seen it yet."""

    @property
    def live(self) -> bool:
        """Something of it may still run: no other attempt may start."""
        jobset_live = self.jobset is not None and not children.jobset_ended(self.jobset)
        return jobset_live or any(children.pod_live(pod) for pod in self.pods)

    @property
    def running(self) -> bool:
        """All its pods have got a node and an image and were started."""
        return bool(self.pods) and all(children.pod_started(pod) for pod in self.pods)


def attempts_of(observed: Observed) -> tuple[Attempt, ...]:
    """Every attempt, by stage and number."""
    jobsets = {_key(jobset): jobset for jobset in observed.jobsets if _key(jobset)}
    pods: dict[AttemptKey | None, list[Any]] = {}
    for pod in observed.pods:
        pods.setdefault(_key(pod), []).append(pod)
    pods.pop(None, None)
    workloads = _workloads(observed)
    keys = {key for key in (*jobsets, *pods, *observed.folder.attempts) if key is not None}
    # A pod alone, without JobSet or record, is an attempt only as long as it runs.
    return tuple(
        Attempt(
            key=key,
            jobset=jobsets.get(key),
            pods=tuple(pods.get(key, ())),
            files=_of_this_run(observed.folder.attempts.get(key), jobsets.get(key)),
            workload=workloads.get(jobsets[key]["metadata"].get("uid")) if key in jobsets else None,
        )
        for key in sorted(keys, key=lambda key: (ORDER[key.stage], key.number))
        if key in jobsets
        or key in observed.folder.attempts
        or any(children.pod_live(pod) for pod in pods.get(key, ()))
    )


def next_number(attempts: Sequence[Attempt], stage: Stage) -> int:
    """The number of the stage's next attempt."""
    return 1 + max((each.key.number for each in attempts if each.key.stage is stage), default=0)


def _workloads(observed: Observed) -> dict[str | None, children.Object]:
    """By the uid of their JobSet."""
    found: dict[str | None, list[children.Object]] = {}
    for workload in observed.workloads or ():
        for owner in workload["metadata"].get("ownerReferences", ()):
            found.setdefault(owner["uid"], []).append(workload)
    return {uid: newest(each) for uid, each in found.items()}


def _of_this_run(files: AttemptFiles | None, jobset: children.Object | None) -> AttemptFiles | None:
    """Without what an earlier run of the same attempt said. Kueue stops a JobSet by suspending it, which ends no Job
    and counts no restart; when there is quota again, the same pods' successors run the same attempt."""
    if files is None or files.result is None or files.result.outcome is not Outcome.STOPPED or jobset is None:
        return files
    resumed = children.resumed_at(jobset)
    earlier = resumed is not None and files.result.finished < resumed
    return replace(files, result=None) if earlier else files


def _key(child: children.Object) -> AttemptKey | None:
    found = attempt_of(child)
    return AttemptKey(*found) if found else None
