"""Which candidates to compile, and which of them to take. Pure but for the answers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from finetune_contract import MeshSpec, SliceShape
from finetune_trainer.compiled.question import Answer, Candidate, Exceeded, Measured, NotCompiled

#: MaxText's remat policies worth a minute each: what is kept from the forward pass, most first.
REMAT: tuple[Mapping[str, str], ...] = (
    {"remat_policy": "minimal_with_context"},
    {"remat_policy": "save_qkv_proj"},
    {"remat_policy": "full"},
)
#: Where none of them fits: even the layers' inputs wait in the host's memory. Costs time that no roofline here knows.
LAST_RESORT: Mapping[str, str] = {"remat_policy": "custom", "decoder_layer_input": "offload"}
#: Pieces that the logits are made in, where they would take a large part of a chip's memory at once.
VOCABULARY_TILES = 8
_LARGE_LOGITS = 2**28
#: Most compilations that look for what would fit, once nothing does.
_BATCHES, _SLICES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user has left open."""

    remat: bool
    tiles: bool
    parallelism: bool
    larger: tuple[SliceShape, ...] = ()
    """Slices to name where this one is too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What bounds the choices."""

    heads: int
    kv_heads: int
    vocab_size: int
    sequence: int
    accumulation: int = 1
    """Forward passes that a batch is divided into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The end of a search."""

    best: Candidate | None
    answer: Measured | None
    refusal: Exceeded | NotCompiled | None
    """Of the last candidate of the wanted batch and slice, where none fits."""
    remedies: tuple[str, ...] = ()
    """What would fit, each compiled: ``globalBatchSize 16``, ``tpu v6e-32``."""
    tried: tuple[str, ...] = ()


@dataclass(slots=True)
class _Search:
    ask: Callable[[Candidate], Answer]
    tried: list[str] = field(default_factory=list)

    def __call__(self, candidate: Candidate) -> Answer:
        answer = self.ask(candidate)
        self.tried.append(f"{candidate}: {told(answer)}")
        return answer


def search(
    start: Candidate,
    choices: Choices,
    model: Model,
    ask: Callable[[Candidate], Answer],
    *,
    late: Callable[[], bool] = lambda: False,
) -> Found:
    """The fastest candidate by roofline that fits; between equals, within a hundredth, the one with the lowest peak.

    Where none fits: the largest batch and the next slice that do, compiled, too. Once it is ``late``, nothing better is
    looked for than what is found.
    """
    asked = _Search(ask)
    fitting: list[tuple[Candidate, Measured]] = []
    refusal: Exceeded | NotCompiled | None = None

    def take(candidate: Candidate) -> None:
        nonlocal refusal
        answer = asked(candidate)
        if isinstance(answer, Measured):
            fitting.append((candidate, answer))
        elif refusal is None or isinstance(answer, Exceeded):
            refusal = answer

    for remat in (*REMAT, LAST_RESORT) if choices.remat else ({},):
        if fitting and (late() or remat is LAST_RESORT):
            break
        take(_tuned(start, choices, model, remat))
    for mesh in _meshes(start.mesh, choices, model):
        if late() and (fitting or refusal):
            break
        tuned = _fastest(fitting)[0] if fitting else _thriftiest(start, choices, model)
        take(tuned.model_copy(update={"mesh": mesh}))
        if fitting:
            break
    if fitting:
        best, measured = _fastest(fitting)
        return Found(best=best, answer=measured, refusal=None, tried=tuple(asked.tried))
    remedies: tuple[str, ...] = ()
    if isinstance(refusal, Exceeded) and not late():
        remedies = (
            *_largest_batch(start, choices, model, refusal, asked),
            *_larger_slice(start, choices, model, asked),
        )
    return Found(best=None, answer=None, refusal=refusal, remedies=remedies, tried=tuple(asked.tried))


def _fastest(fitting: list[tuple[Candidate, Measured]]) -> tuple[Candidate, Measured]:
    """By the interval's high end, which alone tells candidates of equal arithmetic apart."""
    seconds = [each.step_seconds[1] if each.step_seconds else math.inf for _, each in fitting]
    least = min(seconds)
    close = [pair for pair, each in zip(fitting, seconds, strict=True) if each <= least * 1.01]
    return min(close, key=lambda pair: pair[1].peak_bytes)


