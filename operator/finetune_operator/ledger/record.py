"""A record of the ledger: what one attempt used, at which price, and how it ended.

A record is complete by itself: the amounts of all records of a job add up to the job's usage. So any program that reads
JSON can sum them.
"""

from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from finetune_contract import FailureClass, Stage
from finetune_operator.api.common import DnsLabel
from finetune_operator.api.placement import Capacity

#: Maximum size of a record in bytes. Records of the operator have at most 15.5 KiB, most of it labels.
RECORD_BYTES: Final = 16 * 2**10
#: Maximum size of a model's address in a record, in UTF-8, before quotes in it are escaped.
MODEL_BYTES: Final = 1024
#: Maximum number of a job's labels in a record, in the order of their keys.
MOST_LABELS: Final = 32

Amount = Annotated[Decimal, Field(ge=0, max_digits=24, decimal_places=6)]
"""Chip hours or money, exact to six decimals, as in ``status.cost``."""


class LedgerOutcome(StrEnum):
    """How the attempt ended, or why the record was written."""

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """The operator stopped the attempt: its job was suspended or replaced it, or a limit was reached."""
    EVICTED = "Evicted"
    """Kueue withdrew the quota."""
    FAILED = "Failed"
    DELETED = "Deleted"
    """The job was deleted while the attempt ran."""
    RUNNING = "Running"
    """The record ends no attempt: its attempt runs past midnight, or usage became known after its end was recorded."""


class _Stored(BaseModel):
    """Readers ignore keys that they do not know."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class TrainedSteps(_Stored):
    """What a job's training has made until the end of an attempt, in which time, and what determines the size of a
    step. With model and slice, it says how long a step of such a training takes."""

    start_step: Annotated[int, Field(ge=0)]
    """Steps that were done and saved when the job's training began: 0, unless it continues another one."""
    end_step: Annotated[int, Field(ge=0)]
    """The last step of the attempt, as the trainer reports it."""
    attempts: Annotated[int, Field(ge=1)]
    """Number of attempts of Train until then."""
    seconds: Annotated[int, Field(ge=0)]
    """Running time of these attempts."""
    method: Annotated[str, Field(max_length=32)]
    lora: bool
    """Whether an adapter is trained; else all weights are."""
    quantization: Annotated[str, Field(max_length=32)] = ""
    """Format of the base model in fewer bits; empty if there is none."""
    max_seq_length: Annotated[int, Field(ge=1)]
    global_batch_size: Annotated[int, Field(ge=1)]


class LedgerRecord(_Stored):
    """One record."""

    version: Literal[1] = 1
    day: date
    """The day (UTC) on which the usage counts."""
    namespace: DnsLabel
    job: DnsLabel
    uid: Annotated[str, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9]*$", max_length=64)]
    """UID of the job."""
    labels: Annotated[
        dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]],
        Field(max_length=MOST_LABELS),
    ] = {}
    """Labels of the job."""
    profile: Annotated[str, Field(max_length=253)] = ""
    model: Annotated[str, Field(max_length=1024)] = ""
    """Repository or URI of the base model."""
    stage: Stage
    number: Annotated[int, Field(ge=0)]
    """Number of the attempt's JobSet."""
    restart: Annotated[int, Field(ge=0)] = 0
    """Number of earlier restarts of that JobSet."""
    sequence: Annotated[int, Field(ge=1)]
    """Position among the records of the job, from 1."""
    outcome: LedgerOutcome
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    reason: Annotated[str, Field(max_length=128)] = ""
    end: AwareDatetime
    """When the attempt ended, or the operator observed its end."""
    seconds: Annotated[int, Field(ge=0)] = 0
    """Running time that the record is about: that of the chip hours; of a stage on CPU, as far as it was measured."""
    tpu: Annotated[str, Field(max_length=63)] = ""
    """Name of the slice, for example v6e-16; empty for a stage on CPU."""
    chips: Annotated[int, Field(ge=0)] = 0
    flavor: Annotated[str, Field(max_length=63)] = ""
    capacity: Capacity | None = None
    """Kind of TPU capacity; None for a stage on CPU."""
    chip_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """None if the profile has none, or it is no longer known."""
    currency: Annotated[str, Field(max_length=256)] | None = None
    chip_hours: Amount = Decimal(0)
    cost: Amount | None = None
    """None if the job's cost is unknown, because the profile has no price."""
    trained: TrainedSteps | None = None
    """Set in the record that ends an attempt of Train whose steps are known, if all of its attempts have used as many
    chips."""

    @property
    def ends_attempt(self) -> bool:
        """Whether the attempt has ended; there is at most one such record of each attempt."""
        return self.outcome is not LedgerOutcome.RUNNING

    def to_json(self) -> bytes:
        """Returns the record as it is stored."""
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=False).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """Returns the record; None if the content is none of a version that this release reads."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return None
