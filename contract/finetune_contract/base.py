"""The model that every record of the contract derives from."""

from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

#: The major version of a record. A reader refuses another one (:mod:`.versions`).
Version = Literal[1]
Timestamp = AwareDatetime
Uri = Annotated[str, Field(pattern=r"^(gs|file)://", max_length=1024)]
"""A ``gs://`` or ``file://`` address; folders carry no trailing slash."""
Published = Annotated[str, Field(pattern=r"^(gs|file|hf)://", max_length=1024)]
"""The same, or a commit on the Hugging Face Hub: ``hf://acme/model@commit``."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

#: Above it a float no longer tells integers apart.
MOST_COUNT = 2**53
#: 31,700 years: more than lies between any two timestamps.
MOST_SECONDS = 1e12
MOST_CHIPS = 1_000_000
MOST_PRICE = 1e12

Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
"""How many, how large, or which one: steps, rows, tokens, bytes, attempts."""
Code = Annotated[int, Field(ge=-MOST_COUNT, le=MOST_COUNT)]
"""An exit code."""
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
"""A duration."""
Chips = Annotated[int, Field(ge=0, le=MOST_CHIPS)]
Price = Annotated[float, Field(ge=0, le=MOST_PRICE, allow_inf_nan=False)]
"""In the currency of the profile."""

#: Fields that say what a record is: written even where they hold their default.
_MARKS = ("version", "kind", "type")


class Record(BaseModel):
    """An immutable record. Unknown keys are ignored when it is read (:mod:`.versions` says why that loses nothing).

    A measurement that is not a number (a loss that diverged) is written as the string "NaN" or "Infinity": JSON has no
    other way, and a null could not be read back where a number must stand. Counts, durations and prices are always
    finite and bounded: sums of them decide when a job has to stop.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Compact JSON without the fields at their default, which an older reader may not know."""
        return self.model_dump_json(exclude_defaults=True)

    @model_serializer(mode="wrap")
    def _marked(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        marks = {name: getattr(self, name) for name in _MARKS if name in type(self).model_fields}
        return {**marks, **handler(self)}
