"""How a run is guarded, checkpointed and mended: the smaller parts of ``spec``."""

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
    """Whether converted models and prepared data are shared between jobs."""

    USE = "Use"
    REFRESH = "Refresh"
    OFF = "Off"


class OnExhausted(StrEnum):
    """What happens when the budget is used up."""

    SUSPEND = "Suspend"
    FAIL = "Fail"


class MetricMode(StrEnum):
    """Which direction of a metric is better."""

    MIN = "Min"
    MAX = "Max"


class DatasetCheck(StrEnum):
    """How much of the data preflight reads."""

    FULL = "Full"
    SAMPLE = "Sample"
    OFF = "Off"


class MemoryCheck(StrEnum):
    """How preflight finds out whether the training fits."""

    COMPILE = "Compile"
    ANALYTIC = "Analytic"
    OFF = "Off"


class ProfileRef(ApiModel):
    """A FineTuneProfile."""

    name: DnsName
    """Name of the profile."""


class ResumeFrom(ApiModel):
    """Another run to go on with, from its last checkpoint, in its folder: the job that began it must have ended or be
    gone. Model, data, method and hyperparameters must be the same, but for steps and epochs."""

    run_folder: StorageUri
    """Its run folder, as its status.resolved.runFolder says; of the same namespace."""


class Retry(ApiModel):
    """Run a stage again by hand. Acts once for each new generation and resets the retry counters."""

    rules: ClassVar = (
        ValidationRule(
            cel="self.generation >= oldSelf.generation",
            message="generation cannot be lowered: a retry acts once for each higher number",
            holds=None,
        ),
    )

    generation: Positive
    """Raise it by one to retry."""
    from_stage: Stage | None = None
    """First stage to run again. Default: the stage that failed."""


class Budget(ApiModel):
    """The most that the job may use, over all attempts. Where preflight has compiled the train step, a training that
    is sure to take more is not begun."""

    max_chip_hours: PositiveNumber | None = None
    """TPU chip hours."""
    max_cost: PositiveNumber | None = None
    """Money, in the profile's currency."""
    on_exhausted: OnExhausted | None = None
    """Suspend: checkpoint and stop; raising the budget resumes. Fail: end. Default: Suspend."""


class KeepCheckpoints(ApiModel):
    """Which checkpoints are kept. The one in use is never deleted."""

    last: Positive | None = None
    """The newest. Default: 2."""
    best: NonNegative | None = None
    """The best by bestBy. Default: 1 where every checkpoint is measured (everySteps is a multiple of
    evaluation.everySteps), else 0."""


class BestBy(ApiModel):
    """The metric that tells which checkpoint is best."""

    metric: ShortText
    """loss or perplexity, on the validation rows."""
    mode: MetricMode | None = None
    """Whether low or high is good. Default: Min."""


class Checkpointing(ApiModel):
    """When to save, and what to keep. A stop always saves first."""

    every_steps: Positive | None = None
    """Save after so many steps. Default: 100."""
    every_seconds: Positive | None = None
    """Save also when so much time has passed since the last save. Such a checkpoint is not measured, so it is never the
    best. Default: 600."""
    keep: KeepCheckpoints | None = None
    """Which checkpoints are kept."""
    best_by: BestBy | None = None
    """The metric that tells which checkpoint is best. Default: loss on the validation rows."""


class Recovery(ApiModel):
    """How often to start again, by what went wrong."""

    max_preemptions: NonNegative | None = None
    """Preempted or evicted. Default: 100."""
    max_infrastructure_retries: NonNegative | None = None
    """Node, network or storage faults. Default: 5."""
    max_user_retries: NonNegative | None = None
    """Faults of the job itself; the next attempt would meet them again. Default: 0."""


class HangPolicy(ApiModel):
    """When a stage that makes no progress is taken for dead and started again. A NaN or infinite loss fails at once."""

    startup_seconds: Positive | None = None
    """From running pods to the first step. Default: 1800."""
    no_step_seconds: Positive | None = None
    """From one step to the next. Default: 900."""
    blind_seconds: Positive | None = None
    """While the job's run folder alone cannot be read, so that a training that stands still is not noticed. The job is
    then suspended, and goes on by itself when the folder can be read. A store that is away as a whole does not count.
    Default: no limit."""
    stage_seconds: Positive | None = None
    """From running pods to the end of an attempt at any stage but Train, which reports no steps. Default: 21600 for
    Evaluate, which holds a slice; 86400 for the stages on CPU."""


class SmokeTest(ApiModel):
    """The job's own chain in small: its method, tokenizer and first rows on a miniature of its model, on CPU."""

    steps: Positive | None = None
    """Optimizer steps. Default: 5."""
    examples: Positive | None = None
    """Rows to take of each source. Default: 64."""


class Preflight(ApiModel):
    """What is checked on CPU before a TPU is claimed."""

    dataset: DatasetCheck | None = None
    """How much of the data is read: Full, Sample (1,000 rows) or Off. Default: Full."""
    memory: MemoryCheck | None = None
    """Compile the train step for the slice, Analytic estimate, or Off. Default: Compile."""
    export_proof: Flag | None = None
    """Prove within Convert that the model can be exported again unchanged. Default: true."""
    smoke: SmokeTest | None = None
    """Train, evaluate and export in small first. Default: none."""


class Profiling(ApiModel):
    """Record a JAX profile of a few steps. They take longer, and the first ones compile: begin some steps later."""

    start_step: Positive
    """First step to record, counted from 1."""
    steps: Positive | None = None
    """How many. Default: 5."""
