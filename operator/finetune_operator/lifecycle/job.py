"""A FineTuneJob as decisions read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.conditions import is_true
from finetune_operator.lifecycle.children.fields import amount, number, section, text, time
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.objects import Object
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL

#: Maximum number of labels, and of annotations, that are kept of a job; Kueue's labels come first.
MOST_TEXTS = 64
#: Maximum number of characters of one of them.
LONGEST_TEXT = 1024
_QUEUE_LABELS = (QUEUE_LABEL, PRIORITY_LABEL)
_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What of a spec suspends, cancels, retries and limits a job, whether or not the spec as a whole is valid. A value
    of another type counts as missing."""

    cancel: bool
    suspend: bool
    retry_generation: int
    """The newest retry that is requested; 0: none."""
    retry_from: Stage | None
    """The stage that it repeats; None: the one that has failed."""
    resumes: bool
    """Whether the job continues in another one's run folder."""
    child_ttl: float | None
    """Seconds between the job's end and the deletion of its JobSets; None: they stay."""
    deadline: float | None
    """Maximum of the running time in seconds; None: no limit."""
    chip_hours: float | None
    """Maximum of chip hours; None: no limit."""
    cost: float | None
    """Maximum of money; None: no limit."""

    @classmethod
    def parse(cls, spec: Object) -> Self:
        """Returns what a job's spec says, or that spec merged with defaults. Never raises."""
        retry, budget = section(spec, "retry"), section(spec, "budget")
        stage = text(retry, "fromStage")
        return cls(
            cancel=spec.get("cancel") is True,
            suspend=spec.get("suspend") is True,
            retry_generation=number(retry, "generation"),
            retry_from=Stage(stage) if stage is not None and stage in Stage else None,
            resumes=spec.get("resumeFrom") is not None,
            child_ttl=amount(spec, "childTTLSecondsAfterFinished"),
            deadline=amount(spec, "activeDeadlineSeconds"),
            chip_hours=amount(budget, "maxChipHours"),
            cost=amount(budget, "maxCost"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A FineTuneJob in the API server."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    creation_timestamp: datetime | None
    deleted: bool
    """Whether it is being deleted."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Empty unless the job was read live: decisions do not read them, so the watches do not keep them."""
    control: Control
    status: FineTuneJobStatus
    """The valid part of what is stored."""
    finished: bool
    """Whether the status, be it valid or not, says that the job has ended. This is final: a finished job never starts
    again by itself."""
    unprocessed: bool
    """:func:`unprocessed`."""
    document: Object
    """The job as planning reads it (:func:`reduced_job`)."""

    @classmethod
    def parse(cls, found: Object) -> Self:
        """Reads a job, whole or reduced. Never raises on an object that an API server may hold."""
        document = reduced_job(found)
        metadata = document["metadata"]
        return cls(
            namespace=metadata.get("namespace", "default"),
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            generation=number(metadata, "generation", 1),
            creation_timestamp=time(metadata, "creationTimestamp"),
            deleted="deletionTimestamp" in metadata,
            labels=metadata.get("labels") or {},
            annotations=_first(section(section(found, "metadata"), "annotations")),
            control=Control.parse(section(found, "spec")),
            status=read_status(found.get("status")),
            finished=is_true(found, "Finished"),
            unprocessed=unprocessed(found),
            document=document,
        )


def unprocessed(found: Object) -> bool:
    """Whether the operator has written no status of the job yet. Plan and first JobSet may already exist."""
    observed = (found.get("status") or {}).get("observedGeneration", -1)
    return bool(observed == -1)


def reduced_job(found: Object) -> Object:
    """Returns what is kept in memory of a FineTuneJob: all of its spec and status, which its schema bounds, and of its
    metadata what decisions read and the operator's ledger records."""
    metadata = found["metadata"]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    if labels := metadata.get("labels"):
        kept["labels"] = _first(labels)
    whole = {key: found[key] for key in ("apiVersion", "kind", "spec", "status") if key in found}
    return whole | {"metadata": kept}


def _first(texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the first ones that are not long, Kueue's before all others."""
    kept = sorted((key not in _QUEUE_LABELS, key) for key in texts if len(texts[key]) <= LONGEST_TEXT)
    return {key: texts[key] for _, key in kept[:MOST_TEXTS]}
