"""Yields the tuned model's tensors under their plain Hugging Face names, in float32 and one at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints import mapping
from finetune_trainer.checkpoints.reading import CheckpointReader
from finetune_trainer.checkpoints.unstacking import unstack
from finetune_trainer.checkpoints.weights import Weights
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan

_LOW, _HIGH = "_lora_a", "_lora_b"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """LoRA pairs by plain name of the adapted weight: (A ``[rank, in]``, B ``[out, rank]``), float32."""

    pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]
    rank: int
    alpha: float

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    @property
    def modules(self) -> list[str]:
        """Names of the adapted modules for PEFT's ``target_modules``, for example q_proj."""
        return sorted({name.split(".")[-2] for name in self.pairs})


def full(
    checkpoint: CheckpointReader, plan: ModelPlan, config: Any, scratch: Path
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of a fully fine-tuned checkpoint.

    Raises ``StageError`` 64 if a parameter is missing, and ``CheckpointUnreadableError``.
    """
    shapes = plan.tensors()
    for parameter in mapping.parameters(plan, config):
        if parameter.key not in checkpoint.arrays:
            raise _incomplete(parameter.key)
        stacked = parameter.stack_axes(len(checkpoint.arrays[parameter.key].shape), config.param_scan_axis)
        with unstack(checkpoint, parameter.key, stacked, scratch) as found:
            for name, part in zip(parameter.names, found, strict=True):
                yield name, parameter.decode(part, shapes[name])


def adapter(
    checkpoint: CheckpointReader, plan: ModelPlan, config: Any, *, rank: int, alpha: float
) -> LoraAdapter:
    """Returns the adapter in a LoRA checkpoint, which contains neither alpha nor tensor names; both come from the job.

    Raises ``StageError`` 64 if the checkpoint has no adapter of this rank, and ``CheckpointUnreadableError``.
    """
    shapes = plan.tensors()
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for parameter in mapping.parameters(plan, config):
        keys = (parameter.key + _LOW, parameter.key + _HIGH)
        if not all(key in checkpoint.arrays for key in keys):
            continue
        low, high = (checkpoint.read(key) for key in keys)
        shape = shapes[parameter.names[0]]
        found = parameter.decode_pair(low, high, shape, plan.head_dim, config.param_scan_axis)
        pairs |= dict(zip(parameter.names, found, strict=True))
    left = len([key for key in checkpoint.arrays if key.endswith(_LOW)])
    if not pairs or any(a.shape[0] != rank for a, _ in pairs.values()):
        actual = f"{left} adapted parameters" + (
            f" of rank {next(iter(pairs.values()))[0].shape[0]}" if pairs else ""
        )
        raise StageError(
            ExitCode.BAD_REQUEST, "CheckpointMismatch", "the checkpoint does not belong to this LoRA training",
            actual=actual, expected=f"adapters of rank {rank}", fix="Export with the settings of the training.",
        )  # fmt: skip
    return LoraAdapter(pairs=pairs, rank=rank, alpha=alpha)


def merged(weights: Weights, lora: LoraAdapter) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the base model's tensors with ``alpha / rank * B @ A`` added; other weights stay bit-identical."""
    for name in weights.text:
        array = weights.read(name).astype(np.float32)
        if name in lora.pairs:
            a, b = lora.pairs[name]
            array += np.float32(lora.scaling) * (b @ a)
        yield name, array


def _incomplete(key: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "CheckpointMismatch", "the checkpoint has no value for a parameter of this model",
        actual=f"no {key}",
        expected="a fully tuned checkpoint of the same model",
        fix="Export the checkpoint with the model that was trained.",
    )  # fmt: skip
