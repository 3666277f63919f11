"""The progress record: one small file, replaced whole at every report."""

from typing import Annotated

from pydantic import Field

from finetune_contract.base import Count, Record, Seconds, Timestamp, Version


class StepMetrics(Record):
    """Training metrics at one step; a missing one was not measured."""

    loss: float | None = None
    """Mean of the step's loss: over tokens, in nats, or over pairs, as the method has it."""
    perplexity: float | None = None
    """Where the loss is a mean over tokens."""
    gradient_norm: float | None = None
    learning_rate: float | None = None
    tokens: Count | None = None
    """Tokens of the step that count towards the loss."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """What else the method measures, by name. Of preference pairs: reward_accuracy, the share of those whose chosen
    answer has the higher reward, and reward_margin, how much higher it is on average."""


class EvaluationPoint(Record):
    """Loss on the validation sets during training, every token counting the same."""

    step: Count
    loss: float
    perplexity: float | None = None
    tokens: Count
    by_set: Annotated[dict[str, float], Field(max_length=64)] = {}
    """The loss of each, where there are several."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """What else the method measures, as in :class:`StepMetrics`."""


class DiscardedCheckpoint(Record):
    """A checkpoint that was no longer what had been saved, so training went on from the one before."""

    step: Count
    why: str
    """Which file, and what is wrong with it."""


class Progress(Record):
    """How far training is (``train/progress.json``), written by process 0."""

    version: Version = 1
    attempt: Count
    restart: Count = 0
    step: Count
    """Optimizer steps done."""
    total_steps: Count
    start_step: Count = 0
    """The step this attempt began at (0, or the checkpoint's)."""
    metrics: StepMetrics = StepMetrics()
    evaluation: EvaluationPoint | None = None
    """The last evaluation during training."""
    step_time_p50: Seconds | None = None
    step_time_p95: Seconds | None = None
    """Seconds over the recent steps, without compilation."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization: the share of the devices' published rate that the model's own arithmetic takes."""
    curve: Annotated[list[tuple[Count, float]], Field(max_length=48)] = []
    """(step, loss), thinned to at most 48 points over the whole run."""
    checkpoints: Annotated[list[Count], Field(max_length=10)] = []
    discarded: Annotated[list[DiscardedCheckpoint], Field(max_length=10)] = []
    """Over all attempts, the newest ones."""
    peak_memory_bytes: Count | None = None
    """The most that any device of process 0 has held, where devices tell."""
    seconds: Annotated[dict[str, Seconds], Field(max_length=64)] = {}
    """Where the time went, over all attempts so far: startup (from the start of the process to the stage's first line,
    imports above all), data, restore (of the weights), compile (until the first step is done, reading programs from the
    compilation cache included), first_step, productive, evaluate, recomputed (steps that a later attempt had to do
    again)."""
    compilations: Count | None = None
    """Programs that process 0 has compiled in this attempt so far, since the compilation cache did not have them. None:
    an earlier release."""
    updated: Timestamp


class HostProgress(Record):
    """How far one of several processes is (``train/hosts/<host>.json``), so that the one that lags in a hang can be
    named: the first process, which writes :class:`Progress`, then only waits for it."""

    version: Version = 1
    attempt: Count
    restart: Count = 0
    host: Count
    """Which process of the stage."""
    step: Count = 0
    """The step that it has begun, from 1; 0: it gets ready for its first."""
    evaluated: Count = 0
    """Batches that it has evaluated since."""
    updated: Timestamp
