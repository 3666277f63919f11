"""The converted model, loaded onto the devices by MaxText."""

import re
from typing import Any

from maxtext.utils import model_creation_utils

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.converted import UNREADABLE
from finetune_trainer.errors import StageError

#: How Orbax and TensorStore tell that files are missing, cut short or of another content.
_UNREADABLE = re.compile(
    r"No valid Orbax checkpoint|NOT_FOUND|DATA_LOSS|OUT_OF_RANGE|FAILED_PRECONDITION|Error (?:reading|opening|decoding)"
    r"|zarr|ocdbt",
    re.IGNORECASE,
)


def pretrained(config: Any) -> tuple[Any, Any]:
    """The model and its mesh. ``config`` is MaxText's; its ``load_parameters_path`` names the converted model.

    Raises ``StageError`` 66 where what lies there is not, or no longer, the whole of one.
    """
    try:
        model, mesh = model_creation_utils.from_pretrained(config)
    except (ValueError, OSError, KeyError) as error:
        if not _UNREADABLE.search(str(error)):
            raise
        raise StageError(
            ExitCode.INPUT_MISSING,
            UNREADABLE,
            "the converted model is not there, or not whole",
            where=str(config.load_parameters_path),
            saw=" ".join(str(error).split())[:300],
            expected="what the Convert stage wrote",
            fix="Set cache: Refresh and retry from Convert: retry: {generation: 1, fromStage: Convert}.",
        ) from error
    return model, mesh
