"""The fleet's jobs as they are now, for gauges. What a tenant may write becomes one of the API's words."""

from collections import Counter as Multiset
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from finetune_contract import Stage
from finetune_operator.api import Phase, Reason, WaitingReason
from finetune_operator.api.conditions import stored_condition
from finetune_operator.lifecycle.children.kueue import DEACTIVATED, NEVER_ADMITTED
from finetune_operator.objects import Object
from finetune_operator.planning.queueing import QUEUE_LABEL
from finetune_operator.runtime.series import gauge

_ON_TPU = frozenset(stage.value for stage in Stage if stage.on_tpu)
_PHASES = frozenset(Phase)
_FINISHED = frozenset(phase for phase in Phase if phase.finished)
_WAITS = frozenset(WaitingReason)
#: Words of the condition Stalled: the operator's and Kueue's.
_STALLS = frozenset({*Reason, *WaitingReason, *NEVER_ADMITTED, DEACTIVATED})
#: Reasons for which a run folder is not read and that say nothing of the store or the operator. Those who may write to
#: the folder or the namespace can cause the last three.
_NOT_BLIND = frozenset(
    {Reason.NOT_STARTED, Reason.RECORD_MALFORMED, Reason.RUN_FOLDER_TOO_LARGE, Reason.TOO_MANY_OBJECTS}
)


class Place(NamedTuple):
    """Where jobs run, in the labels of counters and histograms."""

    namespace: str
    profile: str
    capacity: str


class JobFacts(NamedTuple):
    namespace: str
    profile: str
    """Empty if the job was never admitted."""
    phase: str
    reason: str
    """Why the job waits; empty if it does not."""
    capacity: str
    """Of its slices; empty if the job was never admitted."""
    chips: int
    """At work now."""
    stalled: str
    """Reason for which the job cannot proceed; empty if it can, and if its author alone can change that."""
    invalid: bool
    """Whether the job cannot proceed until its author edits or deletes it."""
    blind: bool

    @property
    def live(self) -> bool:
        return self.phase not in _FINISHED

    @property
    def expects_next(self) -> bool:
        """Whether the next JobSet is due as soon as one has finished."""
        waits = self.reason or self.stalled or self.invalid
        return self.live and not waits and self.phase != Phase.SUSPENDED

    @classmethod
    def of(cls, job: Object) -> "JobFacts":
        status = job.get("status") or {}
        resolved = status.get("resolved") or {}
        resources = resolved.get("resources") or {}
        phase = status.get("phase")
        waiting = (status.get("waiting") or {}).get("reason")
        live = phase not in _FINISHED
        holds = phase == Phase.RUNNING and status.get("stage") in _ON_TPU
        readable, valid = stored_condition(job, "RunFolderReadable"), stored_condition(job, "Valid")
        stalled: Any = stored_condition(job, "Stalled")
        is_stalled, reason = live and stalled.get("status") == "True", stalled.get("reason")
        # Only its author can mend a refused spec. An invalid profile is the platform team's.
        refused = valid.get("status") == "False" and valid.get("reason") != Reason.PROFILE_INVALID
        own_queue = QUEUE_LABEL in (job["metadata"].get("labels") or {}) and reason in NEVER_ADMITTED
        return cls(
            namespace=job["metadata"]["namespace"],
            profile=(resolved.get("profile") or {}).get("name", ""),
            phase=phase if phase in _PHASES else Phase.PENDING.value,
            reason=waiting if live and waiting in _WAITS else "",
            capacity=resources.get("capacity") or "",
            chips=int(resources.get("chips", 0)) if holds else 0,
            stalled=(reason if reason in _STALLS else "Other")
            if is_stalled and not (refused or own_queue)
            else "",
            invalid=is_stalled and (refused or own_queue),
            blind=live
            and readable.get("status") in ("False", "Unknown")
            and readable.get("reason") not in _NOT_BLIND,
        )


def job_gauges(jobs: Iterable[JobFacts]) -> Iterator[Metric]:
    """Yields the gauges of these jobs."""
    phases, stalled, invalid, blind, held = (Multiset[tuple[str, ...]]() for _ in range(5))
    for facts, number in Multiset(jobs).items():
        place = facts.namespace, facts.profile
        phases[*place, facts.phase, facts.reason] += number
        stalled[*place, facts.stalled] += number * bool(facts.stalled)
        invalid[place] += number * facts.invalid
        blind[place] += number * facts.blind
        if facts.chips:
            held[*place, facts.capacity] += number * facts.chips
    yield gauge("finetune_jobs", phases)
    yield gauge("finetune_jobs_stalled", stalled)
    yield gauge("finetune_jobs_invalid", invalid)
    yield gauge("finetune_jobs_blind", blind)
    yield gauge("finetune_chips_held", held)
