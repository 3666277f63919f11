"""The input of a decision: everything that is read of one job, and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from finetune_contract import (
    ConvertManifest,
    Failure,
    HostProgress,
    Progress,
    Stage,
    StageProgress,
    StageResult,
)
from finetune_contract.base import Count
from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.api.common import DnsLabel, DnsName
from finetune_operator.ledger.month import MonthlyBudget
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.children.object_events import ObjectEvent
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.quotas import Quota
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.lifecycle.job import Job
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, StoredPlan
from finetune_operator.planning.admission import Planner
from finetune_operator.planning.estimate.past_runs import PastTrainings
from finetune_operator.planning.requests import MAX_ATTEMPT

#: Seconds, which ten thousand jobs reach. The number of other namespaces' jobs is unbounded and must not slow a job
#: down further.
_LONGEST_PACE = 500.0
#: The same for an interrupted training. Few are interrupted at a time, and they hold slices.
_LONGEST_URGENT_PACE = 15.0
#: Seconds between two writes of a status: the least, and the same bound.
_LEAST_STATUS_PACE = 30.0
_LONGEST_STATUS_PACE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """The records of one attempt in the run folder. An entry without records means that its trainer has started."""

    result: StageResult | None = None
    failure: Failure | None = None
    malformed: str | None = None
    """Why ``result.json`` is not a valid record, as a sentence; ``result`` is then None."""
    newer: str | None = None
    """The same if a newer major version of the contract wrote it: how the attempt ended is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailure:
    """Why something in the run folder is unknown."""

    reason: Reason
    message: str
    """As a sentence."""

    @property
    def alone(self) -> bool:
        """Whether this run folder is the cause, and not the store as a whole, the operator's version or another job."""
        return self.reason in (
            Reason.RECORD_MALFORMED,
            Reason.STORAGE_PERMISSION_DENIED,
            Reason.RUN_FOLDER_TOO_LARGE,
            Reason.TOO_MANY_OBJECTS,
        )

    @property
    def excess(self) -> bool:
        """Whether the job's pods are unknown, too, so that its usage and hangs cannot be observed."""
        return self.reason is Reason.TOO_MANY_OBJECTS


type FirstNumbers = dict[Stage, Annotated[int, Field(ge=1, le=MAX_ATTEMPT + 1)]]


class RetryRecord(BaseModel):
    """The operator's record in the run folder of how it acted on ``spec.retry.generation``. Keys of a newer operator
    are ignored, as in all records."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    generation: Count
    from_stage: Stage
    first: FirstNumbers
    """Number of the first JobSet after the retry, by stage. Earlier attempts no longer count against any budget, and
    from ``from_stage`` on their success does not count either."""


class TakeoverRecord(BaseModel):
    """The operator's record in a run folder that a job has taken over from another one (``spec.resumeFrom``)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uid: str
    """UID of the job that has taken the folder over."""
    job: DnsName
    """Its name."""
    namespace: DnsLabel
    """Its namespace."""
    first: FirstNumbers
    """Number of its first JobSet, by stage. Lower numbers belong to earlier jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolderView:
    """The contents of the run folder.

    If ``unreadable`` is set, the folder could not be read, and what is missing here may exist.
    """

    attempts: Mapping[AttemptKey, AttemptFiles] = field(default_factory=dict)
    """The job's own attempts since the last takeover of the folder (:mod:`.attempts.own_attempts`)."""
    takeovers: tuple[TakeoverRecord, ...] = ()
    """Takeovers of the folder, newest last."""
    progress: Progress | None = None
    progress_age: float = 0.0
    """Seconds since ``progress`` and ``stage_progress`` were read; 0: they were read for this observation."""
    stage_progress: Mapping[AttemptKey, StageProgress] = field(default_factory=dict)
    """What running attempts report that they do, for people: no decision depends on it. That of a training is read only
    until its first step, and left out where everything is read."""
    retry: RetryRecord | None = None
    """Record of the newest retry that the job requests; files of higher generations are not the operator's."""
    convert_manifest: ConvertManifest | None = None
    """Manifest in the cache for the fingerprint that preflight found. None also if there was nothing to look up, and
    once an attempt of this job has converted the model."""
    convert_manifest_fault: str = ""
    """Why the object in its place cannot be read. Other jobs may write there, so this says nothing about this job."""
    foreign_attempts: frozenset[AttemptKey] = frozenset()
    """Attempts in the listing that are not this job's. Their records are not read."""
    progress_unknown: ReadFailure | None = None
    """Why ``progress`` is None although a progress record exists."""
    warnings: tuple[str, ...] = ()
    """Ignored files, one sentence each."""
    unreadable: ReadFailure | None = None
    """Why the contents of the run folder are unknown."""


