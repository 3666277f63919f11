"""Which candidates are compiled and which one is chosen, with a simulated compiler; and how its output is parsed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from finetune_contract import ExitCode, MeshSpec, SliceShape, StageRequest
from finetune_trainer import families
from finetune_trainer.compiled import check
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.compiled.evaluation_programs import needed_bytes
from finetune_trainer.compiled.remedies import remedies
from finetune_trainer.compiled.search import ModelBounds, SearchResult, SearchSpace, search
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from tests.trainer.requests import request

GIB = 2**30
ALL = SearchSpace(remat=True, tiles=True, parallelism=True)
MODEL = ModelBounds(heads=16, kv_heads=8, vocab_size=150_000, sequence=2048)


def shape(chips: int, name: str = "") -> SliceShape:
    return SliceShape(
        name=name or f"v6e-{chips}", family="v6e", topology="2x2", hosts=max(1, chips // 4), chips=chips,
        devices=chips, hbm_gib=32,
    )  # fmt: skip


def candidate(batch: int = 16, chips: int = 4) -> Candidate:
    mesh = MeshSpec(hosts=1, chips_per_host=4, fsdp=chips)
    return Candidate(slice=shape(chips), mesh=mesh, global_batch=batch)


def measured(peak: float, seconds: float) -> CompileSuccess:
    return CompileSuccess(
        peak_bytes=int(peak * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB, temporaries_bytes=GIB, flops=1.0,
        hbm_bytes=1.0, network_bytes=1.0, step_seconds=(seconds / 2, seconds),
    )  # fmt: skip


def exceeded(needed: float) -> MemoryExceeded:
    return MemoryExceeded(needed_bytes=int(needed * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB)


def by_rule(peak: Callable[[Candidate], float], seconds: dict[str, float]) -> Callable[[Candidate], Answer]:
    def ask(asked: Candidate) -> Answer:
        needed = peak(asked)
        policy = str(asked.tuning.get("remat_policy", "full"))
        return measured(needed, seconds[policy]) if needed <= 31 else exceeded(needed)

    return ask


def searched(
    start: Candidate,
    choices: SearchSpace,
    ask: Callable[[Candidate], Answer],
    model: ModelBounds = MODEL,
    *,
    late: bool = False,
) -> SearchResult:
    """Searches with an estimate by which policies alone decide the duration, and rows shared by devices never pay."""

    def seconds(asked: Candidate) -> float:
        return SECONDS[str(asked.tuning.get("remat_policy", "full"))] * asked.mesh.tensor

    return search(start, choices, model, ask, seconds, late=lambda: late)


def what_would_fit(
    start: Candidate,
    choices: SearchSpace,
    ask: Callable[[Candidate], Answer],
    model: ModelBounds = MODEL,
    larger: Sequence[SliceShape] = (),
) -> str:
    """Returns what the refusal says after the search has found no candidate that fits."""
    found = searched(start, choices, ask, model)
    assert found.best is None
    assert isinstance(found.refusal, MemoryExceeded)
    return remedies(start, found.refusal, choices, model, larger)


SECONDS = {"minimal_with_context": 1.0, "save_qkv_proj": 1.2, "full": 1.4, "custom": 1.4}
PEAKS = {"minimal_with_context": 3.0, "save_qkv_proj": 2.0, "full": 1.0, "custom": 0.5}


def grows(asked: Candidate) -> float:
    """Returns a memory need that is proportional to a device's rows and to what the policy keeps."""
    rows = asked.global_batch / (asked.mesh.data * asked.mesh.fsdp * asked.mesh.tensor)
    return rows * PEAKS[str(asked.tuning.get("remat_policy", "full"))]


@pytest.mark.parametrize(
    ("batch", "policy"),
    [(16, "minimal_with_context"), (56, "save_qkv_proj"), (100, "full"), (200, "custom")],
)
def test_the_fastest_policy_that_fits_is_taken(batch: int, policy: str) -> None:
    found = searched(candidate(batch), ALL, by_rule(grows, SECONDS))
    assert found.best is not None
    assert found.best.tuning["remat_policy"] == policy


