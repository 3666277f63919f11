"""A float32 forward pass of a converted model by MaxText's own modules, with one block of layers in memory at a time.

MaxText computes it as a few small models: one that has only the rows of the embedding table that the tokens need, one
with a single block for each kind of block, and one with a part of the vocabulary for the logits. Each is compiled once
and called with the weights of the next block.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from maxtext.checkpoint_conversion.utils.utils import param_key_parts_from_path
from maxtext.common.common_types import MODEL_MODE_TRAIN
from maxtext.layers.moe import RoutedMoE
from maxtext.utils import model_creation_utils

from finetune_trainer.checkpoints.memmap import memmap_array
from finetune_trainer.checkpoints.reading import CheckpointReader
from finetune_trainer.checkpoints.writing import Index
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.sharding import mesh_context
from finetune_trainer.families import ModelPlan
from finetune_trainer.families.plan import Family

#: Rows of the vocabulary whose logits are computed at once.
VOCABULARY = 16384
#: Standard deviations of a token's scores for experts within which float32 roundings decide. Measured: 1e-5.
_UNDECIDED = 1e-3
_EMBEDDING = "params-token_embedder-embedding"
_HEAD = "params-decoder-logits_dense-kernel"
#: Bytes up to which an array of one block is held in memory.
_IN_MEMORY = 128 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive layers that one call computes."""

    settings: Mapping[str, object]
    """MaxText's settings for a model that has this block only."""
    stack: str | None
    """The module that stacks such blocks; None if the block is not stacked."""
    place: int = 0
    """Index in that stack."""


