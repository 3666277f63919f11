"""Conditions, phases and reasons: the words in which a job's state is told."""

from enum import StrEnum

from finetune_operator.api.common import ApiModel, Message, ReasonText, Timestamp, Whole


class Phase(StrEnum):
    """Where a job stands, as a person reads it; derived from conditions and stages, never an input."""

    PENDING = "Pending"
    VALIDATING = "Validating"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    PLANNED = "Planned"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def finished(self) -> bool:
        """Nothing moves any more unless a person acts."""
        return self in (Phase.PLANNED, Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """All conditions of a FineTuneJob, in the order in which they are listed."""

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


class ConditionStatus(StrEnum):
    """Unknown says that nothing is known, not that something is wrong."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class WaitingReason(StrEnum):
    """What a job that could go on is waiting for."""

    QUOTA = "WaitingForQuota"
    CAPACITY = "WaitingForCapacity"
    IMAGE = "WaitingForImage"
    POD = "WaitingForPod"
    INPUT = "WaitingForInput"
    RETRY = "WaitingForRetry"


class Reason(StrEnum):
    """Reasons that the operator itself gives; the trainer's own (DatasetSchemaMismatch …) come beside them."""

    # --- Valid
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    """The stored object does not follow the schema of this version."""
    NOT_YET_SUPPORTED = "NotYetSupported"
    """A field is part of the API, but what it asks for does not work yet."""
    PROFILE_NOT_FOUND = "ProfileNotFound"
    PROFILE_INVALID = "ProfileInvalid"
    NO_DEFAULT_PROFILE = "NoDefaultProfile"
    AMBIGUOUS_DEFAULT_PROFILE = "AmbiguousDefaultProfile"
    CHAT_TEMPLATE_NOT_FOUND = "ChatTemplateNotFound"
    """The ConfigMap, or its key, does not exist, or holds no template of at most 32 KiB."""
    SOURCE_JOB_NOT_FOUND = "SourceJobNotFound"
    SOURCE_JOB_RUNNING = "SourceJobRunning"
    """The job whose model is to be started from may still make it; nothing is wrong."""
    SOURCE_JOB_UNUSABLE = "SourceJobUnusable"
    """It failed, or has exported another model than the one that is asked for."""
    RUN_NOT_FOUND = "RunNotFound"
    """No job has run in the folder that is to be gone on in."""
    RUN_FOLDER_IN_USE = "RunFolderInUse"
    RUN_FOLDER_TAKEN = "RunFolderTaken"
    """Another job goes on in this job's run folder."""
    PROFILE_NOT_ALLOWED = "ProfileNotAllowed"
    """The profile does not serve the job's namespace."""
    POLICY_VIOLATION = "PolicyViolation"
    UNKNOWN_TPU = "UnknownTPU"
    AMBIGUOUS_TPU_SHAPE = "AmbiguousTPUShape"
    NO_FLAVOR_FITS = "NoFlavorFits"
    PATHWAYS_NOT_POSSIBLE = "PathwaysNotPossible"
    """The slice, its capacity or the profile's storage does not go with the controller Pathways."""
    PARALLELISM_MISMATCH = "ParallelismMismatch"
    BATCH_MISMATCH = "BatchMismatch"
    REQUEST_TOO_LARGE = "RequestTooLarge"
    PLAN_MISSING = "PlanMissing"
    """The stored plan of an admitted job is gone, and job or profile have changed too much to make it again."""
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105
    # --- progress
    NOT_STARTED = "NotStarted"
    IN_PROGRESS = "InProgress"
    CHECKED = "Checked"
    NOT_CHECKED = "NotChecked"
    PROVEN = "Proven"
    NOT_REQUESTED = "NotRequested"
    PROVIDED_CHECKPOINT = "ProvidedCheckpoint"
    """Nothing is converted: the model is given in MaxText's own format."""
    NOT_QUEUED = "NotQueued"
    """No queue is configured, so there is no quota to wait for."""
    QUOTA_RESERVED = "QuotaReserved"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    """Kueue admits no further workload until all pods of an earlier one run."""
    NO_WORKLOAD = "NoWorkload"
    """A JobSet waits in a queue, and Kueue takes no notice of it."""
    KUEUE_NOT_INSTALLED = "KueueNotInstalled"
    STAGE_RUNNING = "StageRunning"
    RECOVERING = "Recovering"
    # --- RunFolderReadable
    READABLE = "Readable"
    RECORDS_IGNORED = "RecordsIgnored"
    """It can be read, but for files that do not matter any more or are not this job's."""
    STORE_UNAVAILABLE = "StoreUnavailable"
    """The store does not answer, or denies everything: nothing is known."""
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
    """The run folder alone could not be read for the time of spec.hangPolicy.blindSeconds."""
    WITHIN_BUDGET = "WithinBudget"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    """Training is sure to take more than the job may use; no slice was claimed."""
    GATE_PASSED = "GatePassed"
    GATE_NOT_MET = "GateNotMet"
    RETRIES_EXHAUSTED = "RetriesExhausted"
    TOO_MANY_ATTEMPTS = "TooManyAttempts"
    """The numbers of a stage's JobSets are used up."""
    NO_PROGRESS = "NoProgress"
    """Training was interrupted again and again before it could save anything new."""
    # --- end
    PLANNED = "Planned"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(ApiModel):
    """A condition in the form of Kubernetes' own metav1.Condition."""

    type: ReasonText
    """What is told, for example Valid."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Whole
    """The generation of the object that this was seen at."""
    last_transition_time: Timestamp
    """When the status last changed."""
    reason: ReasonText
    """Why, in one CamelCase word."""
    message: Message
    """Why, in a sentence, with what to do about it."""
