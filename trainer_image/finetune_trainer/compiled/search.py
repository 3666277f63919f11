"""Which candidates to compile, and which of them to take. Pure but for the answers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from finetune_contract import MeshSpec
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What the user has left open."""

    remat: bool
    tiles: bool
    parallelism: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """What bounds the choices."""

    heads: int
    kv_heads: int
    vocab_size: int
    sequence: int
    accumulation: int = 1
    """Forward passes that a batch is divided into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The end of a search."""

    best: Candidate | None
    answer: CompileSuccess | None
    refusal: MemoryExceeded | CompileFailure | None
    """Of the last candidate, where none fits."""
    refused: Candidate | None = None
    """That candidate."""
    tried: tuple[str, ...] = ()


def search(
    start: Candidate,
    choices: SearchSpace,
    model: ModelBounds,
    ask: Callable[[Candidate], Answer],
    *,
    late: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """The fastest candidate by roofline that fits; between equals, within a hundredth, the one with the lowest peak.

    Once it is ``late``, nothing better is looked for than what is found, and only what takes the least memory is
    compiled where nothing is found yet.
    """
    tried: list[str] = []
    fitting: list[tuple[Candidate, CompileSuccess]] = []
    refusal: MemoryExceeded | CompileFailure | None = None
    refused: Candidate | None = None

    def take(candidate: Candidate) -> None:
        nonlocal refusal, refused
        answer = ask(candidate)
        tried.append(f"{candidate}: {describe(answer)}")
        if isinstance(answer, CompileSuccess):
            fitting.append((candidate, answer))
        elif refusal is None or isinstance(answer, MemoryExceeded):
            refusal, refused = answer, candidate

    hopeless = False
    for remat in _policies(choices, hurried=late()):
        if hopeless or (fitting and (late() or remat is LAST_RESORT)):
            break
        take(tuned(start, choices, model, remat))
        # Parameters and optimizer alone are too much, whatever is kept of the forward pass.
        hopeless = isinstance(refusal, MemoryExceeded) and refusal.arguments_bytes > refusal.limit_bytes
    for mesh in tensor_parallel_meshes(start.mesh, model) if choices.parallelism and not hopeless else ():
        if late() and (fitting or refusal):
            break
        best = _fastest(fitting)[0] if fitting else with_least_memory(start, choices, model)
        take(best.model_copy(update={"mesh": mesh}))
        if fitting:
            break
    if fitting:
        found, measured = _fastest(fitting)
        return SearchResult(best=found, answer=measured, refusal=None, tried=tuple(tried))
    return SearchResult(best=None, answer=None, refusal=refusal, refused=refused, tried=tuple(tried))


def _policies(choices: SearchSpace, *, hurried: bool) -> Sequence[Mapping[str, str]]:
    if not choices.remat:
        return ({},)
    return (REMAT[-1], LAST_RESORT) if hurried else (*REMAT, LAST_RESORT)


def _fastest(fitting: list[tuple[Candidate, CompileSuccess]]) -> tuple[Candidate, CompileSuccess]:
    """By the interval's high end, which alone tells candidates of equal arithmetic apart."""
    seconds = [each.step_seconds[1] if each.step_seconds else math.inf for _, each in fitting]
    least = min(seconds)
    close = [pair for pair, each in zip(fitting, seconds, strict=True) if each <= least * 1.01]
    return min(close, key=lambda pair: pair[1].peak_bytes)


def heads_divide(mesh: MeshSpec, model: ModelBounds) -> bool:
    """Whether the model's heads divide among the devices that share a row."""
    return model.heads % mesh.tensor == 0 and model.kv_heads % mesh.tensor == 0


def tensor_parallel_meshes(mesh: MeshSpec, model: ModelBounds) -> Iterator[MeshSpec]:
    """The same devices, each row shared by 2 or 4 times as many of them."""
    for more in (2, 4):
        if mesh.fsdp % more == 0:
            shared = mesh.model_copy(update={"tensor": mesh.tensor * more, "fsdp": mesh.fsdp // more})
            if heads_divide(shared, model):
                yield shared


def tuned(start: Candidate, choices: SearchSpace, model: ModelBounds, remat: Mapping[str, str]) -> Candidate:
    """``start`` with that policy, and with tiles where the logits are large."""
    tiles: dict[str, str | int] = {}
    if choices.tiles and _tiled(start.global_batch, start.mesh, model):
        tiles = {"num_vocab_tiling": VOCABULARY_TILES}
    return start.model_copy(update={"tuning": {**start.tuning, **tiles, **remat}})


def with_least_memory(start: Candidate, choices: SearchSpace, model: ModelBounds) -> Candidate:
    """With the tuning that takes the least memory."""
    return tuned(start, choices, model, LAST_RESORT if choices.remat else {})


def _tiled(batch: int, mesh: MeshSpec, model: ModelBounds) -> bool:
    """Of one forward pass: those of a batch that is accumulated never have logits at once."""
    tokens = batch // model.accumulation * model.sequence // (mesh.data * mesh.fsdp)
    per_device = tokens // mesh.tensor
    return tokens * model.vocab_size * 4 >= _LARGE_LOGITS and per_device % VOCABULARY_TILES == 0


def describe(answer: Answer) -> str:
    """For people."""
    match answer:
        case CompileSuccess():
            seconds = answer.step_seconds
            step = f", step {seconds[0]:.3g}-{seconds[1]:.3g} s" if seconds else ""
            return f"fits, {gib(answer.peak_bytes)} of {gib(answer.limit_bytes)}{step}"
        case MemoryExceeded():
            needed = gib(answer.needed_bytes) if answer.needed_bytes else "more than there is"
            return f"does not fit, {needed} of {gib(answer.limit_bytes)}"
        case CompileFailure():
            return f"does not compile: {answer.message[:160]}"


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
