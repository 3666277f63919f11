"""The configuration of a LoRA adapter as a job exports it. Hostile input: only fields that are listed here are used."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finetune_operator.cli.errors import CliError
from finetune_operator.results.lines import fault_of

_CONFIG = "adapter_config.json"
_LIMIT = 2**20
#: A repository of the Hugging Face Hub: no path, no URI.
_REPOSITORY = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?")

Module = Annotated[str, Field(max_length=256)]


class AdapterConfig(BaseModel):
    """What PEFT needs to place the adapter's weights. Names are PEFT's."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    base_model_name_or_path: Annotated[str, Field(max_length=1024)]
    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1, le=65536)]
    lora_alpha: Annotated[float, Field(ge=0, le=1e9)]
    target_modules: Annotated[list[Module], Field(min_length=1, max_length=256)]
    exclude_modules: Module | None = None
    use_rslora: bool = False

    @property
    def repository(self) -> str | None:
        """The base model's repository on the Hugging Face Hub; None if the base is not there."""
        base = self.base_model_name_or_path
        return base if len(base) <= 160 and _REPOSITORY.fullmatch(base) else None

    @property
    def served_rank(self) -> int:
        """The value of vLLM's ``--max-lora-rank``: a power of two from 8 on. Its default is 16."""
        return max(8, 1 << (self.r - 1).bit_length())


def read_adapter(folder: Path) -> AdapterConfig:
    """Returns the configuration of a downloaded adapter. Raises CliError if it is not that of a LoRA adapter."""
    path = folder / _CONFIG
    try:
        with path.open("rb") as stream:
            return AdapterConfig.model_validate_json(stream.read(_LIMIT))
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise CliError(f"{path} is not the configuration of a LoRA adapter: {fault_of(error)}") from error
