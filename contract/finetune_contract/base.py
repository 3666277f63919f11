"""The base model of all records of the contract, and the types of their fields."""

from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

#: Major version of a record. A reader refuses any other major version (:mod:`.versions`).
Version = Literal[3]
Timestamp = AwareDatetime
Uri = Annotated[str, Field(pattern=r"^(gs|file)://", max_length=1024)]
"""A ``gs://`` or ``file://`` address; folders carry no trailing slash."""
Published = Annotated[str, Field(pattern=r"^(gs|file|hf)://", max_length=1024)]
"""A ``gs://`` or ``file://`` address, or a commit on the Hugging Face Hub: ``hf://acme/model@commit``."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

#: The largest integer up to which a float represents every integer exactly.
MOST_COUNT = 2**53
#: 31,700 years: longer than the interval between any two timestamps.
MOST_SECONDS = 1e12
MOST_CHIPS = 1_000_000
MOST_PRICE = 1e12

Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
"""A non-negative count, size or index: steps, rows, tokens, bytes, attempts."""
Code = Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)]
"""Exit code of a process."""
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
"""Duration in seconds."""
Chips = Annotated[int, Field(ge=0, le=MOST_CHIPS)]
Price = Annotated[float, Field(ge=0, le=MOST_PRICE, allow_inf_nan=False)]
"""Amount in the profile's currency."""

#: Fields that identify the kind of a record. They are written even if they hold their default.
_MARKS = ("version", "kind", "type")


class Record(BaseModel):
    """An immutable record. Readers ignore unknown keys (:mod:`.versions` explains why this is safe).

    A measurement that is not a finite number (a loss that diverged) is written as the string "NaN" or "Infinity": JSON
    has no literal for it, and a null could not be read back into a required number. Counts, durations and prices are
    always finite and bounded, because their sums decide when a job must stop.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Returns compact JSON without fields at their default, which an older reader may not know."""
        return self.model_dump_json(exclude_defaults=True)

    @model_serializer(mode="wrap")
    def _marked(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        marks = {name: getattr(self, name) for name in _MARKS if name in type(self).model_fields}
        return {**marks, **handler(self)}
