"""The stages of a job: one row each, in the order in which they run.

A row holds what operator and trainer both read. What the operator alone knows (resources, grace period, texts) stands
in its own table, ``finetune_operator/planning/stages.py``. What a stage reports on success is the outcome whose
``kind`` is the stage's name (:data:`.result.Details`).
"""

from enum import StrEnum
from typing import Literal, Self


class Stage(StrEnum):
    """The stages of a job, in order."""

    PREFLIGHT = "Preflight", "prep", "CPU"
    """Checks data, memory and access on CPU."""
    CONVERT = "Convert", "conv", "CPU"
    """Converts the model for MaxText on CPU."""
    TRAIN = "Train", "train", "TPU"
    """Trains on the TPU slices."""
    EVALUATE = "Evaluate", "eval", "TPU"
    """Evaluates on the TPU slices."""
    EXPORT = "Export", "export", "CPU"
    """Exports the tuned model on CPU."""

    short: str
    """The form in JobSet names and attempt folders."""
    on_tpu: bool
    """Whether it runs on the job's slices, in as many processes as they have hosts. If not, in one pod on CPU."""
    order: int
    """Its place among the stages, from 0."""

    # Defaults: a call with the value alone looks a member up.
    def __new__(cls, value: str, short: str = "", nodes: Literal["CPU", "TPU"] = "CPU") -> Self:
        stage = str.__new__(cls, value)
        stage._value_ = value
        stage.short, stage.on_tpu, stage.order = short, nodes == "TPU", len(cls.__members__)
        return stage

    @classmethod
    def from_short(cls, short: str) -> Self:
        return next(stage for stage in cls if stage.short == short)