def blocks(plan: ModelPlan) -> list[Block]:
    """The blocks of the whole model, in order.

    Gemma 3's last layers, which do not fill a block of six, are a separate block.
    """
    size = plan.block_layers
    if plan.family is Family.DEEPSEEK2:
        assert plan.experts is not None
        one: dict[str, object] = {"base_num_decoder_layers": 1}
        dense = one | {"first_num_dense_layers": 1}
        # MaxText refuses another width for dense layers if there are none.
        mixed = one | {"first_num_dense_layers": 0, "base_mlp_dim": plan.experts.width}
        return [
            Block(settings=dense, stack="dense_layers", place=i) for i in range(plan.experts.dense_layers)
        ] + [
            Block(settings=mixed, stack="moe_layers", place=i)
            for i in range(plan.layers - plan.experts.dense_layers)
        ]
    # MaxText counts Gemma 2's layers in pairs.
    counted = 1 if plan.family is Family.GEMMA2 else size
    found = [
        Block(settings={"base_num_decoder_layers": counted}, stack="layers", place=i)
        for i in range(plan.layers // size)
    ]
    if rest := plan.layers % size:
        found.append(Block(settings={"base_num_decoder_layers": rest}, stack=None))
    return found


class Forward:
    """The model of one converted checkpoint. Call ``engine.prepare(plan)`` first."""

    def __init__(self, checkpoint: CheckpointReader, plan: ModelPlan, *, scratch: Path) -> None:
        self._checkpoint = checkpoint
        self._plan = plan
        self._scratch = scratch
        self._programs: dict[object, _Program] = {}

    def logits(
        self, rows: Sequence[Sequence[int]], experts: Sequence[Sequence[np.ndarray] | None] = ()
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Float32 logits, one part of the vocabulary after the other.

        Yields the part's first token id, and for each row of token ids the logits ``[len(row), part]``. Raises
        ``CheckpointUnreadableError``.

        Args:
            rows: token ids.
            experts: by layer, for each row the experts of its tokens, ``[len(row), experts per token]``; None for a
                layer without experts. A choice that the model's own scores rule out by more than ``_UNDECIDED`` makes
                the row's logits NaN. If empty, the model chooses.
        """
        tokens, positions, segments = _batch(rows)
        state = self._embedded(tokens)
        for number, block in enumerate(blocks(self._plan)):
            # With experts, each layer is a separate block.
            chosen = experts[number] if self._plan.experts is not None and experts else None
            given = () if chosen is None else (_rectangle(chosen, tokens.shape),)
            program = self._program(block.settings, tokens.shape, 1, _routed_layers if given else _layers)
            state = program.run(self._weights(program, block), (*given, state, tokens, positions, segments))
            state.block_until_ready()  # else the next blocks' weights are read meanwhile
        for start in range(0, self._plan.vocab_size, VOCABULARY):
            stop = min(start + VOCABULARY, self._plan.vocab_size)
            program = self._program(blocks(self._plan)[0].settings, tokens.shape, stop - start, _head)
            values = np.asarray(program.run(self._head(program, slice(start, stop)), (state,)), np.float32)
            yield start, [values[i, : len(row)] for i, row in enumerate(rows)]

    def _embedded(self, tokens: np.ndarray) -> jax.Array:
        """The embedded tokens. The table is read once, and only the rows of these tokens are kept."""
        found, places = np.unique(tokens, return_inverse=True)
        program = self._program(blocks(self._plan)[0].settings, tokens.shape, len(found), _embedding)
        table = np.concatenate(list(self._rows(found)), axis=-1)
        return program.run({_EMBEDDING: table}, (places.reshape(tokens.shape).astype(np.int32),))

    def _rows(self, wanted: np.ndarray) -> Iterator[np.ndarray]:
        width = self._checkpoint.arrays[_EMBEDDING].shape[1]
        piece = self._checkpoint.arrays[_EMBEDDING].chunks[1]
        for start in range(0, width, piece):
            columns = self._checkpoint.read(_EMBEDDING, (slice(None), slice(start, start + piece)))
            yield columns[wanted]

    def _head(self, program: "_Program", part: slice) -> dict[str, np.ndarray]:
        """The last norm, and a part of the output head, which is the embedding table if they are tied."""
        head, index = (_HEAD, (slice(None), part)) if _HEAD in program.keys else (_EMBEDDING, (part,))
        return {key: self._checkpoint.read(key) for key in program.keys if "-decoder_norm-" in key} | {
            head: self._checkpoint.read(head, index)
        }

    def _weights(self, program: "_Program", block: Block) -> dict[str, jax.Array]:
        module = f"-decoder-{block.stack or 'layers_remainder'}-"
        return {
            key: self._part(key, shape, block.place) for key, shape in program.keys.items() if module in key
        }

    def _part(self, key: str, shape: tuple[int, ...], place: int) -> jax.Array:
        """Returns one block's part of the checkpoint's array ``key``, which stacks the parts of all blocks on one axis.

        ``shape`` is the part's, with a 1 at that axis; ``place`` is the block's index in the stack.
        """
        held = self._checkpoint.arrays[key].shape
        # The axis whose size differs. There is none if the stack has only one block: that is the whole array.
        stacked = [axis for axis, (whole, part) in enumerate(zip(held, shape, strict=True)) if whole != part]
        index: Index = tuple(
            slice(place, place + 1) if axis in stacked else slice(None) for axis in range(len(shape))
        )
        if math.prod(shape) * 4 <= _IN_MEMORY or 0 in stacked:
            return _placed(self._checkpoint.read(key, index))
        # Backed by a file that the system may drop from memory and read again; JAX uses the pages without a copy.
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            values = memmap_array(file, np.dtype(np.float32), shape)
        # Rows of the first axis that are read at once.
        step = max(1, shape[0] * _IN_MEMORY // (math.prod(shape) * 4))
        for start in range(0, shape[0], step):
            rows = slice(start, min(start + step, shape[0]))
            values[rows] = self._checkpoint.read(key, (rows, *index[1:]))
        return _placed(values)

    def _program(
        self,
        settings: Mapping[str, object],
        shape: tuple[int, int],
        vocabulary: int,
        call: Callable[..., jax.Array],
    ) -> "_Program":
        key = (tuple(settings.items()), shape, vocabulary, call)
        if key not in self._programs:
            config = maxtext.configure(
                self._plan, run_name="forward", base_output_directory=str(self._scratch), weight_dtype="float32",
                dtype="float32", attention="dot_product", matmul_precision="highest",
                per_device_batch_size=shape[0] // len(jax.devices()), max_target_length=shape[1],
                max_prefill_predict_length=shape[1], vocab_size=vocabulary,
                # Every expert computes every token: with sparse products a CPU does so too, eight times slower.
                sparse_matmul=False, megablox=False, **dict[str, Any](settings),
            )  # fmt: skip
            self._programs[key] = _Program(config, call)
        return self._programs[key]


class _Program:
    """One of MaxText's models, a part of which is called with given weights."""

    def __init__(self, config: Any, call: Callable[..., jax.Array]) -> None:
        self.config = config
        _, model = model_creation_utils.create_nnx_abstract_model(config)
        self._mesh = model.mesh
        graph, parameters, state = nnx.split(model, nnx.Param, ...)
        named = {_key(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]}
        self.keys: dict[str, tuple[int, ...]] = {key: tuple(leaf.shape) for key, leaf in named.items()}

        @jax.jit
        def run(weights: Mapping[str, jax.Array], arguments: tuple[jax.Array, ...]) -> jax.Array:
            # Weights that the call does not use are not part of the program.
            filled = jax.tree_util.tree_map_with_path(
                lambda path, leaf: weights.get(_key(path), _blank(leaf)), parameters
            )
            return call(nnx.merge(graph, filled, jax.tree.map(_blank, state)), *arguments)

        self._run = run

    def run(self, weights: Mapping[str, Any], arguments: tuple[Any, ...]) -> jax.Array:
        with mesh_context(self.config, self._mesh):
            found: jax.Array = self._run(dict(weights), arguments)
        return found


def _embedding(model: Any, tokens: jax.Array) -> jax.Array:
    found: jax.Array = model.decoder.embed_tokens(model.token_embedder, tokens, MODEL_MODE_TRAIN)
    return found


def _layers(
    model: Any, state: jax.Array, tokens: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    output = model.decoder(
        model.token_embedder, jnp.zeros_like(tokens), positions, segments, deterministic=True,
        model_mode=MODEL_MODE_TRAIN, decoder_input_embeddings=state,
    )  # fmt: skip
    hidden: jax.Array = output[1]
    return hidden


def _routed_layers(model: Any, chosen: jax.Array, *arguments: jax.Array) -> jax.Array:
    """``_layers`` with the experts of each token given, ``[batch, length, experts per token]``.

    MaxText's router replay supports few decoders, but all of them choose with this method.
    """
    own, segments = RoutedMoE.get_topk, arguments[-1]

    def given(layer: Any, scores: jax.Array, *rest: Any, **_: Any) -> tuple[jax.Array, jax.Array]:
        weights, experts = own(layer, scores, *rest, forced_routed_experts=chosen)
        ours = jnp.any(jnp.arange(scores.shape[-1])[:, None] == chosen[..., None, :], axis=-1)
        last = jnp.where(ours, scores, jnp.inf).min(axis=-1)
        first_other = jnp.where(ours, -jnp.inf, scores).max(axis=-1)
        possible = (first_other - last <= _UNDECIDED * scores.std(axis=-1)) | (segments == 0)
        return jnp.where(possible[..., None], weights, jnp.nan), experts

    with patch.object(RoutedMoE, "get_topk", given):
        return _layers(model, *arguments)


def _head(model: Any, state: jax.Array) -> jax.Array:
    found: jax.Array = model.decoder.apply_output_head(model.token_embedder, state, True, MODEL_MODE_TRAIN)
    return found


def _placed(values: np.ndarray) -> jax.Array:
    found: jax.Array = jax.device_put(values)
    return found


def _key(path: Any) -> str:
    return "-".join(("params", *param_key_parts_from_path(path)))


def _blank(leaf: Any) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _batch(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, positions and segments, padded to a rectangle whose rows divide evenly among the devices."""
    devices = len(jax.devices())
    shape = (math.ceil(len(rows) / devices) * devices, max(map(len, rows)))
    tokens, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
    return tokens, np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape), segments


def _rectangle(chosen: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """``chosen`` of all rows in one array; padding tokens are assigned the first experts."""
    several = chosen[0].shape[-1]
    found = np.broadcast_to(np.arange(several, dtype=np.int32), (*shape, several)).copy()
    for i, row in enumerate(chosen):
        found[i, : len(row)] = row
    return found


class RunningLoss:
    """Mean negative log-likelihood in nats of every token after a row's first, over all rows together.

    It is computed in float64 from logits of one part of the vocabulary after the other.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._next = [np.asarray(row[1:]) for row in rows]
        self._top = [np.full(len(each), -np.inf) for each in self._next]
        self._sum = [np.zeros(len(each)) for each in self._next]
        self._chosen = [np.zeros(len(each)) for each in self._next]

    def add(self, start: int, logits: Sequence[np.ndarray]) -> None:
        """Adds ``logits`` of the token ids from ``start``, for each row ``[len(row), part]``."""
        for i, part in enumerate(logits):
            wide = part[:-1].astype(np.float64)
            top = np.maximum(self._top[i], wide.max(axis=-1))
            self._sum[i] = self._sum[i] * np.exp(self._top[i] - top) + np.exp(wide - top[:, None]).sum(
                axis=-1
            )
            self._top[i] = top
            at = np.flatnonzero((self._next[i] >= start) & (self._next[i] < start + wide.shape[1]))
            self._chosen[i][at] = wide[at, self._next[i][at] - start]

    def mean(self) -> float:
        losses = [
            np.log(total) + top - chosen
            for total, top, chosen in zip(self._sum, self._top, self._chosen, strict=True)
        ]
        return float(np.concatenate(losses).mean())
