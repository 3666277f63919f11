"""Loads the converted model onto the devices with MaxText.

Orbax reads each host's part of it in its stored dtype, so a host needs memory for at most that part.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from maxtext.utils import maxtext_utils_nnx, model_creation_utils

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.conversion.cache import UNREADABLE
from finetune_trainer.errors import StageError

#: Orbax's and TensorStore's messages for files that are missing, truncated or of other content.
_UNREADABLE = re.compile(
    r"No valid Orbax checkpoint|NOT_FOUND|DATA_LOSS|OUT_OF_RANGE|FAILED_PRECONDITION|Error (?:reading|opening|decoding)"
    r"|zarr|ocdbt",
    re.IGNORECASE,
)


def pretrained(config: Any) -> tuple[Any, Any]:
    """The model and its mesh. ``config`` is MaxText's; its ``load_parameters_path`` names the converted model.

    Raises ``StageError`` 66 if the converted model is missing or incomplete.
    """
    try:
        with _without_random_weights():
            model, mesh = model_creation_utils.from_pretrained(config)
    except (ValueError, OSError, KeyError) as error:
        if not _UNREADABLE.search(str(error)):
            raise
        raise StageError(
            ExitCode.INPUT_MISSING,
            UNREADABLE,
            "the converted model is missing or incomplete",
            where=str(config.load_parameters_path),
            actual=" ".join(str(error).split())[:300],
            expected="what the Convert stage wrote",
            fix="Set cache: Refresh and retry from Convert: retry: {generation: 1, fromStage: Convert}.",
        ) from error
    return model, mesh


@contextlib.contextmanager
def _without_random_weights() -> Iterator[None]:
    """Makes MaxText initialize the model's parameters with zeros, which cost nothing; random keys stay as they are."""
    create = maxtext_utils_nnx.create_nnx_sharded_model

    def zeros(abstract: Any, made: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        def zeroed() -> Any:
            model = made()
            parameters = nnx.state(model, nnx.Param)
            nnx.update(model, jax.tree.map(jnp.zeros_like, parameters))
            return model

        return create(abstract, zeroed, *arguments, **named)

    maxtext_utils_nnx.create_nnx_sharded_model = zeros
    try:
        yield
    finally:
        maxtext_utils_nnx.create_nnx_sharded_model = create