def test_once_a_policy_fits_no_slower_one_is_compiled() -> None:
    found = searched(candidate(16), ALL, by_rule(grows, SECONDS))
    assert len(found.tried) == 1


def test_what_the_user_has_set_is_compiled_as_it_is() -> None:
    fixed = SearchSpace(remat=False, tiles=False, parallelism=False)
    found = searched(candidate(), fixed, by_rule(grows, SECONDS))
    assert (found.best, len(found.tried)) == (candidate(), 1)


@pytest.mark.parametrize(("fits", "chosen"), [(True, 2), (False, 1)])
def test_a_faster_mesh_that_fits_is_taken_where_the_user_has_set_none(fits: bool, chosen: int) -> None:
    def ask(asked: Candidate) -> Answer:
        return measured(1, 1.0) if fits or asked.mesh.tensor == 1 else exceeded(40)

    found = search(candidate(), ALL, MODEL, ask, lambda asked: 1.0 / asked.mesh.tensor)
    assert found.best is not None
    assert (found.best.mesh.fsdp * found.best.mesh.tensor, found.best.mesh.tensor) == (4, chosen)
    assert len(found.tried) == 2


def test_devices_share_rows_where_no_policy_fits_otherwise() -> None:
    found = searched(candidate(), ALL, lambda each: measured(1, 1) if each.mesh.tensor > 1 else exceeded(40))
    assert found.best is not None
    assert (found.best.mesh.tensor, found.best.tuning["remat_policy"]) == (2, "custom")


def test_once_it_is_late_what_fits_is_taken() -> None:
    found = searched(candidate(), ALL, by_rule(grows, SECONDS), late=True)
    assert found.best is not None
    assert len(found.tried) == 1


def counting(rule: Callable[[Candidate], Answer], asked: list[Candidate]) -> Callable[[Candidate], Answer]:
    def ask(candidate: Candidate) -> Answer:
        asked.append(candidate)
        return rule(candidate)

    return ask


FIXED = SearchSpace(remat=False, tiles=False, parallelism=False)
OPEN = SearchSpace(remat=True, tiles=True, parallelism=True)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize(("state", "each"), [(1.0, 0.9), (8.0, 0.5), (20.0, 0.3), (2.0, 8.0)])
@pytest.mark.parametrize("batch", [24, 96, 480, 4800])
def test_a_refusal_names_the_largest_batch_where_memory_grows_in_a_line(
    batch: int, state: float, each: float, accumulation: int
) -> None:
    """``each``: GiB per row of a device in one forward pass."""
    unit = 4 * accumulation
    batch = batch // unit * unit
    model, start = replace(MODEL, accumulation=accumulation), candidate(batch)
    needed = state + each * batch / unit
    if needed <= 31:
        return
    refusal = exceeded(needed).model_copy(update={"arguments_bytes": int(state * GIB)})
    fits = int((31 - state) / each) * unit
    assert f"lower hyperparameters.globalBatchSize to {fits} or less" in remedies(start, refusal, OPEN, model)


def test_no_smaller_batch_is_named_where_the_state_alone_is_too_large() -> None:
    refusal = exceeded(60).model_copy(update={"arguments_bytes": 40 * GIB})
    assert remedies(candidate(64), refusal, OPEN, MODEL).startswith("No smaller batch and no slice")


def test_what_the_job_sets_and_preflight_could_choose_is_named() -> None:
    fix = what_would_fit(candidate(64), FIXED, lambda _: exceeded(60))
    assert fix == (
        "By an estimate from the compiled step: leave out engineOverrides.remat_policy, so that preflight chooses it, "
        "or leave out resources.parallelism, or lower hyperparameters.globalBatchSize to 32 or less."
    )
    one = candidate(64).model_copy(
        update={"slice": shape(1), "mesh": MeshSpec(hosts=1, chips_per_host=1, fsdp=1)}
    )
    assert "resources.parallelism" not in what_would_fit(one, FIXED, lambda _: exceeded(60))


