"""A plain forward pass of a whole MaxText checkpoint, as MaxText itself restores it, in float32."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules

from finetune_trainer.conversion.loading import pretrained
from finetune_trainer.engine import maxtext
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import engine_path


class FullForward:
    """The model of one checkpoint. Call ``engine.prepare(plan)`` first."""

    def __init__(
        self, items: str, plan: ModelPlan, *, rows: int, length: int, scratch: Path, scanned: bool = True
    ) -> None:
        """``items``: a params checkpoint, converted or trained; ``scanned``: whether its layers are stacked. All calls
        pad to ``rows`` x ``length`` tokens. Raises as ``loading.pretrained`` does."""
        devices = len(jax.devices())
        self._shape = (math.ceil(rows / devices) * devices, length)
        self._config = maxtext.configure(
            plan,
            run_name="forward",
            base_output_directory=str(scratch),
            load_parameters_path=engine_path(items),
            weight_dtype="float32",
            dtype="float32",
            attention="dot_product",
            matmul_precision="highest",
            per_device_batch_size=self._shape[0] // devices,
            max_target_length=length,
            max_prefill_predict_length=length,
            scan_layers=scanned,
        )
        model, self._mesh = pretrained(self._config)
        graph, self._state = nnx.split(model)

        @jax.jit
        def run(state: Any, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
            output = nnx.merge(graph, state)(
                decoder_input_tokens=tokens,
                decoder_positions=positions,
                decoder_segment_ids=segments,
                enable_dropout=False,
            )
            logits: jax.Array = output[0] if isinstance(output, tuple) else output
            return logits

        self._run = run

    def logits(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """For each row of token ids, float32 logits ``[len(row), vocabulary]``."""
        tokens = np.zeros(self._shape, np.int32)
        segments = np.zeros(self._shape, np.int32)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = row
            segments[i, : len(row)] = 1
        positions = np.broadcast_to(np.arange(self._shape[1], dtype=np.int32), self._shape)
        with jax.set_mesh(self._mesh), logical_axis_rules(self._config.logical_axis_rules):
            output = self._run(
                self._state, jnp.asarray(tokens), jnp.asarray(positions), jnp.asarray(segments)
            )
        values = np.asarray(output, np.float32)
        return [values[i, : len(row)] for i, row in enumerate(rows)]
