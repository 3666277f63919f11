"""Which attempts there are: JobSets and the run folder's listing taken together."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from finetune_contract import Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.observed import AttemptFiles, AttemptKey, Observed
from finetune_operator.rendering import attempt_of

ORDER = {stage: index for index, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt and all that is seen of it."""

    key: AttemptKey
    ordinal: int
    """Which of the stage's attempts it is, restarts inside JobSets counted through, from 1: the number people see."""
    jobset: children.Object | None
    pods: tuple[children.Object, ...]
    files: AttemptFiles | None
    """None: its trainer has written nothing (yet)."""
    restarted: bool = False
    """The JobSet has been restarted since, which it does after disruptions alone."""

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


def attempts_of(observed: Observed) -> tuple[Attempt, ...]:
    """Every attempt, by stage, number and restart."""
    jobsets = {(key.stage, key.number): jobset for jobset in observed.jobsets if (key := _key(jobset))}
    pods: dict[AttemptKey, list[children.Object]] = {}
    for pod in observed.pods:
        if key := _key(pod):
            pods.setdefault(key, []).append(pod)
    # A pod alone, without JobSet or record, is an attempt only as long as it runs.
    standing = {key for key, own in pods.items() if any(children.pod_live(pod) for pod in own)}
    told = [key for jobset in observed.jobsets if (key := _key(jobset))]
    told += [key for key in pods if (key.stage, key.number) in jobsets]
    of_jobsets = {key for newest in told for key in _until(newest)}
    keys = sorted(
        {*of_jobsets, *standing, *observed.folder.attempts},
        key=lambda key: (ORDER[key.stage], key.number, key.restart),
    )
    last = {(key.stage, key.number): key.restart for key in keys}
    before: Counter[Stage] = Counter()
    return tuple(
        Attempt(
            key=key,
            ordinal=_counted(before, key.stage),
            jobset=jobsets.get((key.stage, key.number)),
            pods=tuple(pods.get(key, ())),
            files=observed.folder.attempts.get(key),
            restarted=key.restart < last[key.stage, key.number],
        )
        for key in keys
    )


def _until(newest: AttemptKey) -> Iterator[AttemptKey]:
    """A JobSet's restarts so far, those of which nobody has written anything included."""
    return (replace(newest, restart=restart) for restart in range(newest.restart + 1))


def _counted(before: Counter[Stage], stage: Stage) -> int:
    before[stage] += 1
    return before[stage]


def next_number(attempts: Sequence[Attempt], stage: Stage) -> int:
    """The number of the stage's next attempt."""
    return 1 + max((each.key.number for each in attempts if each.key.stage is stage), default=0)


def _key(child: children.Object) -> AttemptKey | None:
    found = attempt_of(child)
    return AttemptKey(*found) if found else None
