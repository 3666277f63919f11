"""Conditions, phases and reasons: the vocabulary that reports a job's state."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from finetune_operator.api.common import ApiModel, Message, ReasonText, Timestamp, Whole


class Phase(StrEnum):
    """Summary of a job's state for people; derived from conditions and stages, never an input."""

    PENDING = "Pending"
    """The operator has not processed the job yet."""
    VALIDATING = "Validating"
    """The spec is invalid, or Preflight has not passed yet."""
    QUEUED = "Queued"
    """The current stage waits for quota from Kueue, or for the budget of the namespace."""
    PROVISIONING = "Provisioning"
    """The current stage waits for nodes, images or pods."""
    RUNNING = "Running"
    """A stage after Preflight runs."""
    RECOVERING = "Recovering"
    """A stage starts again after an interruption."""
    SUSPENDED = "Suspended"
    """The job is stopped and can resume."""
    PLANNED = "Planned"
    """Planning has finished, and planOnly ends the job here."""
    SUCCEEDED = "Succeeded"
    """All stages have finished."""
    FAILED = "Failed"
    """The job has failed or was cancelled; status.failure explains why."""

    @property
    def finished(self) -> bool:
        """Whether the job has ended and changes only when a user acts."""
        return self in (Phase.PLANNED, Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """All conditions of a FineTuneJob, in the order in which the status lists them."""

    VALID = "Valid"
    DATA_READY = "DataReady"
    MEMORY_FITS = "MemoryFits"
    EXPORT_PROVEN = "ExportProven"
    QUOTA_RESERVED = "QuotaReserved"
    RUNNING = "Running"
    WITHIN_BUDGET = "WithinBudget"
    GATE_PASSED = "GatePassed"
    RUN_FOLDER_READABLE = "RunFolderReadable"
    SUSPENDED = "Suspended"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SUCCEEDED = "Succeeded"
    FINISHED = "Finished"


class ProfileConditionType(StrEnum):
    """Conditions that only a FineTuneProfile has."""

    NAMESPACE_LOST = "NamespaceLost"
    """A namespace that profile and operator serve cannot be watched. Absent if there is none."""


class ConditionStatus(StrEnum):
    """Status of a condition. Unknown means that nothing is known, not that something is wrong."""

    TRUE = "True"
    """The condition holds."""
    FALSE = "False"
    """The condition does not hold."""
    UNKNOWN = "Unknown"
    """Nothing is known yet; not an error."""


class WaitingReason(StrEnum):
    """Reason for which a job that could proceed waits."""

    QUOTA = "WaitingForQuota"
    """Kueue has not admitted the stage's JobSet."""
    CAPACITY = "WaitingForCapacity"
    """No node has room for a pod."""
    IMAGE = "WaitingForImage"
    """A container image cannot be pulled."""
    POD = "WaitingForPod"
    """A pod has a node but its containers do not start, or it should have ended and is not gone."""
    INPUT = "WaitingForInput"
    """An object or a setting that the job needs is missing or refused."""
    PODS_REFUSED = "PodsRefused"
    """The API server refuses some of the pods, or did so and the next attempt is due later."""
    RETRY = "WaitingForRetry"
    """A failed operation is repeated after a delay."""
    BUDGET = "WaitingForBudget"
    """The namespace's budget of chip hours for the month is used up, or what is used of it is unknown."""
    PAUSED = "OperatorPaused"
    """The platform team has paused the operator: it starts no stage."""


class Reason(StrEnum):
    """Reasons that the operator itself reports; those of the trainer (DatasetSchemaMismatch …) are used beside them."""

    # --- Valid
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    """The stored object does not follow the schema of this version."""
    NOT_YET_SUPPORTED = "NotYetSupported"
    """A field is part of the API, but its function is not implemented yet."""
    PROFILE_NOT_FOUND = "ProfileNotFound"
    PROFILE_INVALID = "ProfileInvalid"
    NO_DEFAULT_PROFILE = "NoDefaultProfile"
    AMBIGUOUS_DEFAULT_PROFILE = "AmbiguousDefaultProfile"
    CHAT_TEMPLATE_NOT_FOUND = "ChatTemplateNotFound"
    """The ConfigMap or its key does not exist, or it holds no template of at most 32 KiB."""
    SOURCE_JOB_NOT_FOUND = "SourceJobNotFound"
    SOURCE_JOB_RUNNING = "SourceJobRunning"
    """The job that exports the source model may still succeed; not an error."""
    SOURCE_JOB_UNUSABLE = "SourceJobUnusable"
    """The source job failed, or has exported another checkpoint than the requested one."""
    RUN_NOT_FOUND = "RunNotFound"
    """No job has run in the folder that spec.resumeFrom names."""
    RUN_FOLDER_IN_USE = "RunFolderInUse"
    RUN_FOLDER_TAKEN = "RunFolderTaken"
    """Another job resumes in this job's run folder."""
    PROFILE_NOT_ALLOWED = "ProfileNotAllowed"
    """The profile does not serve the job's namespace."""
    POLICY_VIOLATION = "PolicyViolation"
    UNKNOWN_TPU = "UnknownTPU"
    AMBIGUOUS_TPU_SHAPE = "AmbiguousTPUShape"
    NO_FLAVOR_FITS = "NoFlavorFits"
    QUOTA_TOO_SMALL = "QuotaTooSmall"
    """A ResourceQuota of the namespace has room for none of the slices that the job may take."""
    PATHWAYS_NOT_POSSIBLE = "PathwaysNotPossible"
    """The slice, its capacity or the profile's storage cannot be used with the controller Pathways."""
    PARALLELISM_MISMATCH = "ParallelismMismatch"
    BATCH_MISMATCH = "BatchMismatch"
    REQUEST_TOO_LARGE = "RequestTooLarge"
    PLAN_MISSING = "PlanMissing"
    """The stored plan of an admitted job is gone, and job or profile have changed too much to create it again."""
    CONTRACT_UNSUPPORTED = "ContractUnsupported"
    """The stored plan or the trainer image is of another major version of the contract."""
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105
    # --- progress
    NOT_STARTED = "NotStarted"
    IN_PROGRESS = "InProgress"
    CHECKED = "Checked"
    NOT_CHECKED = "NotChecked"
    PROVEN = "Proven"
    NOT_REQUESTED = "NotRequested"
    PROVIDED_CHECKPOINT = "ProvidedCheckpoint"
    """Nothing is converted, because the model is given in MaxText's own format."""
    NOT_QUEUED = "NotQueued"
    """No queue is configured, so the job needs no quota."""
    QUOTA_RESERVED = "QuotaReserved"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    """Kueue admits no further workload until all pods of an earlier one run."""
    NO_WORKLOAD = "NoWorkload"
    """A JobSet waits in a queue, and Kueue has not created a Workload for it."""
    KUEUE_NOT_INSTALLED = "KueueNotInstalled"
    STAGE_RUNNING = "StageRunning"
    RECOVERING = "Recovering"
    # --- RunFolderReadable
    READABLE = "Readable"
    RECORDS_IGNORED = "RecordsIgnored"
    """The folder is readable; files that are obsolete or belong to another job are ignored."""
    STORE_UNAVAILABLE = "StoreUnavailable"
    """The store does not answer or denies every request, so nothing is known."""
    CONTRACT_NEWER = "ContractNewer"
    """A record was written under a newer major version of the contract than the operator's."""
    RECORD_MALFORMED = "RecordMalformed"
    STORAGE_PERMISSION_DENIED = "StoragePermissionDenied"
    RUN_FOLDER_TOO_LARGE = "RunFolderTooLarge"
    # --- lifecycle
    SUSPENDED_BY_USER = "SuspendedByUser"
    SUSPENDING = "Suspending"
    NOT_SUSPENDED = "NotSuspended"
    RUN_FOLDER_UNREADABLE = "RunFolderUnreadable"
    """The run folder alone was unreadable for longer than spec.hangPolicy.blindSeconds."""
    TOO_MANY_OBJECTS = "TooManyObjects"
    """More objects carry the job's labels than the operator reads into memory for one job."""
    WITHIN_BUDGET = "WithinBudget"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    """Training certainly takes more than the job may use; no slice was claimed."""
    MONTHLY_BUDGET_EXHAUSTED = "MonthlyBudgetExhausted"
    """The namespace has used up its chip hours of the calendar month."""
    MONTHLY_USAGE_UNKNOWN = "MonthlyUsageUnknown"
    """The operator has not read yet what the namespace has used in the calendar month."""
    GATE_PASSED = "GatePassed"
    GATE_NOT_MET = "GateNotMet"
    RETRIES_EXHAUSTED = "RetriesExhausted"
    TOO_MANY_ATTEMPTS = "TooManyAttempts"
    """No attempt number is left for a stage's JobSets."""
    NO_PROGRESS = "NoProgress"
    """Training was interrupted repeatedly before it could save anything new."""
    # --- of profiles
    NAMESPACE_REFUSED = "NamespaceRefused"
    """The API server does not let the operator list the objects of a namespace that it is to serve."""
    # --- end
    CANCELLING = "Cancelling"
    """spec.cancel is true, and the job ends when what runs of it has stopped."""
    CANCELLED = "Cancelled"
    """The job has ended because spec.cancel is true."""
    PLANNED = "Planned"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(ApiModel):
    """A condition in the form of metav1.Condition."""

    type: ReasonText
    """Type of the condition in CamelCase, for example Valid."""
    status: ConditionStatus
    """Whether the condition holds."""
    observed_generation: Whole
    """metadata.generation of the object for which the condition was set."""
    last_transition_time: Timestamp
    """Time at which the status last changed."""
    reason: ReasonText
    """Reason for the status in one CamelCase word."""
    message: Message
    """Explanation of the status for people, with what to do about it."""


def stored_condition(stored: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns the condition of that type of an object as the API server stores it; empty if it has none."""
    conditions = (stored.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def is_true(stored: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition of that type of a stored object is True."""
    return stored_condition(stored, kind).get("status") == "True"
