"""Decides which candidates to compile, and which of them to use. Pure but for the answers."""

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

#: MaxText's remat policies worth a minute each, by how much of the forward pass they keep, most first.
REMAT: tuple[Mapping[str, str], ...] = (
    {"remat_policy": "minimal_with_context"},
    {"remat_policy": "save_qkv_proj"},
    {"remat_policy": "full"},
)
#: If none of them fits: the layers' inputs are offloaded to the host's memory. Costs time that no roofline here models.
LAST_RESORT: Mapping[str, str] = {"remat_policy": "custom", "decoder_layer_input": "offload"}
#: Number of tiles in which large logits are computed, if they would take a large part of a chip's memory at once.
VOCABULARY_TILES = 8
_LARGE_LOGITS = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The choices that the user has left open."""

    remat: bool
    tiles: bool
    parallelism: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """The model's and request's sizes that limit the choices."""

    heads: int
    kv_heads: int
    vocab_size: int
    sequence: int
    accumulation: int = 1
    """Forward passes that a batch is divided into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search."""

    best: Candidate | None
    answer: CompileSuccess | None
    refusal: MemoryExceeded | CompileFailure | None
    """The answer for ``refused``, if no candidate fits."""
    refused: Candidate | None = None
    """The last candidate, if none fits."""
    tried: tuple[str, ...] = ()


def search(
    start: Candidate,
    choices: SearchSpace,
    model: ModelBounds,
    ask: Callable[[Candidate], Answer],
    *,
    late: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """The fastest candidate by roofline that fits; of those within one percent, the one with the lowest peak.

    Once ``late`` returns True, the search stops at what it has found, and if that is nothing, compiles only what takes
    the least memory.
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
        # Parameters and optimizer alone exceed the limit, whatever is kept of the forward pass.
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
    """The fastest by the upper bound, which alone distinguishes candidates of equal arithmetic."""
    seconds = [each.step_seconds[1] if each.step_seconds else math.inf for _, each in fitting]
    least = min(seconds)
    close = [pair for pair, each in zip(fitting, seconds, strict=True) if each <= least * 1.01]
    return min(close, key=lambda pair: pair[1].peak_bytes)


def heads_divide(mesh: MeshSpec, model: ModelBounds) -> bool:
    """Whether the model's heads divide among the devices that share a row."""
    return model.heads % mesh.tensor == 0 and model.kv_heads % mesh.tensor == 0


def tensor_parallel_meshes(mesh: MeshSpec, model: ModelBounds) -> Iterator[MeshSpec]:
    """Meshes of the same devices, with each row shared by 2 or 4 times as many of them."""
    for more in (2, 4):
        if mesh.fsdp % more == 0:
            shared = mesh.model_copy(update={"tensor": mesh.tensor * more, "fsdp": mesh.fsdp // more})
            if heads_divide(shared, model):
                yield shared


def tuned(start: Candidate, choices: SearchSpace, model: ModelBounds, remat: Mapping[str, str]) -> Candidate:
    """``start`` with that policy, and with vocabulary tiling if the logits are large."""
    tiles: dict[str, str | int] = {}
    if choices.tiles and _tiled(start.global_batch, start.mesh, model):
        tiles = {"num_vocab_tiling": VOCABULARY_TILES}
    return start.model_copy(update={"tuning": {**start.tuning, **tiles, **remat}})


def with_least_memory(start: Candidate, choices: SearchSpace, model: ModelBounds) -> Candidate:
    """``start`` with the tuning that takes the least memory."""
    return tuned(start, choices, model, LAST_RESORT if choices.remat else {})


def _tiled(batch: int, mesh: MeshSpec, model: ModelBounds) -> bool:
    """Whether the logits of one forward pass are large. An accumulated batch never has all its logits at once."""
    tokens = batch // model.accumulation * model.sequence // (mesh.data * mesh.fsdp)
    per_device = tokens // mesh.tensor
    return tokens * model.vocab_size * 4 >= _LARGE_LOGITS and per_device % VOCABULARY_TILES == 0


def describe(answer: Answer) -> str:
    """The answer as text for messages."""
    match answer:
        case CompileSuccess():
            seconds = answer.step_seconds
            step = f", step {seconds[0]:.3g}-{seconds[1]:.3g} s" if seconds else ""
            return f"fits, {gib(answer.peak_bytes)} of {gib(answer.limit_bytes)}{step}"
        case MemoryExceeded():
            needed = gib(answer.needed_bytes) if answer.needed_bytes else "more than available"
            return f"does not fit, {needed} of {gib(answer.limit_bytes)}"
        case CompileFailure():
            return f"does not compile: {answer.message[:160]}"


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
