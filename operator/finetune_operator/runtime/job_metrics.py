"""Gauges of the fleet: its jobs as they are now.

Label values are bounded: namespaces and profiles that exist, and words of the API. Texts that a tenant's run folder
contains, such as the reasons of a trainer, are never among them.
"""

from collections import Counter as Multiset
from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from finetune_contract import Stage
from finetune_operator.api import Phase, Reason, WaitingReason
from finetune_operator.api.conditions import stored_condition
from finetune_operator.lifecycle.children.kueue import DEACTIVATED, NEVER_ADMITTED
from finetune_operator.objects import Object
from finetune_operator.planning.queueing import QUEUE_LABEL
from finetune_operator.reconcile.keys import JobKey

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
#: Help and labels of each gauge.
_GAUGES = {
    "finetune_jobs": (
        "Number of jobs by phase; reason is that of status.waiting, empty if the job does not wait",
        ("namespace", "profile", "phase", "reason"),
    ),
    "finetune_jobs_stalled": (
        "Number of unfinished valid jobs that cannot proceed, by the reason of the condition Stalled",
        ("namespace", "profile", "reason"),
    ),
    "finetune_jobs_invalid": (
        (
            "Number of unfinished jobs that cannot proceed until their author edits or deletes them: Valid is False, "
            "or the queue of their own label admits none"
        ),
        ("namespace", "profile"),
    ),
    "finetune_jobs_blind": (
        (
            "Number of unfinished jobs whose run folder cannot be read: RunFolderReadable is not True, and not because "
            "of what the folder or the namespace contains"
        ),
        ("namespace", "profile"),
    ),
    "finetune_chips_held": (
        "TPU chips of slices on which all pods of a stage run",
        ("namespace", "profile", "capacity"),
    ),
}


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


class JobCollector(Collector):
    """Gauges of all jobs that the watch has delivered, computed when they are scraped. Only the leader watches."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, JobFacts] = {}
        self._shared: dict[JobFacts, JobFacts] = {}
        """Many jobs have the same facts, which are kept once."""

    def put(self, key: JobKey, job: Object) -> JobFacts:
        facts = JobFacts.of(job)
        self._jobs[key] = self._shared.setdefault(facts, facts)
        return facts

    def drop(self, key: JobKey) -> None:
        self._jobs.pop(key, None)

    def places(self) -> frozenset[Place]:
        """Returns where jobs are that have been admitted, and where jobs were until the last scrape."""
        return frozenset(
            Place(each.namespace, each.profile, each.capacity) for each in self._shared if each.profile
        )

    def chips(self, namespace: str) -> int:
        """Returns the chips at work in a namespace, as its jobs were last observed."""
        return sum(facts.chips for key, facts in self._jobs.items() if key.namespace == namespace)

    def collect(self) -> Iterable[Metric]:
        found = Multiset(self._jobs.values())
        self._shared = {facts: facts for facts in found}
        sums = Multiset[tuple[str, tuple[str, ...]]]()
        for facts, number in found.items():
            place = facts.namespace, facts.profile
            sums["finetune_jobs", (*place, facts.phase, facts.reason)] += number
            sums["finetune_jobs_stalled", (*place, facts.stalled)] += number * bool(facts.stalled)
            sums["finetune_jobs_invalid", place] += number * facts.invalid
            sums["finetune_jobs_blind", place] += number * facts.blind
            if facts.chips:
                sums["finetune_chips_held", (*place, facts.capacity)] += number * facts.chips
        families = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()
        }
        for (name, labels), value in sorted(sums.items()):
            families[name].add_metric(labels, value)
        return families.values()
