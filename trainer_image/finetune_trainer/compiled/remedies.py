"""What to change so that a training fits, by a linear model of its memory. Pure.

A device holds the step's arguments, which its share of the parameters determines, and temporaries, which are taken as
proportional to its rows. Some temporaries do not depend on the rows, so what the model says is a bound: a larger batch
or a smaller slice does not fit either.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from finetune_contract import MeshSpec, SliceShape
from finetune_trainer.compiled.compile_protocol import Candidate, MemoryExceeded
from finetune_trainer.compiled.search import ModelBounds, SearchSpace, tensor_parallel_meshes
from finetune_trainer.engine.chips import CHIPS


def remedies(
    start: Candidate,
    refusal: MemoryExceeded,
    choices: SearchSpace,
    model: ModelBounds,
    larger: Sequence[SliceShape] = (),
    *,
    several: bool = False,
) -> str:
    """A sentence about ``start``, whose last answer was ``refusal``: what to change.

    It names the settings of the job that preflight could choose better, the largest batch, and the first of the
    ``larger`` slices, as far as the model allows them. ``several``: whether the job may have other slices than that of
    ``start``, which is then named.
    """
    estimated: list[str] = []
    if refusal.needed_bytes is not None:
        unit = _unit(start.mesh, model)
        row = max(0, refusal.needed_bytes - refusal.arguments_bytes) / (start.global_batch / unit)
        estimated += _batch(start, refusal, row, unit, f" on {start.place}" if several else "")
        over = ((shape, _over(start.mesh, shape, start.global_batch, choices, model)) for shape in larger)
        estimated += _slice(start, refusal, row, model, over)
    changes = [*_left_out(start, choices), *(estimated or ["use LoRA or shorter sequences"])]
    by = "By an estimate from the compiled step"
    if not estimated:
        by = "No smaller batch and no slice of the profile is estimated to fit"
    return f"{by}: {', or '.join(changes)}."


def _left_out(start: Candidate, choices: SearchSpace) -> Iterator[str]:
    if not choices.remat:
        yield "leave out engineOverrides.remat_policy, so that preflight chooses it"
    if not choices.parallelism and start.slice.devices > 1:
        yield "leave out resources.parallelism"


def _batch(start: Candidate, refusal: MemoryExceeded, row: float, unit: int, on: str) -> Iterator[str]:
    """``row``: bytes for one row on each device."""
    fits = (refusal.limit_bytes - refusal.arguments_bytes) / row if row else 0.0
    if (units := int(min(fits, start.global_batch / unit - 1))) > 0:
        yield f"lower hyperparameters.globalBatchSize to {units * unit} or less{on}"


def _slice(
    start: Candidate,
    refusal: MemoryExceeded,
    row: float,
    model: ModelBounds,
    larger: Iterable[tuple[SliceShape, MeshSpec | None]],
) -> Iterator[str]:
    """``larger``: each slice with the job's mesh over it; None if it cannot have one."""
    for shape, mesh in larger:
        chip = CHIPS.get(shape.family)
        if mesh is None or chip is None:
            continue
        rows = math.ceil(start.global_batch / _unit(mesh, model))
        state = refusal.arguments_bytes * _shards(start.mesh) / _shards(mesh)
        temporaries = rows * row * start.mesh.tensor / mesh.tensor
        if state + temporaries <= chip.usable_gib * 2**30:
            batch = rows * _unit(mesh, model)
            with_batch = f" (globalBatchSize {batch})" if batch != start.global_batch else ""
            yield f"use resources.tpu {shape.name}{with_batch} or larger"
            return


def _over(
    mesh: MeshSpec, shape: SliceShape, batch: int, choices: SearchSpace, model: ModelBounds
) -> MeshSpec | None:
    """``mesh`` over another slice, with devices that share rows if the job leaves that open and it divides the batch.

    None if the slice has fewer devices than the job's own data and tensor parallelism, or a number that they do not
    divide.
    """
    fsdp, remainder = divmod(shape.devices * mesh.slices, mesh.data * mesh.tensor)
    if fsdp == 0 or remainder:
        return None
    over = mesh.model_copy(
        update={"fsdp": fsdp, "hosts": shape.hosts, "chips_per_host": shape.chips // shape.hosts}
    )
    meshes = (over, *(tensor_parallel_meshes(over, model) if choices.parallelism else ()))
    return next((each for each in meshes if batch % _unit(each, model) == 0), over)


def _shards(mesh: MeshSpec) -> int:
    """Number of devices that parameters are divided among; data parallelism replicates them."""
    return mesh.fsdp * mesh.tensor


def _unit(mesh: MeshSpec, model: ModelBounds) -> int:
    """The batch must be a multiple of this."""
    return mesh.data * mesh.fsdp * model.accumulation