@pytest.mark.parametrize(("batch", "named"), [(24, "v6e-16 or"), (20, "v6e-16 (globalBatchSize 32) or")])
def test_a_larger_slice_is_named_with_a_batch_that_it_can_divide(batch: int, named: str) -> None:
    """24 rows fit on 16 devices if two devices share a row; 20 rows do not divide among them in any way."""
    model = replace(MODEL, heads=2, kv_heads=2)
    fix = what_would_fit(candidate(batch), ALL, lambda _: exceeded(60), model, (shape(16),))
    assert f"use resources.tpu {named} larger" in fix


def test_the_first_slice_of_which_the_devices_have_enough_memory_is_named() -> None:
    fix = what_would_fit(candidate(64), ALL, lambda _: exceeded(100), larger=(shape(8), shape(16), shape(32)))
    assert "use resources.tpu v6e-16 or larger" in fix


def test_a_slice_that_does_not_hold_the_parameters_is_given_up_after_one_compilation() -> None:
    hopeless = exceeded(60).model_copy(update={"arguments_bytes": 40 * GIB})
    found = searched(candidate(), ALL, lambda _: hopeless)
    assert (found.best, len(found.tried)) == (None, 1)


def test_when_it_is_late_a_slice_is_judged_by_what_takes_the_least_memory() -> None:
    asked: list[Candidate] = []
    found = searched(candidate(200), ALL, counting(by_rule(grows, SECONDS), asked), late=True)
    assert found.best is not None
    assert [each.tuning["remat_policy"] for each in asked] == ["full", "custom"]


def test_devices_share_rows_only_where_all_heads_divide_among_them() -> None:
    """In the job's mesh two devices share each row already."""
    shared = MeshSpec(hosts=2, chips_per_host=4, fsdp=4, tensor=2)
    start = Candidate(slice=shape(8), mesh=shared, global_batch=16)
    asked: list[Candidate] = []
    searched(start, ALL, counting(lambda _: exceeded(40), asked), replace(MODEL, heads=4, kv_heads=2))
    assert {each.mesh.tensor for each in asked} == {2}


def test_tiles_are_of_the_logits_of_one_forward_pass() -> None:
    """A device's 100 positions at a time cannot be cut into eight tiles, but 800 could."""
    model = replace(MODEL, vocab_size=262_144, sequence=100, accumulation=8)
    asked: list[Candidate] = []
    searched(candidate(32), ALL, counting(lambda _: measured(1, 1.0), asked), model)
    assert not any("num_vocab_tiling" in each.tuning for each in asked)


@pytest.mark.parametrize("devices", [4, 12])
def test_a_larger_slice_of_fewer_devices_than_the_jobs_own_mesh_needs_is_no_remedy(devices: int) -> None:
    """Four chips of v5p have more memory than sixteen of v5e."""
    mesh = MeshSpec(hosts=4, chips_per_host=4, fsdp=2, tensor=8)
    start = Candidate(slice=shape(16), mesh=mesh, global_batch=4)
    fix = remedies(
        start, exceeded(40), replace(ALL, parallelism=False), MODEL, (shape(devices, name="v5p-8"),)
    )
    assert "resources.tpu" not in fix


def test_where_the_compiler_does_not_say_what_is_needed_no_batch_is_named() -> None:
    unsaid = MemoryExceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)
    assert remedies(candidate(4000), unsaid, OPEN, MODEL, (shape(8),)).startswith("No smaller batch")


def test_where_nothing_fits_the_search_ends() -> None:
    asked: list[Candidate] = []
    found = searched(candidate(256), ALL, counting(lambda _: exceeded(1000), asked))
    assert (found.best, len(asked)) == (None, 6), "four policies, and two meshes"


