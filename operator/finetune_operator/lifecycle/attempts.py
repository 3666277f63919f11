"""Which attempts there are: JobSets and the run folder's listing taken together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune_contract import Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.observed import AttemptFiles, AttemptKey, Observed
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
    keys = {key for key in (*jobsets, *pods, *observed.folder.attempts) if key is not None}
    # A pod alone, without JobSet or record, is an attempt only as long as it runs.
    return tuple(
        Attempt(
            key=key,
            jobset=jobsets.get(key),
            pods=tuple(pods.get(key, ())),
            files=observed.folder.attempts.get(key),
        )
        for key in sorted(keys, key=lambda key: (ORDER[key.stage], key.number))
        if key in jobsets
        or key in observed.folder.attempts
        or any(children.pod_live(pod) for pod in pods.get(key, ()))
    )


def next_number(attempts: Sequence[Attempt], stage: Stage) -> int:
    """The number of the stage's next attempt."""
    return 1 + max((each.key.number for each in attempts if each.key.stage is stage), default=0)


def _key(child: children.Object) -> AttemptKey | None:
    found = attempt_of(child)
    return AttemptKey(*found) if found else None
