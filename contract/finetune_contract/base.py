"""The model that every record of the contract derives from."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

#: Raised when a record changes so that an older reader would misread it. Both sides refuse another version.
CONTRACT_VERSION = 1

Version = Literal[1]
Timestamp = AwareDatetime
Uri = Annotated[str, Field(pattern=r"^(gs|file)://", max_length=1024)]
"""A ``gs://`` or ``file://`` address; folders carry no trailing slash."""
Published = Annotated[str, Field(pattern=r"^(gs|file|hf)://", max_length=1024)]
"""The same, or a commit on the Hugging Face Hub: ``hf://acme/model@commit``."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """An immutable record: unknown keys are refused, so a newer writer is never half understood.

    A number that is none (a loss that diverged) is written as the string "NaN" or "Infinity": JSON has no other way,
    and a null could not be read back where a number must stand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Compact JSON without the keys that hold None."""
        return self.model_dump_json(exclude_none=True)