def test_a_refusal_for_another_reason_is_no_lack_of_memory() -> None:
    found = searched(candidate(), ALL, lambda asked: CompileFailure(message="no"))
    assert isinstance(found.refusal, CompileFailure)


MESSAGES: list[tuple[str, float | None]] = [
    (
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (318.68G) "
            "exceeds available HBM (31.24G)."
        ),
        318.68,
    ),
    (
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 34.20G of "
            "15.75G hbm. Exceeded hbm capacity by 18.45G."
        ),
        34.2,
    ),
    ("RESOURCE_EXHAUSTED: something else", None),
]


@pytest.mark.parametrize(("message", "needed"), MESSAGES)
def test_the_compilers_message_is_read(message: str, needed: float | None) -> None:
    assert needed_bytes(message) == (None if needed is None else int(needed * GIB))


# --- preflight's memory check


class ByRule:
    """Replaces the real compiler: a rule computes the answers."""

    compiled = 1

    def __init__(self, rule: Callable[[Candidate], Answer]) -> None:
        self._rule = rule

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing, because no process was started."""

    def __call__(self, candidate: Candidate) -> Answer:
        return self._rule(candidate)

    def keep(self, candidate: Candidate) -> None:
        """Does nothing, because no program was compiled."""


def judged(
    made: StageRequest,
    rule: Callable[[Candidate], Answer],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    programs: Sequence[SliceProgram] = (),
    **model: Any,
) -> Any:
    """Runs ``check_memory`` for a Qwen3 of two layers, changed by ``model``, with ``rule`` as the compiler."""
    monkeypatch.setattr(check, "CompileClient", lambda *_, **__: ByRule(rule))
    plan = families.resolve({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2} | model)
    return check.check_memory(made, plan, folder, open_store(), {}, programs=lambda: programs)


def checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[[Candidate], Answer],
    programs: Sequence[SliceProgram] = (),
) -> Any:
    """Runs ``check_memory`` for batch 64 of a Qwen3 on v6e-4, in a profile that also has v6e-8 and v6e-16."""
    made = request(
        tmp_path,
        "Preflight",
        mesh={"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        memory={"source": "Compile", "slice": shape(4), "larger": [shape(8), shape(16)]},
        hyperparameters={"global_batch_size": 64},
        data={"max_seq_length": 2048},
    )
    return judged(made, rule, monkeypatch, tmp_path, programs)


def a_gigabyte_a_row(asked: Candidate) -> Answer:
    needed = 2.5 + asked.global_batch / asked.slice.devices
    return measured(needed, 1.0) if needed <= 31 else exceeded(needed)


def test_a_step_that_exceeds_the_chips_is_refused_with_the_batch_and_the_slice_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(asked: Candidate) -> Answer:
        needed = 2.5 + 2 * asked.global_batch / asked.slice.devices
        return measured(needed, 1.0) if needed <= 31 else exceeded(needed)

    with pytest.raises(StageError) as caught:
        checked(tmp_path, monkeypatch, doubled)
    error = caught.value
    assert (error.code, error.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    for told in ("spec.resources", "34.50 GiB of 31.00 GiB per device with batch 64 and remat_policy custom on v6e-4", "globalBatchSize to 56 or less",
                 "resources.tpu v6e-8", "No TPU time was used."):  # fmt: skip
        assert told in str(error)
    assert error.failure().code == 78


def test_a_step_that_fits_on_nothing_is_refused_without_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match="No smaller batch and no slice of the profile") as caught:
        checked(tmp_path, monkeypatch, lambda _: exceeded(1000))
    assert caught.value.code == ExitCode.OUT_OF_MEMORY


def test_a_need_that_the_compiler_does_not_name_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsaid = MemoryExceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)
    with pytest.raises(StageError, match=r"more than available of 31\.00 GiB") as caught:
        checked(tmp_path, monkeypatch, lambda _: unsaid)
    assert caught.value.reason == "MemoryExceeded"


def test_one_refusal_for_memory_is_enough_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that does not compile shows nothing about memory, but one that does not fit does."""

    def mixed(asked: Candidate) -> Answer:
        full = asked.tuning.get("remat_policy") == "full"
        return exceeded(40) if full else CompileFailure(message="not taken")

    with pytest.raises(StageError) as caught:
        checked(tmp_path, monkeypatch, mixed)
    assert caught.value.reason == "MemoryExceeded"


