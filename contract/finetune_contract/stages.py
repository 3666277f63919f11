"""The stages of a job: one row each, in the order in which they run.

A row holds what both operator and trainer read. What only the operator needs (resources, grace period, texts) is in its
own table, ``finetune_operator/planning/stages.py``. A successful stage reports the outcome whose ``kind`` is the
stage's name (:data:`.result.Details`).
"""

from enum import StrEnum
from typing import Literal, Self


class Stage(StrEnum):
    """The stages of a job, in the order in which they run."""

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
    """Short name in JobSet names and attempt folders."""
    on_tpu: bool
    """Whether the stage runs on the job's slices, with one process per host. Otherwise it runs in one pod on CPU."""
    order: int
    """Position among the stages, from 0."""

    # The defaults allow lookup of a member by its value alone.
    def __new__(cls, value: str, short: str = "", nodes: Literal["CPU", "TPU"] = "CPU") -> Self:
        stage = str.__new__(cls, value)
        stage._value_ = value
        stage.short, stage.on_tpu, stage.order = short, nodes == "TPU", len(cls.__members__)
        return stage

    @classmethod
    def from_short(cls, short: str) -> Self:
        return next(stage for stage in cls if stage.short == short)
