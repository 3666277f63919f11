"""Decides which candidates to compile, and which of them to use. Pure but for the answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    seconds: Callable[[Candidate], float],
    *,
    late: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """The fastest candidate that fits: the first of the policies, and another mesh if a step is faster on it.

    Once ``late`` returns True, only what takes the least memory is compiled, and no other mesh if the first was tried.

    Args:
        start: the request's mesh, with no choice made.
        choices: what may be chosen.
        model: sizes that limit the choices.
        ask: compiles a candidate.
        seconds: the estimated duration of a candidate's step.
        late: whether the search has to end.
    """
    tried: list[str] = []
    refusal: MemoryExceeded | CompileFailure | None = None
    refused: Candidate | None = None

    def compiled(candidates: Iterable[Candidate]) -> tuple[Candidate, CompileSuccess] | None:
        nonlocal refusal, refused
        for candidate in candidates:
            answer = ask(candidate)
            tried.append(f"{candidate}: {describe(answer)}")
            if isinstance(answer, CompileSuccess):
                return candidate, answer
            if refusal is None or isinstance(answer, MemoryExceeded):
                refusal, refused = answer, candidate
            # Parameters and optimizer alone exceed the limit, whatever is kept of the forward pass.
            if isinstance(refusal, MemoryExceeded) and refusal.arguments_bytes > refusal.limit_bytes:
                break
        return None

    first = compiled(tuned(start, choices, model, each) for each in _policies(choices, hurried=late()))
    hopeless = isinstance(refusal, MemoryExceeded) and refusal.arguments_bytes > refusal.limit_bytes
    found = first
    if choices.parallelism and not hopeless and not late():
        base = first[0] if first else with_least_memory(start, choices, model)
        meshes = tensor_parallel_meshes(start.mesh, model)
        moved = [base.model_copy(update={"mesh": mesh}) for mesh in meshes]
        if first is not None:
            moved = [each for each in moved[:1] if seconds(each) < seconds(base)]
        found = compiled(moved) or first
    if found:
        return SearchResult(best=found[0], answer=found[1], refusal=None, tried=tuple(tried))
    return SearchResult(best=None, answer=None, refusal=refusal, refused=refused, tried=tuple(tried))


def _policies(choices: SearchSpace, *, hurried: bool) -> Sequence[Mapping[str, str]]:
    if not choices.remat:
        return ({},)
    return (REMAT[-1], LAST_RESORT) if hurried else (*REMAT, LAST_RESORT)


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
