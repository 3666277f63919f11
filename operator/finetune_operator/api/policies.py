"""Budget, checkpointing, recovery, preflight and other small sections of ``spec``."""

from enum import StrEnum
from typing import ClassVar

from finetune_contract import Stage
from finetune_operator.api.common import (
    ApiModel,
    DnsName,
    Flag,
    NonNegative,
    Positive,
    PositiveNumber,
    ShortText,
)
from finetune_operator.api.rules import ValidationRule
from finetune_operator.api.uris import StorageUri


class CachePolicy(StrEnum):
    """Use of the cache of converted models and prepared data."""

    USE = "Use"
    """Reuses results of other jobs and stores new ones."""
    REFRESH = "Refresh"
    """Makes results anew and replaces stored ones."""
    OFF = "Off"
    """Neither reads nor writes the cache."""


class OnExhausted(StrEnum):
    """Consequence of a used-up budget."""

    SUSPEND = "Suspend"
    """Saves a checkpoint and stops; a higher budget resumes the job."""
    FAIL = "Fail"
    """Ends the job as failed."""


class MetricMode(StrEnum):
    """Direction in which a metric improves."""

    MIN = "Min"
    """A lower value is better."""
    MAX = "Max"
    """A higher value is better."""


class DatasetCheck(StrEnum):
    """How much of the data preflight reads."""

    FULL = "Full"
    """All rows."""
    SAMPLE = "Sample"
    """At most 1,000 rows of each source."""
    OFF = "Off"
    """No rows; only revisions are resolved."""


class MemoryCheck(StrEnum):
    """How preflight determines whether the training fits into the chips' memory."""

    COMPILE = "Compile"
    """Compiles the train step for the slice."""
    ANALYTIC = "Analytic"
    """Adds up parameters and optimizer state, a lower bound."""
    OFF = "Off"
    """Memory is not checked."""


class ProfileRef(ApiModel):
    """Reference to a FineTuneProfile."""

    name: DnsName
    """Name of the FineTuneProfile."""


class ResumeFrom(ApiModel):
    """Run to resume from its last checkpoint, in its folder. The job that started it must have ended or be deleted.
    Model, data, method and hyperparameters must be equal, except for steps and epochs."""

    run_folder: StorageUri
    """Run folder, as its job's status.resolved.runFolder reports it; of the same namespace."""


class Retry(ApiModel):
    """Manual retry of a stage. Acts once for each new generation and resets the retry counters."""

    rules: ClassVar = (
        ValidationRule(
            cel="self.generation >= oldSelf.generation",
            message="generation cannot be lowered: a retry acts once for each higher number",
            holds=None,
        ),
    )

    generation: Positive
    """Number of the retry; raise it by one to retry. It cannot be lowered."""
    from_stage: Stage | None = None
    """First stage to run again. Default: the stage that failed."""


class Budget(ApiModel):
    """Limits of what the job may use over all attempts. Where preflight has compiled the train step, a training that
    certainly exceeds a limit is not started."""

    max_chip_hours: PositiveNumber | None = None
    """Most TPU chip hours. Default: no limit."""
    max_cost: PositiveNumber | None = None
    """Highest cost in the profile's currency. Default: no limit."""
    on_exhausted: OnExhausted | None = None
    """Consequence of a used-up budget. Default: Suspend."""


class KeepCheckpoints(ApiModel):
    """Which checkpoints are kept. The one in use is never deleted."""

    last: Positive | None = None
    """Number of newest checkpoints to keep. Default: 2."""
    best: NonNegative | None = None
    """Number of best checkpoints, by bestBy, to keep; 0 for none. Default: 1 where every checkpoint is measured
    (everySteps is a multiple of evaluation.everySteps), else 0."""


class BestBy(ApiModel):
    """Metric that ranks checkpoints."""

    metric: ShortText
    """loss or perplexity, on the validation rows."""
    mode: MetricMode | None = None
    """Direction in which the metric improves. Default: Min."""


class Checkpointing(ApiModel):
    """When checkpoints are saved and which are kept. A stop always saves first."""

    every_steps: Positive | None = None
    """Optimizer steps between two checkpoints. Default: 100."""
    every_seconds: Positive | None = None
    """Seconds since the last save after which a further checkpoint is saved. It is not measured, so it is never the
    best. Default: 600."""
    keep: KeepCheckpoints | None = None
    """Which checkpoints are kept."""
    best_by: BestBy | None = None
    """Metric that ranks checkpoints. Default: loss on the validation rows."""


class RenewedBy(StrEnum):
    """What renews a retry budget."""

    CHECKPOINT = "Checkpoint"
    """A checkpoint of a later step than all before it."""


class Recovery(ApiModel):
    """How often failed attempts are repeated, by the cause of the failure."""

    max_preemptions: NonNegative | None = None
    """New attempts after preemptions and evictions; 0 for none. Default: 100."""
    max_infrastructure_retries: NonNegative | None = None
    """New attempts after node, network or storage faults; 0 for none. Default: 5."""
    max_user_retries: NonNegative | None = None
    """New attempts after faults of the job itself, which usually recur; 0 for none. Default: 0."""
    renewed_by: RenewedBy | None = None
    """What renews maxInfrastructureRetries. Checkpoint: only faults since the last new checkpoint count, for trainings
    that last weeks; a stage still has at most 999 attempts. Default: nothing, so that all faults of the job count."""


class HangPolicy(ApiModel):
    """When a stage without progress is considered hung and restarted. A NaN or infinite loss fails at once."""

    startup_seconds: Positive | None = None
    """Longest time in seconds from running pods to the first step. Default: 1800."""
    no_step_seconds: Positive | None = None
    """Longest time in seconds between two steps. Default: 900."""
    refused_pods_seconds: Positive | None = None
    """Longest time in seconds in which an attempt holds a part of its pods, or a queue's quota, while the API server
    refuses the other pods (ResourceQuota, LimitRange, policy). Then it lets go of them, and the next flavor is tried.
    Keep it below the 300 s in which the hosts of a slice have to find each other. Default: 120."""
    blind_seconds: Positive | None = None
    """Longest time in seconds in which the job's run folder alone cannot be read, so that a hung training is not
    detected. The job is then suspended, and resumes when the folder can be read. A store that is unavailable as a whole
    does not count. Default: no limit."""
    stage_seconds: Positive | None = None
    """Longest time in seconds from running pods to the end of an attempt at any stage but Train, since the others
    report no steps. Default: 21600 for Evaluate, which holds a slice; 86400 for the stages on CPU."""


class SmokeTest(ApiModel):
    """A small run of the job's own stages: its method, tokenizer and first rows on a miniature of its model, on CPU."""

    steps: Positive | None = None
    """Optimizer steps of the small run. Default: 5."""
    examples: Positive | None = None
    """Rows to read of each source. Default: 64."""


class Preflight(ApiModel):
    """Checks on CPU before a TPU is claimed."""

    dataset: DatasetCheck | None = None
    """How much of the data is read. Default: Full."""
    memory: MemoryCheck | None = None
    """How memory is checked. Default: Compile."""
    export_proof: Flag | None = None
    """Whether Convert proves that the model can be exported again unchanged. Default: true."""
    smoke: SmokeTest | None = None
    """Small run of training, evaluation and export. Default: none."""


class Profiling(ApiModel):
    """JAX profile of a few steps. They take longer, and the first steps compile: start some steps later."""

    start_step: Positive
    """First step to record, counted from 1."""
    steps: Positive | None = None
    """Number of steps to record. Default: 5."""