def test_what_does_not_compile_for_another_reason_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = checked(tmp_path, monkeypatch, lambda _: CompileFailure(message="not taken"))
    assert "not taken" in outcome.unknown
    assert outcome.peak_bytes is None


def test_a_step_that_fits_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = checked(tmp_path, monkeypatch, a_gigabyte_a_row)
    assert outcome.unknown == ""
    assert outcome.peak_bytes == int(18.5 * GIB)


def test_a_step_that_the_slice_would_refuse_alike_is_the_users_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = CompileFailure(message="bkv_compute=100 must be a multiple of 128", certain=True)
    with pytest.raises(StageError, match=r"bkv_compute=100 .* engineOverrides") as caught:
        checked(tmp_path, monkeypatch, lambda _: refusal)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "ProgramRefused")


TRAIN, LOSS = SliceProgram(kind="Train"), SliceProgram(kind="Loss")
ANSWERS = SliceProgram(kind="Generate", width=1024, new_tokens=128, count=40, longest=4000)
CHOICES = SliceProgram(kind="Likelihood", width=512, count=400, longest=4096)


def others(rule: Callable[[SliceProgram], Answer]) -> Callable[[Candidate], Answer]:
    """Returns a rule by which the train step fits, and ``rule`` answers for the other programs."""
    return lambda asked: measured(10, 1.0) if asked.program == TRAIN else rule(asked.program)


def test_every_other_program_of_the_job_is_compiled_for_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Candidate] = []

    def rule(candidate: Candidate) -> Answer:
        asked.append(candidate)
        return measured(10, 1.0).model_copy(update={"rows": 16 if candidate.program == ANSWERS else None})

    outcome = checked(tmp_path, monkeypatch, rule, [LOSS, ANSWERS, CHOICES])
    step = next(each for each in asked if each.program == TRAIN)
    assert [each.program for each in asked if each.program != TRAIN] == [LOSS, ANSWERS, CHOICES]
    assert all(each.mesh == outcome.mesh for each in asked if each.program != TRAIN)
    assert step.global_batch == 64
    assert outcome.uncompiled == []
    assert [line.partition(":")[0] for line in outcome.programs] == [
        "loss on the validation rows",
        "answers of 128 tokens to prompts of 1024",
        "log-probabilities of texts of 512 tokens",
    ]
    assert outcome.programs[1].endswith("16 rows at a time")