def _meshes(mesh: MeshSpec, choices: Choices, model: Model) -> Iterator[MeshSpec]:
    """The same devices, each row shared by 2 of them, or 4."""
    for tensor in (2, 4) if choices.parallelism else ():
        if mesh.fsdp % tensor == 0 and model.heads % tensor == 0 and model.kv_heads % tensor == 0:
            yield mesh.model_copy(update={"tensor": mesh.tensor * tensor, "fsdp": mesh.fsdp // tensor})


def _tuned(start: Candidate, choices: Choices, model: Model, remat: Mapping[str, str]) -> Candidate:
    tiles: dict[str, str | int] = {}
    if choices.tiles and _tiled(start.global_batch, start.mesh, model):
        tiles = {"num_vocab_tiling": VOCABULARY_TILES}
    return start.model_copy(update={"tuning": {**start.tuning, **tiles, **remat}})


def _tiled(batch: int, mesh: MeshSpec, model: Model) -> bool:
    tokens = batch * model.sequence // (mesh.data * mesh.fsdp)
    per_device = tokens // mesh.tensor
    return tokens * model.vocab_size * 4 >= _LARGE_LOGITS and per_device % VOCABULARY_TILES == 0


def _thriftiest(start: Candidate, choices: Choices, model: Model) -> Candidate:
    """With the tuning that takes the least memory."""
    return _tuned(start, choices, model, LAST_RESORT if choices.remat else {})


def _largest_batch(
    start: Candidate, choices: Choices, model: Model, refusal: Exceeded, ask: _Search
) -> Iterator[str]:
    """The largest batch that fits, between one that does and one that does not. Memory grows in a line with the batch:
    what is known of it says where to look next. A search that ends before it is sure says so."""
    unit = start.mesh.data * start.mesh.fsdp * model.accumulation
    fits, fails = 0, start.global_batch // unit
    known = [(0, refusal.arguments_bytes), (fails, refusal.needed_bytes)]
    for _ in range(_BATCHES):
        if fails - fits <= 1:
            break
        ends = _where_it_ends(known, refusal.limit_bytes)
        units = (fits + fails) // 2 if ends is None else min(max(ends, fits + 1), fails - 1)
        answer = ask(_thriftiest(start.model_copy(update={"global_batch": units * unit}), choices, model))
        match answer:
            case Measured():
                fits = units
                known.append((units, answer.peak_bytes))
            case Exceeded():
                fails = units
                known.append((units, answer.needed_bytes))
            case NotCompiled():
                break
    if fits:
        unsure = " (perhaps more)" if fails - fits > 1 else ""
        yield f"hyperparameters.globalBatchSize {fits * unit}{unsure}"


def _where_it_ends(known: Sequence[tuple[int, int | None]], limit: int) -> int | None:
    """The most units within the limit, on the line through the last two that were compiled. None where it was not said
    what they need."""
    (first, needed_first), (last, needed_last) = known[-2:]
    if needed_first is None or needed_last is None or needed_first == needed_last:
        return None
    return first + int((limit - needed_first) * (last - first) / (needed_last - needed_first))


def _larger_slice(start: Candidate, choices: Choices, model: Model, ask: _Search) -> Iterator[str]:
    """The first of the profile's larger slices on which the same batch fits."""
    for shape in choices.larger[:_SLICES]:
        fsdp = shape.devices * start.mesh.slices // (start.mesh.data * start.mesh.tensor)
        batch = max(start.global_batch, start.mesh.data * fsdp)
        mesh = start.mesh.model_copy(
            update={"fsdp": fsdp, "hosts": shape.hosts, "chips_per_host": shape.chips // shape.hosts}
        )
        moved = start.model_copy(update={"slice": shape, "mesh": mesh, "global_batch": batch})
        if isinstance(ask(_thriftiest(moved, choices, model)), Measured):
            with_batch = f" (globalBatchSize {batch})" if batch != start.global_batch else ""
            yield f"resources.tpu {shape.name}{with_batch}"
            return


def told(answer: Answer) -> str:
    """For people."""
    match answer:
        case Measured():
            seconds = answer.step_seconds
            step = f", step {seconds[0]:.3g}-{seconds[1]:.3g} s" if seconds else ""
            return f"fits, {gib(answer.peak_bytes)} of {gib(answer.limit_bytes)}{step}"
        case Exceeded():
            needed = gib(answer.needed_bytes) if answer.needed_bytes else "more than there is"
            return f"does not fit, {needed} of {gib(answer.limit_bytes)}"
        case NotCompiled():
            return f"does not compile: {answer.message[:160]}"


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