def in_order(records: Iterable[TakeoverRecord]) -> tuple[TakeoverRecord, ...]:
    """Returns the records oldest first: the numbers of each are higher than those of the one before."""
    return tuple(sorted(records, key=lambda record: sum(record.first.values())))


def since(takeovers: Sequence[TakeoverRecord], key: AttemptKey) -> bool:
    """Returns whether the attempt belongs to the job that owns the folder now."""
    return not takeovers or key.number >= takeovers[-1].first.get(key.stage, 1)


def pace(live_jobs: int, least: float = 10.0) -> float:
    """Returns the seconds between two observations of one of ``live_jobs`` jobs, whatever happens to it.

    They grow with the number of jobs, so that all jobs together stay within what the API server and the artifact store
    can answer: twenty observations per second. ``least`` holds if there are few jobs.
    """
    return max(least, min(live_jobs / 20, _LONGEST_PACE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One job and everything that belongs to it, read at one time.

    The run folder is read after the JobSets and pods. A stage writes its record before it ends, so if the stage is
    observed to have ended, a record that is missing here was never written.
    """

    now: datetime
    job: Job
    profiles: tuple[Object, ...]
    """All FineTuneProfiles, from which admission chooses. Ignored once ``stored`` exists."""
    stored: StoredPlan | Refused | None
    """The job's stored plan, or why it cannot be read. None before admission, or if it was lost."""
    jobsets: tuple[JobSet, ...]
    """JobSets of this job, including those that are being deleted."""
    pods: tuple[Pod, ...]
    """Pods of this job."""
    folder: RunFolderView
    template: Object | None = None
    """ConfigMap of the chat template that the job names; None if there is none. Not read once ``stored`` exists."""
    source: Object | None = None
    """FineTuneJob whose model the job starts from; None if there is none. Not read once ``stored`` exists."""
    quotas: tuple[Quota, ...] = ()
    """ResourceQuotas of the job's namespace. Not read once ``stored`` exists."""
    neighbours: tuple[Object, ...] = ()
    """FineTuneJobs that may use the run folder in which this one continues (``spec.resumeFrom``); read until this job
    has taken the folder over."""
    unserved_namespace: str | None = None
    """Namespace of the job that used that folder last, if this operator does not serve that namespace and so cannot
    observe whether the job has ended."""
    unobserved_until: datetime | None = None
    """End of the time in which the operator could not observe this job's namespace; None if there was none."""
    nodes: Mapping[str, SliceNode] | None = None
    """All nodes of the job's kind of slice by name, if a pod on one has failed; None: not read."""
    workloads: tuple[Workload, ...] | None = ()
    """Kueue's Workloads of JobSets in a queue; None: the API server does not serve the kind."""
    hosts: Mapping[int, HostProgress] | None = None
    """Progress of each process of training; None: not read."""
    events: tuple[ObjectEvent, ...] | None = None
    """Events about the object that the previous decision named; None: not read."""
    planner: Planner = field(default_factory=Planner, compare=False)
    ledger: str | None = None
    """URI of the operator's ledger; None if it keeps none."""
    month: MonthlyBudget | None = None
    """Budget of the job's namespace under its profile for the present month; None if the profile sets none, or the job
    is not admitted."""
    past_trainings: PastTrainings | None = None
    """Past trainings of the namespace, as far as the ledger contains them and is read; None if there is no ledger."""
    report_later: bool = False
    """Whether a first JobSet is not reported before the other jobs of the namespace that wait have theirs."""
    paused: bool = False
    """Whether the operator starts no stage of any job, until it is started again without the pause."""
    cached: bool = False
    """Whether job, JobSets and pods come from watches, so that they may be behind the API server's."""
    live_jobs: int = 1
    """Number of jobs that have not finished, including this one. The more there are, the less often progress is
    written."""

    @property
    def status(self) -> FineTuneJobStatus:
        """The job's status as it is stored now."""
        return self.job.status

    def pace(self, least: float = 10.0) -> float:
        """Returns the seconds until the job is observed again although no watch has reported a change."""
        return pace(self.live_jobs, least)

    def status_pace(self) -> float:
        """Returns the seconds between two writes of the status while only progress and usage move."""
        return max(_LEAST_STATUS_PACE, min(self.live_jobs / 4, _LONGEST_STATUS_PACE))

    def urgent_pace(self, least: float) -> float:
        """Returns the same for an interrupted training, whose next run may begin at any moment."""
        return min(self.pace(least), _LONGEST_URGENT_PACE)