@pytest.mark.parametrize(("program", "fix"), [(LOSS, "globalBatchSize"), (ANSWERS, "maxNewTokens")])
def test_an_evaluation_that_does_not_fit_is_refused_before_training_is_paid_for(
    program: SliceProgram, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(lambda asked: exceeded(40) if asked == program else measured(10, 1.0))
    with pytest.raises(StageError, match=fix) as caught:
        checked(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert (caught.value.code, caught.value.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    assert str(program) in str(caught.value)


def test_an_evaluation_that_the_compiler_refuses_is_refused_before_training_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(
        lambda _: CompileFailure(message="q_block_size=512 should divide q_seq_len=1152", certain=True)
    )
    with pytest.raises(StageError, match="q_seq_len=1152") as caught:
        checked(tmp_path, monkeypatch, rule, [ANSWERS])
    assert caught.value.code == ExitCode.BAD_REQUEST


def test_what_was_not_compiled_is_reported_the_largest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", -1.0)
    late = checked(tmp_path, monkeypatch, others(lambda _: measured(1, 1.0)), [ANSWERS, CHOICES])
    assert late.uncompiled == [str(ANSWERS), str(CHOICES)]
    assert late.programs == []
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", 600.0)
    failed = checked(
        tmp_path, monkeypatch, others(lambda _: CompileFailure(message="INTERNAL: no")), [ANSWERS]
    )
    (line,) = failed.uncompiled
    assert "INTERNAL: no" in line
    assert failed.peak_bytes is not None, "the train step is still known to fit"


# --- jobs that name no slice

CHOICE = [4, 8, 16]


def chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[[Candidate], Answer],
    programs: Sequence[SliceProgram] = (),
    **changes: Any,
) -> Any:
    """Runs ``check_memory`` for batch 8 of a Qwen3 that may run on v6e-4, v6e-8 or v6e-16.

    The model has 16 query heads and 8 key and value heads; on v6e-16 two devices share a row.
    """
    model = changes.pop("model", {})
    meshes = {
        4: {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        8: {"hosts": 2, "chips_per_host": 4, "fsdp": 8},
        16: {"hosts": 4, "chips_per_host": 4, "fsdp": 8, "tensor": 2},
    }
    asked = {
        "source": "Compile",
        "slice": shape(4),
        "candidates": [
            {
                "slice": shape(chips).model_copy(update={"flags": {"XLA_FLAGS": f"--x={chips}"}}),
                "mesh": meshes[chips],
            }
            for chips in (8, 16)
        ],
        "larger": [shape(8), shape(16), shape(32)],
        "choose_parallelism": True,
        **changes,
    }
    made = request(
        tmp_path, "Preflight", mesh=meshes[4], memory=asked, hyperparameters={"global_batch_size": 8},
        data={"max_seq_length": 2048},
    )  # fmt: skip
    return judged(made, rule, monkeypatch, tmp_path, programs, **model)


def holding(least: int) -> Callable[[Candidate], Answer]:
    """Returns a rule by which the job fits on slices of at least ``least`` chips."""
    return lambda asked: (
        measured(30, 1.0) if asked.slice.chips >= least else exceeded(160 / asked.slice.chips)
    )


@pytest.mark.parametrize("least", CHOICE)
def test_the_first_slice_that_holds_the_training_is_chosen_and_the_others_are_named(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = chosen(tmp_path, monkeypatch, holding(least))
    assert (outcome.slice, outcome.chosen) == (f"v6e-{least}", shape(least))
    assert outcome.mesh.devices == least
    smaller = [chips for chips in CHOICE if chips < least]
    assert [(each.slice.chips, each.why) for each in outcome.unfit] == [
        (chips, f"does not fit, {160 / chips:.2f} GiB of 31.00 GiB") for chips in smaller
    ]
    assert {line.partition(",")[0] for line in outcome.tried} == {
        f"v6e-{chips}" for chips in (*smaller, least)
    }


def test_a_program_that_does_not_fit_moves_the_job_to_the_next_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        return exceeded(40) if asked.program == ANSWERS and asked.slice.chips < 16 else measured(10, 1.0)

    outcome = chosen(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert outcome.slice == "v6e-16"
    assert [each.why.partition(":")[0] for each in outcome.unfit] == [str(ANSWERS)] * 2
    assert len(outcome.programs) == 2


def test_an_evaluation_that_fits_no_slice_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(lambda _: exceeded(40))
    with pytest.raises(StageError, match="maxNewTokens") as caught:
        chosen(tmp_path, monkeypatch, rule, [ANSWERS])
    assert caught.value.reason == "MemoryExceeded"
    assert "on v6e-16" in str(caught.value)


def test_a_refusal_of_all_slices_names_each_and_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        needed = 40 * asked.global_batch / asked.slice.chips
        return measured(needed, 1.0) if needed <= 31 or asked.slice.chips == 32 else exceeded(needed + 12)

    with pytest.raises(StageError) as caught:
        chosen(
            tmp_path,
            monkeypatch,
            lambda asked: rule(asked.model_copy(update={"global_batch": asked.global_batch * 2})),
        )
    error = caught.value
    assert (error.code, error.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    for told in (
        "v6e-4 does not fit, 172.00 GiB of 31.00 GiB; v6e-8 does not fit, 92.00 GiB", "v6e-16 does not fit, 52.00 GiB",
        "with batch 8 and remat_policy custom", "resources.tpu v6e-32 or larger",
    ):  # fmt: skip
        assert told in str(error)


def test_a_batch_that_fits_the_largest_of_the_slices_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device of v6e-8 has memory for one row, if eight devices share the batch; the job needs two rows on each."""

    def rule(asked: Candidate) -> Answer:
        return exceeded(1 + 20 * asked.global_batch / (asked.mesh.data * asked.mesh.fsdp))

    four, eight = ({"hosts": each // 4, "chips_per_host": 4, "fsdp": each} for each in (4, 8))
    made = request(
        tmp_path, "Preflight", mesh=four, hyperparameters={"global_batch_size": 16}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(4), "candidates": [{"slice": shape(8), "mesh": eight}]},
    )  # fmt: skip
    with pytest.raises(StageError, match="globalBatchSize to 8 or less on v6e-8"):
        judged(made, rule, monkeypatch, tmp_path)


def test_a_slice_of_which_nothing_is_known_ends_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike the cheaper slice, this one is not known to be too small."""

    def rule(asked: Candidate) -> Answer:
        return exceeded(40) if asked.slice.chips == 4 else CompileFailure(message="INTERNAL: no")

    outcome = chosen(tmp_path, monkeypatch, rule)
    assert (outcome.slice, [each.slice.name for each in outcome.unfit]) == ("v6e-8", ["v6e-4"])
    assert "INTERNAL: no" in outcome.unknown
    assert outcome.peak_bytes is None


def test_without_time_the_next_slice_is_taken_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", -1.0)
    outcome = chosen(tmp_path, monkeypatch, holding(16))
    assert (outcome.slice, [each.slice.name for each in outcome.unfit]) == ("v6e-8", ["v6e-4"])
    assert "not compiled in time" in outcome.unknown


def test_a_setting_that_the_compiler_refuses_is_the_users_error_on_the_first_slice_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = CompileFailure(message="Mosaic failed", certain=True)
    with pytest.raises(StageError, match="Mosaic failed") as caught:
        chosen(tmp_path, monkeypatch, lambda _: refused)
    assert caught.value.reason == "ProgramRefused"

    def later(asked: Candidate) -> Answer:
        return refused if asked.slice.chips == 8 else holding(16)(asked)

    outcome = chosen(tmp_path, monkeypatch, later)
    assert outcome.slice == "v6e-16"
    assert "Mosaic failed" in outcome.unfit[1].why


UNEVEN = CompileFailure(
    message="logits_dense does not divide among fsdp 2, tensor 2", certain=True, of_mesh=True
)


def test_a_mesh_on_which_the_model_cannot_be_loaded_passes_its_slice_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = chosen(
        tmp_path,
        monkeypatch,
        lambda asked: UNEVEN if asked.slice.chips == 4 else holding(8)(asked),
    )
    assert outcome.slice == "v6e-8"
    assert "does not divide" in outcome.unfit[0].why


@pytest.mark.parametrize("run", [checked, chosen], ids=["one slice", "several"])
def test_where_the_model_can_be_loaded_on_no_mesh_the_refusal_says_what_to_change(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match=r"logits_dense .*globalBatchSize") as caught:
        run(tmp_path, monkeypatch, lambda _: UNEVEN)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "MeshNotDivisible")


def test_a_program_that_the_compiler_refuses_on_a_later_slice_passes_that_slice_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        if asked.program == ANSWERS and asked.slice.chips == 8:
            return CompileFailure(message="Mosaic failed", certain=True)
        return holding(8)(asked)

    outcome = chosen(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert (outcome.slice, len(outcome.programs)) == ("v6e-16", 2)
    assert "Mosaic failed" in outcome.unfit[1].why


def test_devices_share_rows_on_a_later_slice_where_the_first_has_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes = {
        1: {"hosts": 1, "chips_per_host": 1},
        4: {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        16: {"hosts": 4, "chips_per_host": 4, "fsdp": 8, "tensor": 2},
    }
    others = [{"slice": shape(chips), "mesh": meshes[chips]} for chips in (4, 16)]
    made = request(
        tmp_path, "Preflight", mesh=meshes[1], hyperparameters={"global_batch_size": 8}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(1), "candidates": others, "choose_parallelism": True},
    )  # fmt: skip

    def rule(asked: Candidate) -> Answer:
        return measured(20, 1.0) if asked.mesh.tensor > 1 else exceeded(36)

    outcome = judged(made, rule, monkeypatch, tmp_path)
    assert (outcome.slice, outcome.mesh.fsdp, outcome.mesh.tensor) == ("v6e-4", 2, 2)


@pytest.mark.parametrize("source", ["Compile", "Analytic"])
def test_a_slice_on_which_heads_do_not_divide_is_left_and_said(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 devices can share 8 rows only in pairs, and one key and value head does not divide between two devices."""
    narrow = {"num_attention_heads": 16, "num_key_value_heads": 1, "hidden_size": 65536}
    with pytest.raises(StageError) as caught:
        chosen(
            tmp_path, monkeypatch, lambda _: exceeded(40), model={**narrow, "intermediate_size": 2**18}, source=source,
            larger=[],
        )  # fmt: skip
    assert caught.value.reason == "MemoryExceeded"
    assert "v6e-16 has 16 devices for 8 rows, and the model's 16 heads and 1 kv heads do not divide" in str(
        caught.value
    )


def test_a_batch_that_no_slice_can_divide_is_refused_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        raise AssertionError(asked)

    shared = {"hosts": 2, "chips_per_host": 4, "fsdp": 4, "tensor": 2}
    made = request(
        tmp_path, "Preflight", mesh=shared, hyperparameters={"global_batch_size": 4}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(8), "candidates": [{"slice": shape(8, "other"), "mesh": shared}]},
    )  # fmt: skip
    with pytest.raises(StageError, match="v6e-8 has 8 devices for 4 rows") as caught:
        judged(made, rule, monkeypatch, tmp_path, num_key_value_heads=1)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "BatchNotDivisible")


@pytest.mark.parametrize(("width", "fits"), [(1024, 4), (24576, 8), (32768, 16)])
def test_by_arithmetic_the_first_slice_that_holds_the_state_is_chosen(
    width: int, fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"hidden_size": width, "intermediate_size": 4 * width, "vocab_size": 32_000}
    outcome = chosen(tmp_path, monkeypatch, lambda _: exceeded(1), source="Analytic", model=wide)
    assert outcome.slice == f"v6e-{fits}"
    assert [each.slice.chips for each in outcome.unfit] == [chips for chips in CHOICE if chips < fits]


@pytest.mark.parametrize(("heads", "fits"), [(8, True), (2, False)])
def test_by_arithmetic_heads_have_to_divide_on_the_only_slice_too(
    heads: int, fits: bool, tmp_path: Path
) -> None:
    """With a single slice to choose from, the operator lets eight devices share a row without knowing the model."""
    place = shape(16)
    made = request(
        tmp_path, "Preflight", mesh={"hosts": 4, "chips_per_host": 4, "fsdp": 2, "tensor": 8},
        memory={"source": "Analytic", "slice": place}, hyperparameters={"global_batch_size": 2},
    )  # fmt: skip
    plan = families.resolve(
        {
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": heads, "head_dim": 16, "vocab_size": 512,
        }
    )  # fmt: skip
    if fits:
        assert check.check_memory(made, plan, tmp_path, open_store(), {}) is not None
        return
    with pytest.raises(StageError) as refusal:
        check.check_memory(made, plan, tmp_path, open_store(), {})
    assert refusal.value.code == ExitCode.BAD_REQUEST
    assert "2 kv heads" in str(refusal.value)
