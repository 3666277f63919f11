"""Finds changes with which a training that does not fit would fit. Each remedy has been compiled."""

import math
from collections.abc import Callable, Iterator, Sequence

from finetune_contract import MeshSpec, SliceShape
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
)
from finetune_trainer.compiled.search import (
    LAST_RESORT,
    REMAT,
    ModelBounds,
    SearchSpace,
    tensor_parallel_meshes,
    tuned,
    with_least_memory,
)

#: Most compilations for a batch size, and for a larger slice.
_BATCHES, _SLICES = 4, 2
#: Settings of a job that the last resort replaces.
_REMAT_SETTINGS = tuple(LAST_RESORT)


def remedies(
    start: Candidate,
    refusal: MemoryExceeded,
    choices: SearchSpace,
    model: ModelBounds,
    ask: Callable[[Candidate], Answer],
    *,
    larger: Sequence[SliceShape] = (),
    late: Callable[[], bool] = lambda: False,
) -> tuple[str, ...]:
    """Remedies for ``start``, whose last answer was ``refusal``.

    Tries another remat policy and another mesh if the job sets them, the largest batch that fits, and the first of the
    ``larger`` slices. Stops once ``late`` returns True.
    """
    searches: Sequence[Callable[[], Iterator[str]]] = (
        lambda: _policy(start, choices, model, ask),
        lambda: _mesh(start, choices, model, ask),
        lambda: _largest_batch(start, choices, model, refusal, ask),
        lambda: _larger_slice(start, choices, model, ask, larger),
    )
    return tuple(remedy for search in searches if not late() for remedy in search())


def _policy(
    start: Candidate, choices: SearchSpace, model: ModelBounds, ask: Callable[[Candidate], Answer]
) -> Iterator[str]:
    """A remat policy in place of the job's own."""
    if choices.remat:
        return
    freed = start.model_copy(update={"without": list(_REMAT_SETTINGS)})
    for policy in (REMAT[-1], LAST_RESORT):
        if isinstance(ask(tuned(freed, choices, model, policy)), CompileSuccess):
            yield " and ".join(f"engineOverrides.{name} {value}" for name, value in policy.items())
            return


def _mesh(
    start: Candidate, choices: SearchSpace, model: ModelBounds, ask: Callable[[Candidate], Answer]
) -> Iterator[str]:
    """A mesh in place of the job's own: all devices share the parameters, then some of them share rows, too."""
    own = start.mesh
    if choices.parallelism or start.slice.devices == 1:
        return
    whole = own.model_copy(update={"data": own.slices, "fsdp": own.devices // own.slices, "tensor": 1})
    for mesh in (whole, *tensor_parallel_meshes(whole, model)):
        if mesh == own or start.global_batch % _unit(mesh, model):
            continue
        moved = start.model_copy(update={"mesh": mesh})
        if isinstance(ask(with_least_memory(moved, choices, model)), CompileSuccess):
            yield f"resources.parallelism data {mesh.data}, fsdp {mesh.fsdp}, tensor {mesh.tensor}"
            return


def _largest_batch(
    start: Candidate,
    choices: SearchSpace,
    model: ModelBounds,
    refusal: MemoryExceeded,
    ask: Callable[[Candidate], Answer],
) -> Iterator[str]:
    """The largest batch that fits, between one that does and one that does not.

    Memory is linear in the batch: the known points determine what to try next. A search that ends before it is certain
    says so.
    """
    unit = _unit(start.mesh, model)
    fits, fails = 0, start.global_batch // unit
    known = [(0, refusal.arguments_bytes), (fails, refusal.needed_bytes)]
    for _ in range(_BATCHES):
        if fails - fits <= 1:
            break
        ends = _where_it_ends(known, refusal.limit_bytes)
        units = (fits + fails) // 2 if ends is None else min(max(ends, fits + 1), fails - 1)
        answer = ask(
            with_least_memory(start.model_copy(update={"global_batch": units * unit}), choices, model)
        )
        match answer:
            case CompileSuccess():
                fits = units
                known.append((units, answer.peak_bytes))
            case MemoryExceeded():
                fails = units
                known.append((units, answer.needed_bytes))
            case CompileFailure():
                break
    if fits:
        unsure = " (perhaps more)" if fails - fits > 1 else ""
        yield f"hyperparameters.globalBatchSize {fits * unit}{unsure}{_with(choices)}"


def _where_it_ends(known: Sequence[tuple[int, int | None]], limit: int) -> int | None:
    """The most units within the limit, on the line through the last two that were compiled.

    None if their memory is unknown.
    """
    (first, needed_first), (last, needed_last) = known[-2:]
    if needed_first is None or needed_last is None or needed_first == needed_last:
        return None
    return first + int((limit - needed_first) * (last - first) / (needed_last - needed_first))


def _larger_slice(
    start: Candidate,
    choices: SearchSpace,
    model: ModelBounds,
    ask: Callable[[Candidate], Answer],
    larger: Sequence[SliceShape],
) -> Iterator[str]:
    """The first of the larger slices on which the same batch fits.

    If the batch cannot be divided there, the next larger batch that can is tried.
    """
    for shape in larger[:_SLICES]:
        mesh = _over(start.mesh, shape, start.global_batch, choices, model)
        if mesh is None:
            continue
        unit = _unit(mesh, model)
        batch = math.ceil(start.global_batch / unit) * unit
        moved = start.model_copy(update={"slice": shape, "mesh": mesh, "global_batch": batch})
        if isinstance(ask(with_least_memory(moved, choices, model)), CompileSuccess):
            with_batch = f" (globalBatchSize {batch})" if batch != start.global_batch else ""
            yield f"resources.tpu {shape.name}{with_batch}{_with(choices)}"
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


def _unit(mesh: MeshSpec, model: ModelBounds) -> int:
    """The batch must be a multiple of this."""
    return mesh.data * mesh.fsdp * model.accumulation


def _with(choices: SearchSpace) -> str:
    """The policy that was compiled, if it was not the job's, as text."""
    return f" with remat_policy {LAST_RESORT['remat_policy']}" if choices.remat else ""
