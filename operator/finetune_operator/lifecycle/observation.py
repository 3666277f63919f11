"""Everything one decision may look at, and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from finetune_contract import ConvertManifest, Failure, HostProgress, Progress, Stage, StageResult
from finetune_contract.base import Count
from finetune_operator.api import Reason
from finetune_operator.api.common import DnsLabel, DnsName
from finetune_operator.planning.requests import MAX_ATTEMPT

type Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One attempt of one stage: the JobSet's number, and the restart inside that JobSet."""

    stage: Stage
    number: int
    restart: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Which folder of the run holds its files (``RunFolder.attempt``)."""
        return self.stage.short, self.number, self.restart


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """What the run folder says of one attempt. Presence of the entry alone means: its trainer has started."""

    result: StageResult | None = None
    failure: Failure | None = None
    malformed: str | None = None
    """Why ``result.json`` is no record of this contract, as a sentence; then ``result`` is None."""
    newer: str | None = None
    """The same where a newer major version of the contract wrote it: how the attempt ended is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailure:
    """Why something in the run folder is unknown."""

    reason: Reason
    message: str
    """As a sentence."""

    @property
    def alone(self) -> bool:
        """This run folder is at fault: neither the store as a whole, nor the operator's version, nor another job."""
        return self.reason in (
            Reason.RECORD_MALFORMED,
            Reason.STORAGE_PERMISSION_DENIED,
            Reason.RUN_FOLDER_TOO_LARGE,
        )


type FirstNumbers = dict[Stage, Annotated[int, Field(ge=1, le=MAX_ATTEMPT + 1)]]


class RetryRecord(BaseModel):
    """That ``spec.retry.generation`` was acted on, and how: the note that the operator leaves in the run folder. As in
    all records, keys of a newer operator are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    generation: Count
    from_stage: Stage
    first: FirstNumbers
    """By stage: the number of the first JobSet after it. What was before no longer counts against any budget, and
    from ``from_stage`` on it does not count as done either."""


class TakeoverRecord(BaseModel):
    """That a job goes on in the run folder of another one (``spec.resumeFrom``): the operator's note there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uid: str
    """Of the job that goes on."""
    job: DnsName
    """Its name."""
    namespace: DnsLabel | None = None
    """Its namespace; None: the note is of a release that did not record it."""
    first: FirstNumbers
    """By stage: the number of its first JobSet. What is numbered below is of the jobs before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolderView:
    """What object storage says.

    ``unreadable`` is set when it could not be read: then nothing here is evidence of absence.
    """

    attempts: Mapping[AttemptKey, AttemptFiles] = field(default_factory=dict)
    """Those since the last job has taken the folder over."""
    takeovers: tuple[TakeoverRecord, ...] = ()
    """The newest last."""
    progress: Progress | None = None
    retry: RetryRecord | None = None
    """The newest."""
    convert_manifest: ConvertManifest | None = None
    """Of the fingerprint that preflight found; None also when there was nothing to look up, and once an attempt has
    converted the model."""
    convert_manifest_fault: str = ""
    """Why what lies in its place cannot be read: other jobs may write there, and it says nothing of this one."""
    strangers: frozenset[AttemptKey] = frozenset()
    """Attempts that the listing shows and that this job has not made: their records are not read."""
    progress_unknown: ReadFailure | None = None
    """Why ``progress`` is None although there is a progress record."""
    warnings: tuple[str, ...] = ()
    """Files that were ignored, one sentence each."""
    unreadable: ReadFailure | None = None
    """Why nothing is known of the run folder."""


def in_order(notes: Iterable[TakeoverRecord]) -> tuple[TakeoverRecord, ...]:
    """Oldest first: each counts on from the one before."""
    return tuple(sorted(notes, key=lambda note: sum(note.first.values())))


def since(takeovers: Sequence[TakeoverRecord], key: AttemptKey) -> bool:
    """Whether the attempt is of the job that has the folder now."""
    return not takeovers or key.number >= takeovers[-1].first.get(key.stage, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One live look at a job and all that belongs to it.

    The run folder was read after the JobSets and pods: a stage that is seen to have ended has written its record
    before, so a record that is missing here was never written.
    """

    now: datetime
    job: Object
    """The FineTuneJob."""
    profiles: tuple[Object, ...]
    """All FineTuneProfiles (few); admission picks from them. Ignored once ``snapshot`` exists."""
    snapshot: Object | None
    """The job's stored plan (``planning.stored_plan``), or None: before admission, or it was lost."""
    jobsets: tuple[Object, ...]
    """Live JobSets of this job's uid, those being deleted included."""
    pods: tuple[Object, ...]
    """Live pods of this job's uid."""
    folder: RunFolderView
    first_format: Object | None = None
    """The ConfigMap ``<job>-plan`` of an earlier release, from the job's namespace, where the status says that such a
    release admitted the job. Whoever may write ConfigMaps there may have written it."""
    template: Object | None = None
    """The ConfigMap of the job's chat template, where it names one; None: there is none. Not looked at once
    ``snapshot`` exists."""
    source: Object | None = None
    """The FineTuneJob whose model the job starts from, where it names one; None: there is none. Not looked at once
    ``snapshot`` exists."""
    neighbours: tuple[Object, ...] = ()
    """FineTuneJobs that may use the run folder in which this one is to continue (``spec.resumeFrom``), until it has
    taken the folder over."""
    unserved_namespace: str | None = None
    """The namespace of the job that used that folder last, where this operator does not serve it and so cannot see
    whether that job has ended."""
    nodes: Mapping[str, Object] | None = None
    """All nodes of the job's slice, by name, where a pod on it has failed; None: nobody has looked."""
    workloads: tuple[Object, ...] | None = ()
    """Kueue's, of those JobSets that are in a queue; None: the API server does not know the kind."""
    hosts: Mapping[int, HostProgress] | None = None
    """What the processes of training say of themselves; None: nobody has looked."""
    events: tuple[Object, ...] | None = None
    """About the pod or Job that the decision before asked for; None: nobody has looked."""
    live_jobs: int = 1
    """Jobs that have not finished, this one included: progress is written the less often the more there are."""
