"""The progress records: small files that are replaced as a whole at each report."""

from typing import Annotated

from pydantic import Field

from finetune_contract.base import Count, Record, Seconds, Timestamp, Version


class StepMetrics(Record):
    """Training metrics at one step. None for a metric that was not measured."""

    loss: float | None = None
    """Mean loss of the step: over tokens, in nats, or over pairs, depending on the method."""
    perplexity: float | None = None
    """None unless the loss is a mean over tokens."""
    gradient_norm: float | None = None
    learning_rate: float | None = None
    tokens: Count | None = None
    """Tokens of the step that count towards the loss."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """Further metrics of the method by name. For preference pairs: reward_accuracy, the share of pairs whose chosen
    answer has the higher reward, and reward_margin, the mean difference between the two rewards."""


class EvaluationPoint(Record):
    """Loss on the validation sets during training, with equal weight for every token."""

    step: Count
    loss: float
    perplexity: float | None = None
    tokens: Count
    by_set: Annotated[dict[str, float], Field(max_length=64)] = {}
    """Loss of each validation set, if there are several."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """Further metrics of the method, as in :class:`StepMetrics`."""


class DiscardedCheckpoint(Record):
    """A checkpoint that no longer matched its seal, so training continued from an earlier one."""

    step: Count
    why: str
    """The file that differs, and how."""


class Progress(Record):
    """Progress of training (``train/progress.json``), written by process 0."""

    version: Version = 3
    attempt: Count
    restart: Count = 0
    step: Count
    """Number of completed optimizer steps."""
    total_steps: Count
    start_step: Count = 0
    """Step at which this attempt started: 0, or the step of the restored checkpoint."""
    metrics: StepMetrics = StepMetrics()
    evaluation: EvaluationPoint | None = None
    """Latest evaluation during training."""
    step_time_p50: Seconds | None = None
    step_time_p95: Seconds | None = None
    """95th percentile of the recent steps' durations in seconds, without compilation; ``step_time_p50`` is the median.
    """
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization: the model's own FLOPs per second as a share of the devices' published rate."""
    curve: Annotated[list[tuple[Count, float]], Field(max_length=48)] = []
    """(step, loss), thinned to at most 48 points over the whole run."""
    checkpoints: Annotated[list[Count], Field(max_length=10)] = []
    discarded: Annotated[list[DiscardedCheckpoint], Field(max_length=10)] = []
    """The most recently discarded checkpoints over all attempts."""
    peak_memory_bytes: Count | None = None
    """Peak memory in use on any device of process 0. None if the devices do not report it."""
    seconds: Annotated[dict[str, Seconds], Field(max_length=64)] = {}
    """Seconds per phase over all attempts so far: startup (from the start of the process to the stage's first line,
    mostly imports), data, restore (of the weights), compile (until the first step is done, including reading programs
    from the compilation cache), first_step, productive, evaluate, recomputed (steps that a later attempt repeated)."""
    compilations: Count
    """Number of programs that process 0 has compiled in this attempt so far because the compilation cache did not have
    them."""
    updated: Timestamp


class StageProgress(Record):
    """What a running stage is doing (``attempts/<stage>-<n>/progress.json``), written by process 0.

    People read it, and no decision depends on it: the time limits of stages apply whatever it says. Train writes it
    until its first step, and then :class:`Progress`.
    """

    version: Version = 3
    doing: Annotated[str, Field(min_length=1, max_length=80)]
    """The current activity in words, such as ``converting the weights``."""
    done: Count = 0
    """Number of units that this activity has finished."""
    total: Count | None = None
    """Number of units of the whole activity. None if it is not known in advance."""
    unit: Annotated[str, Field(max_length=16)] = ""
    """Plural of what is counted, such as ``tensors``. Empty if nothing is counted."""
    done_bytes: Count = 0
    total_bytes: Count | None = None
    """Size of the whole activity. None if it has no size, or none that is known in advance."""
    since: Timestamp
    """Time at which the activity began."""
    updated: Timestamp
    """Time at which the activity advanced last. Nothing renews it while the activity stands still."""


class HostProgress(Record):
    """Progress of one of several processes (``train/hosts/<host>.json``).

    It identifies the process that lags in a hang: process 0, which writes :class:`Progress`, then only waits for it.
    """

    version: Version = 3
    attempt: Count
    restart: Count = 0
    host: Count
    """Index of the stage's process."""
    step: Count = 0
    """Step that the process has started, from 1; 0 while it prepares its first step."""
    evaluated: Count = 0
    """Number of batches that it has evaluated since it started that step."""
    updated: Timestamp
