"""The real TPU compiler, on small models."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest
from flax import nnx

from finetune_contract import (
    CacheLayout,
    ExitCode,
    MemoryOutcome,
    MeshSpec,
    PreflightOutcome,
    SliceShape,
    StageRequest,
)
from finetune_contract.tpu import all_shapes
from finetune_trainer import families
from finetune_trainer.commands import compile as compile_cli
from finetune_trainer.compiled.check import bounds, check_memory
from finetune_trainer.compiled.compile_client import CompileClient, CompilerUnavailable
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileResponse,
    CompileSuccess,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.compiled.compiler import Compiler, devices_of
from finetune_trainer.compiled.remedies import remedies
from finetune_trainer.compiled.search import REMAT, SearchSpace, search, tuned
from finetune_trainer.compiled.step import AbstractTraining, mesh_of
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.chips import CHIPS, is_slice
from finetune_trainer.engine.compilation_cache import StorageCompilationCache
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from finetune_trainer.training.engine_config import engine_settings
from finetune_trainer.training.flops import forward_flops, step_flops
from finetune_trainer.training.trainer import FineTuneTrainer
from tests.trainer.requests import method as method_of
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of

V5E_4 = {
    "name": "v5litepod-4",
    "family": "v5e",
    "topology": "2x2",
    "hosts": 1,
    "chips": 4,
    "devices": 4,
    "hbm_gib": 16,
}
#: The settings that the search would choose, fixed so that a single candidate is compiled.
FIXED = {"remat_policy": "full", "num_vocab_tiling": "1"}
#: Wide enough that most operations are matrix products and overlap with communication; there are no weights.
WIDE = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 8192,
}
SMALL = WIDE | {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 512}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(libtpu: Path) -> dict[str, str]:
    return {**os.environ, "TPU_LIBRARY_PATH": str(libtpu)}


def wanted(root: Path, **changes: Any) -> StageRequest:
    base: dict[str, Any] = {
        "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        "memory": {"source": "Compile", "slice": V5E_4},
        "engine_overrides": FIXED,
        "hyperparameters": {"compute_precision": "BF16", "global_batch_size": 4},
        "data": {"max_seq_length": 1024, "packing": True},
    }
    return request(root, "Preflight", **{**base, **changes})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    model = folder / "models/qwen3"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(WIDE))
    return folder


@pytest.fixture(scope="module")
def asking(root: Path, environment: dict[str, str]) -> Iterator[CompileClient]:
    """One compiler process for the module: starting it takes longer than compiling a small step."""
    made = wanted(root)
    model = root / "models/qwen3"
    with CompileClient(made, families.read(model), model, open_store(), environment) as compiler:
        yield compiler


@pytest.fixture
def here(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the compiler in this process, so that no request has to start one."""
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TPU_LIBRARY_PATH", environment["TPU_LIBRARY_PATH"])


def candidate(batch: int) -> Candidate:
    made = wanted(Path("/tmp"))
    assert made.memory is not None
    return Candidate(slice=made.memory.slice, mesh=made.mesh, global_batch=batch)


def test_a_small_step_fits_and_its_cost_is_reported(asking: CompileClient) -> None:
    answer = asking(candidate(4))
    assert isinstance(answer, CompileSuccess), answer
    assert answer.arguments_bytes < answer.peak_bytes < answer.limit_bytes
    assert answer.limit_bytes == pytest.approx(15.75 * 2**30, rel=1e-3)
    assert answer.step_seconds is not None
    assert 0 < answer.step_seconds[0] < answer.step_seconds[1]


def test_the_arithmetic_is_what_the_models_sizes_say(asking: CompileClient) -> None:
    """The expected work is forward, backward, and forward again, because remat keeps only the layers' inputs."""
    answer, plan = asking(candidate(4)), families.resolve(WIDE)
    assert isinstance(answer, CompileSuccess), answer
    needed = step_flops(plan, method_of(), rows=1, length=1024) + forward_flops(plan, rows=1, length=1024)
    assert answer.flops == pytest.approx(needed, rel=0.15)


def test_an_answer_is_remembered_by_shape(
    root: Path, asking: CompileClient, environment: dict[str, str]
) -> None:
    asking(candidate(4))
    made = wanted(
        root, hyperparameters={"compute_precision": "BF16", "global_batch_size": 4, "learning_rate": 5e-5}
    )
    model = root / "models/qwen3"
    outcome = check_memory(made, families.read(model), model, open_store(), environment)
    assert outcome is not None
    assert outcome.cached
    assert outcome.peak_bytes is not None


def test_without_a_compiler_the_outcome_says_so(root: Path) -> None:
    model = root / "models/qwen3"
    missing = {"TPU_LIBRARY_PATH": str(root / "libtpu.so")}
    outcome = check_memory(wanted(root), families.read(model), model, open_store(), missing)
    assert outcome is not None
    assert "no libtpu" in outcome.unknown
    assert outcome.peak_bytes is None


@pytest.mark.parametrize(
    "method",
    [
        [],
        ["--lora", "8"],
        ["--lora", "8", "--quantization", "NF4"],
        ["--method", "DPO", "--accumulation", "2"],
    ],
)
def test_by_hand_a_missing_compiler_is_reported_for_every_method(
    root: Path, method: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(root / "libtpu.so"))
    model = ["--model", str(root / "models/qwen3")]
    assert compile_cli.main([*model, "--slice", "v6e:2x2", "--batch", "8", *method]) == 69
    assert "no libtpu" in capsys.readouterr().err


def answering(monkeypatch: pytest.MonkeyPatch, answers: Callable[[Candidate], Answer]) -> list[Candidate]:
    """Returns the list of candidates that are requested from now on; ``answers`` answers them without a compiler."""
    asked: list[Candidate] = []

    def answer(_: CompileClient, candidate: Candidate) -> Answer:
        asked.append(candidate)
        return answers(candidate)

    monkeypatch.setattr(CompileClient, "__call__", answer)
    return asked


FITS = CompileSuccess(
    peak_bytes=10 * 2**30, limit_bytes=31 * 2**30, arguments_bytes=2**30, temporaries_bytes=2**30, flops=1.0,
    hbm_bytes=1.0, network_bytes=0.0, step_seconds=(1.0, 2.0),
)  # fmt: skip
EXCEEDED = MemoryExceeded(needed_bytes=40 * 2**30, limit_bytes=31 * 2**30, arguments_bytes=2**30)
FAILED = CompileFailure(message="INTERNAL: the compiler fell over")
REFUSED = CompileFailure(message="UNIMPLEMENTED: this shape", certain=True)
BY_HAND = ["--slice", "v6e:2x2", "--batch", "8", "--length", "1000"]


def test_by_hand_any_program_of_a_job_is_compiled(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, lambda each: EXCEEDED if each.program.kind == "Generate" else FITS)
    named = ["--program", "Generate", "--program", "Train", "--program", "Loss", "--program", "Likelihood"]
    sizes = ["--texts", "40", "--width", "600", "--new-tokens", "32"]
    assert compile_cli.main(["--model", str(root / "models/qwen3"), *BY_HAND, *named, *sizes]) == 78
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["Measured", "Measured", "Exceeded", "Measured"]
    train, loss, generate, likelihood = (each.program for each in asked)
    assert train == SliceProgram(kind="Train")
    assert loss == SliceProgram(kind="Loss")
    assert (generate.kind, generate.width, generate.count, generate.new_tokens) == ("Generate", 1024, 40, 32)
    assert (likelihood.kind, likelihood.width, likelihood.count) == ("Likelihood", 1024, 40)


def test_by_hand_the_choice_is_preflights(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(candidate: Candidate) -> Answer:
        return EXCEEDED if candidate.tuning.get("remat_policy") == "minimal_with_context" else FITS

    asked = answering(monkeypatch, answer)
    model = ["--model", str(root / "models/qwen3"), *BY_HAND]
    assert compile_cli.main([*model, "--choose", "--program", "Loss"]) == 0
    outcome = MemoryOutcome.model_validate_json(capsys.readouterr().out)
    assert outcome.tuning["remat_policy"] == "save_qkv_proj"
    assert "minimal_with_context: does not fit" in outcome.tried[0]
    assert [line.partition(":")[0] for line in outcome.programs] == ["loss on the validation rows"]
    assert asked[-1].tuning == outcome.tuning
    asked.clear()
    assert compile_cli.main([*model, "--choose", "--tensor", "2", "--set", "remat_policy=full"]) == 0
    assert [(each.mesh.fsdp, each.mesh.tensor) for each in asked] == [(2, 2)], "the arguments leave no choice"


def test_by_hand_a_named_program_that_was_not_compiled_is_reported_beside_the_choice(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, lambda each: FAILED if each.program.kind == "Loss" else FITS)
    model = ["--model", str(root / "models/qwen3"), *BY_HAND]
    assert compile_cli.main([*model, "--choose", "--program", "TrainingLoss", "--program", "Loss"]) == 69
    told = capsys.readouterr()
    assert MemoryOutcome.model_validate_json(told.out).programs
    assert "Not compiled, or not in time: loss on the validation rows (" in told.err
    assert compile_cli.main([*model, "--choose", "--program", "TrainingLoss"]) == 0


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([FITS, FAILED], 69),
        ([FAILED, REFUSED, FITS], 64),
        ([FAILED, REFUSED, EXCEEDED], 78),
    ],
)
def test_by_hand_the_exit_code_says_what_is_to_be_changed(
    root: Path, answers: list[Answer], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(answers)
    answering(monkeypatch, lambda _: next(left))
    named = [
        part for kind in ("Loss", "TextLoss", "Reference")[: len(answers)] for part in ("--program", kind)
    ]
    assert compile_cli.main(["--model", str(root / "models/qwen3"), *BY_HAND, *named]) == code


def test_by_hand_a_flag_that_the_compiler_refuses_is_the_shells(
    root: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TPU_LIBRARY_PATH", environment["TPU_LIBRARY_PATH"])
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_no_such_flag=1")
    assert compile_cli.main(["--model", str(root / "models/qwen3"), *BY_HAND]) == 76
    said = capsys.readouterr().err
    assert "CompilerFlagRefused: LIBTPU_INIT_ARGS or XLA_FLAGS of this shell: " in said
    assert "--xla_tpu_no_such_flag=1" in said
    assert "profile" not in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--slice", "v6e-4"], "v6e-4 is not FAMILY:TOPOLOGY, for example v6e:2x2"),
        (["--slice", "v6e:2"], "v6e:2 is not FAMILY:TOPOLOGY"),
        (["--slice", "v6e:0x2"], "v6e:0x2 is not FAMILY:TOPOLOGY"),
        (["--slice", "h100:2x2"], "families are tpu7x, v4, v5e, v5p, v6e"),
        (["--slice", "v6e:3x5"], "v6e has no slice 3x5; its topologies are 1x1, 2x2, 2x4, 4x4"),
        (["--slice", "v6e:2x2x1"], "v6e has no slice 2x2x1"),
        (
            ["--slice", "v5p:2x2"],
            "v5p has no slice 2x2; its topologies are 2x2x1, 2x2x2, 2x2x4, 2x4x4, and three",
        ),
        (["--slice", "v5p:4x4x6"], "v5p has no slice 4x4x6"),
        (["--slice", "v5p:64x64x64"], "with up to 8960 chips, for example 4x4x8"),
        (["--slices", "0"], "0 is not a number above 0"),
        (["--tensor", "8"], "--tensor 8 does not divide the 4 devices of a slice"),
        (["--model", "Qwen3-8B"], "hf download OWNER/NAME config.json"),
        (["--method", "DPO", "--length", "1"], "a pair's row has at least 2 tokens"),
    ],
)
def test_by_hand_arguments_of_another_form_are_refused(
    root: Path, changed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compile_cli.main(
            ["--model", str(root / "models/qwen3"), "--slice", "v6e:2x2", "--batch", "8", *changed]
        )
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_by_hand_a_slice_is_what_the_catalogue_has() -> None:
    slices = {(shape.family, shape.topology) for shape in all_shapes()}
    known = [each for each in slices if each[0] in CHIPS]
    assert {family for family, _ in known} == set(CHIPS)
    assert [each for each in known if not is_slice(*each)] == []
    flat = {(family, f"{a}x{b}") for family in ("v5e", "v6e") for a in range(1, 33) for b in range(1, 33)}
    assert {each for each in flat if is_slice(*each)} == slices & flat


def test_by_hand_a_batch_that_does_not_divide_is_reported_by_its_option(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compile_cli.main(["--model", str(root / "models/qwen3"), "--slice", "v6e:2x2", "--batch", "7"])
    assert code == 64
    said = capsys.readouterr().err
    assert "BatchNotDivisible: --batch: the batch does not divide evenly" in said
    assert "globalBatchSize" not in said


def test_a_compiler_that_exits_is_reported(root: Path, environment: dict[str, str]) -> None:
    plan = families.read(root / "models/qwen3")
    made = wanted(root, use_cache="Off")
    with (
        CompileClient(made, plan, root / "gone", open_store(), environment) as compiler,
        pytest.raises(CompilerUnavailable, match="exited with code 1"),
    ):
        compiler(candidate(4))


@pytest.mark.parametrize(
    ("variable", "flag"),
    [
        ("FINETUNE_SLICE_LIBTPU_INIT_ARGS", "--xla_tpu_no_such_flag=1"),
        ("FINETUNE_SLICE_LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=much"),
        ("FINETUNE_SLICE_XLA_FLAGS", "--xla_tpu_scoped_vmem_limit_kib=98304"),
    ],
    ids=["unknown", "no number", "of libtpu"],
)
def test_a_flag_that_the_compiler_refuses_is_the_platforms_fault(
    root: Path, environment: dict[str, str], variable: str, flag: str
) -> None:
    model = root / "models/qwen3"
    made = wanted(root, use_cache="Off")
    with pytest.raises(StageError, match="flag of the profile") as caught:
        check_memory(made, families.read(model), model, open_store(), {**environment, variable: flag})
    assert (caught.value.code, caught.value.reason) == (ExitCode.CONTRACT_UNSUPPORTED, "CompilerFlagRefused")
    assert flag in caught.value.actual


@pytest.mark.parametrize(("certain", "compiled"), [(True, 1), (False, 2)])
def test_only_a_certain_refusal_is_answered_without_compiling(
    certain: bool, compiled: int, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Candidate] = []

    def refuse(_: CompileClient, question: Candidate) -> Answer:
        asked.append(question)
        return CompileFailure(message="UNIMPLEMENTED: this shape", certain=certain)

    monkeypatch.setattr(CompileClient, "_ask", refuse)
    made, plan = wanted(tmp_path), families.resolve(WIDE)
    for _ in range(2):
        with CompileClient(made, plan, tmp_path, open_store(), environment) as asking:
            assert asking(candidate(4)) == CompileFailure(
                message="UNIMPLEMENTED: this shape", certain=certain
            )
    assert len(asked) == compiled


def test_steps_and_tokens_that_end_an_answer_do_not_decide_the_answer(
    root: Path, environment: dict[str, str]
) -> None:
    plan, model = families.resolve(WIDE), root / "models/qwen3"
    prints = {
        CompileClient(
            wanted(root, hyperparameters={"global_batch_size": 4, "steps": steps}),
            plan, model, open_store(), environment, end_ids=frozenset({end}),
        ).fingerprint(candidate(4))
        for steps, end in ((10, 1), (2000, 2))
    }  # fmt: skip
    assert len(prints) == 1


def test_flags_of_the_slice_decide_the_answer(
    root: Path, environment: dict[str, str], asking: CompileClient
) -> None:
    flags = {"FINETUNE_SLICE_LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=98304"}
    model = root / "models/qwen3"
    other = CompileClient(wanted(root), families.read(model), model, open_store(), {**environment, **flags})
    assert other.fingerprint(candidate(4)) != asking.fingerprint(candidate(4))


_PROGRAM = """
import sys, jax
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding
device = get_topology_desc(sys.argv[1], platform="tpu").devices[0]
shape = jax.ShapeDtypeStruct((128, 128), "bfloat16", sharding=SingleDeviceSharding(device))
jax.jit(lambda x: x @ x).lower(shape).compile()
"""


@pytest.mark.parametrize(
    "topology",
    ["v6e:2x2", *(pytest.param(each, marks=pytest.mark.thorough) for each in ["v5e:2x2", "v5p:2x2x1"])],
)
def test_the_pinned_libtpu_takes_the_default_flags(environment: dict[str, str], topology: str) -> None:
    # the flags are the operator's, whose dependencies are not installed here
    catalogue = runpy.run_path(str(ROOT / "operator/finetune_operator/catalog/xla_flags.py"))
    flags = catalogue["default_libtpu_args"](topology.partition(":")[0])
    assert flags
    settings = {
        "LIBTPU_INIT_ARGS": " ".join(flags),
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    subprocess.run(
        [sys.executable, "-c", _PROGRAM, topology],
        check=True,
        env={**environment, **settings, "JAX_PLATFORMS": "cpu"},
    )


def test_analytic_refuses_what_cannot_fit_whatever_the_step_needs(root: Path) -> None:
    model = root / "models/qwen3"
    plan = families.read(model)
    small = {**V5E_4, "hbm_gib": 16}
    fits = check_memory(
        wanted(root, memory={"source": "Analytic", "slice": small}), plan, model, open_store(), {}
    )
    assert fits is not None
    assert fits.peak_bytes == plan.parameters * 12 // 4
    huge = wanted(root, memory={"source": "Analytic", "slice": small})
    with pytest.raises(StageError, match="parameters and optimizer alone") as caught:
        check_memory(huge, _of_size(model, 200_000), model, open_store(), {})
    assert caught.value.code == 78


def _of_size(model: Path, hidden: int) -> families.ModelPlan:
    config = json.loads((model / "config.json").read_text())
    return families.resolve({**config, "hidden_size": hidden, "intermediate_size": 4 * hidden})


def test_preflight_checks_the_memory_of_the_step(stages: Stages, environment: dict[str, str]) -> None:
    made = wanted(
        stages.root, run_folder=f"file://{stages.root}/proved", method={"lora": {"rank": 4, "alpha": 8.0}}
    )
    programs = stages.root / "proved-programs"
    running = stages.start(
        FINETUNE_REQUEST=made.to_json(),
        TPU_LIBRARY_PATH=environment["TPU_LIBRARY_PATH"],
        FINETUNE_SLICE_PROGRAMS=f"file://{programs}",
    )
    assert running.wait() == 0, running.log[-4000:]
    outcome = PreflightOutcome.model_validate_json(
        (stages.root / "proved/preflight/report.json").read_bytes()
    )
    assert outcome.memory is not None
    assert outcome.memory.unknown == ""
    assert outcome.memory.mesh == made.mesh
    assert outcome.memory.peak_bytes is not None
    kept = StorageCompilationCache(
        f"file://{programs}", open_store(), first=False, now=lambda: datetime.now(UTC)
    )
    steps = [path.name for path in programs.iterdir() if path.name.startswith("jit_step-")]
    assert len(steps) >= 2  # of training, and of the loss on the validation rows
    assert all(kept.get(key) for key in steps)


def test_a_step_that_does_not_fit_ends_preflight_with_what_would(stages: Stages) -> None:
    """A whole stage, with answers from the cache, writes the failure record, returns the exit code and leaves no
    report."""
    made = wanted(
        stages.root,
        run_folder=f"file://{stages.root}/exceeded",
        hyperparameters={"compute_precision": "BF16", "global_batch_size": 8},
        data={"max_seq_length": 512},
    )
    library = stages.root / "libtpu.so"
    library.touch()
    model, store, found = stages.root / "models/qwen3", open_store(), {"TPU_LIBRARY_PATH": str(library)}
    limit = int(15.75 * 2**30)
    answer = MemoryExceeded(needed_bytes=20 * 2**30, limit_bytes=limit, arguments_bytes=2**30)
    with CompileClient(made, families.read(model), model, store, found) as asking:
        fingerprint = asking.fingerprint(candidate(8))
        answered = CompileResponse(answer=answer, fingerprint=fingerprint)
        store.write(CacheLayout(made.cache).compiled(fingerprint), answered.to_json())
    running = stages.start(FINETUNE_REQUEST=made.to_json(), **found)
    assert running.wait() == 78, running.log[-4000:]
    result = result_of(made)
    assert result is not None
    failure = result.failure
    assert failure is not None
    assert (failure.code, failure.reason, failure.where) == (78, "MemoryExceeded", "spec.resources")
    assert failure.actual == ("does not fit, 20.00 GiB of 15.75 GiB per device with batch 8 on v5litepod-4")
    assert failure.fix == (
        "By an estimate from the compiled step: leave out engineOverrides.remat_policy, so that preflight chooses it, "
        "or leave out resources.parallelism, or lower hyperparameters.globalBatchSize to 4 or less. No TPU time was used."
    )
    assert not (stages.root / "exceeded/preflight/report.json").exists()


def abstract(root: Path, **changes: Any) -> AbstractTraining:
    """Builds the training on CPU, where compilation takes a second."""
    plan = families.resolve(SMALL)
    made = request(root, "Train", **changes)
    chosen = engine_settings(made, plan, steps=1, platform="cpu", output=str(root))
    config = maxtext.configure(plan, maxtext.SFT, **chosen)
    return AbstractTraining(config, mesh_of(config, jax.devices()[:1]), made)


@pytest.mark.thorough
def test_new_parameters_take_the_place_of_the_old_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = abstract(root).lower_step().compile().memory_analysis().alias_size_in_bytes
    monkeypatch.setattr(
        FineTuneTrainer,
        "jit_step",
        lambda trainer: nnx.jit(trainer.create_train_step_fn(), donate_argnames=("optimizer",)),
    )
    tunix = abstract(root).lower_step().compile().memory_analysis().alias_size_in_bytes
    assert ours - tunix >= 4 * families.resolve(SMALL).parameters


LORA = {"rank": 4, "alpha": 8.0}
DPO = {"type": "DPO", "max_prompt_length": 24}
ORPO = {"type": "ORPO", "max_prompt_length": 24}
BLOCKS_OF_128 = FIXED | {
    f"sa_block_{name}": "128"
    for name in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
}
HALVES = {"gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        pytest.param({"method": DPO, "hyperparameters": HALVES}, 1, id="dpo-accumulated"),
        pytest.param({"method": {"lora": {**LORA, "quantization": "NF4"}}}, 0, id="qlora"),
        *(
            pytest.param(*each, id=name, marks=pytest.mark.thorough)
            for name, each in {
                "dpo": ({"method": DPO}, 1),
                "dpo-lora": ({"method": {**DPO, "lora": LORA}}, 0),
                "orpo": ({"method": ORPO}, 0),
                "accumulated": ({"data": {"packing": True}, "hyperparameters": HALVES}, 0),
            }.items()
        ),
    ],
)
def test_every_method_compiles_with_what_it_keeps(root: Path, changes: dict[str, Any], copies: int) -> None:
    training = abstract(root, **changes)
    step, reference = training.lower_step().compile(), training.lower_reference()
    assert step.memory_analysis().temp_size_in_bytes > 0
    assert (reference is not None) == (changes.get("method", {}).get("type") == "DPO")
    assert training.kept_bytes == pytest.approx(copies * 4 * families.resolve(SMALL).parameters, rel=1e-2)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("length", "changes"), [(1000, {}), (192, {"method": DPO}), (640, {"engine_overrides": BLOCKS_OF_128})]
)
def test_a_length_that_the_kernel_does_not_take_compiles(
    length: int, changes: dict[str, Any], root: Path
) -> None:
    plan = families.resolve(SMALL)
    maxtext.prepare(plan)
    answer = Compiler(plan, wanted(root, data={"max_seq_length": length}, **changes)).answer(candidate(4))
    assert isinstance(answer, CompileSuccess), answer


@pytest.mark.usefixtures("here")
def test_dpo_runs_and_holds_the_model_that_it_began_with(root: Path) -> None:
    plan = families.resolve(SMALL)
    maxtext.prepare(plan)
    answers = [
        Compiler(plan, wanted(root, method=method, data={"max_seq_length": 128})).answer(candidate(4))
        for method in (DPO, ORPO)
    ]
    dpo, orpo = (answer for answer in answers if isinstance(answer, CompileSuccess))
    copy = 4 * plan.parameters / 4  # float32, on four devices
    assert dpo.arguments_bytes - orpo.arguments_bytes == pytest.approx(copy, rel=0.05)
    assert dpo.peak_bytes - orpo.peak_bytes >= 0.9 * copy
    assert dpo.flops > 1.1 * orpo.flops


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_what_is_chosen_and_what_would_fit_is_what_the_compiler_says(root: Path) -> None:
    """Chips have less memory: first enough for what one policy keeps, then for half of the batch."""
    plan = families.resolve(SMALL | {"num_hidden_layers": 16})
    maxtext.prepare(plan)
    made = wanted(root, data={"max_seq_length": 128}, engine_overrides={"num_vocab_tiling": "1"})
    compiler, sizes = Compiler(plan, made), bounds(made, plan)
    known: dict[str, CompileSuccess] = {}

    def compiled(asked: Candidate) -> CompileSuccess:
        if str(asked) not in known:
            answer = compiler.answer(asked)
            assert isinstance(answer, CompileSuccess), answer
            known[str(asked)] = answer
        return known[str(asked)]

    def with_limit(limit: int) -> Callable[[Candidate], Answer]:
        def ask(asked: Candidate) -> Answer:
            answer = compiled(asked)
            if answer.peak_bytes <= limit:
                return answer
            return MemoryExceeded(
                needed_bytes=answer.peak_bytes, limit_bytes=limit, arguments_bytes=answer.arguments_bytes
            )

        return ask

    def seconds(asked: Candidate) -> float:
        interval = compiled(asked).step_seconds
        assert interval is not None
        return interval[1]

    free = SearchSpace(remat=True, tiles=False, parallelism=False)
    policies = [tuned(candidate(16), free, sizes, remat) for remat in REMAT]
    assert sorted(policies, key=seconds) == policies, "the first policy is the fastest"
    peaks = [compiled(each).peak_bytes for each in policies]
    found = search(candidate(16), free, sizes, with_limit(min(peaks)), seconds)
    assert found.best == policies[peaks.index(min(peaks))]
    fixed = SearchSpace(remat=False, tiles=False, parallelism=False)
    half = with_limit(compiled(found.best.model_copy(update={"global_batch": 8})).peak_bytes)
    refused = search(found.best, fixed, sizes, half, seconds)
    assert isinstance(refused.refusal, MemoryExceeded)
    sentence = remedies(found.best, refused.refusal, fixed, sizes)
    named = re.search(r"globalBatchSize to (\d+) or less", sentence)
    assert named is not None, sentence
    assert 8 <= int(named[1]) < 16


@pytest.mark.skipif("FINETUNE_COMPILE_ALL" not in os.environ, reason="compiles for a minute and a half")
def test_the_first_slice_that_holds_the_step_is_what_the_compiler_says(
    root: Path, environment: dict[str, str]
) -> None:
    """1.7 billion parameters with their moments take 19 GiB, on one chip of 16 GiB and then on four."""
    model = root / "models/large"
    model.mkdir()
    wide = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 10}
    (model / "config.json").write_text(json.dumps(WIDE | wide))
    one = V5E_4 | {"name": "v5litepod-1", "topology": "1x1", "chips": 1, "devices": 1}
    four = {"slice": V5E_4, "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4}}
    made = wanted(
        root,
        mesh={"hosts": 1, "chips_per_host": 1, "fsdp": 1},
        memory={"source": "Compile", "slice": one, "candidates": [four]},
        data={"max_seq_length": 128, "packing": True},
    )
    outcome = check_memory(made, families.read(model), model, open_store(), environment)
    assert outcome is not None
    assert outcome.chosen == SliceShape.model_validate(V5E_4)
    assert outcome.slice == "v5litepod-4"
    (small,) = outcome.unfit
    assert small.slice.name == "v5litepod-1"
    assert re.fullmatch(r"does not fit, \d\d\.\d\d GiB of 15\.75 GiB", small.why)
    assert len(outcome.tried) == 2


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("family", "topology"),
    [
        ("v5p", "2x2x4"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in [("v6e", "4x4"), ("v5e", "4x4"), ("v6e", "4x8"), ("v5p", "4x4x4")]
        ),
    ],
)
def test_devices_share_rows_on_slices_of_every_shape(family: str, topology: str, root: Path) -> None:
    plan = families.resolve(SMALL | {"num_attention_heads": 16, "num_key_value_heads": 16})
    maxtext.prepare(plan)
    chips = math.prod(int(side) for side in topology.split("x"))
    place = {
        "name": topology, "family": family, "topology": topology, "hosts": chips // 4, "chips": chips, "devices": chips,
    }  # fmt: skip
    for tensor in (1, 2, 4, 8):
        mesh = {"hosts": chips // 4, "chips_per_host": 4, "fsdp": chips // tensor, "tensor": tensor}
        asked = Candidate.model_validate({"slice": place, "mesh": mesh, "global_batch": chips // tensor})
        config = Compiler(plan, wanted(root))._configuration(asked)
        assert mesh_of(config, devices_of(asked)).size == chips


#: Dimensions that the devices cannot divide evenly, so that the stage could not load the model.
ODD = {
    "vocabulary": ({"vocab_size": 513}, {"fsdp": 2, "tensor": 2}),
    "tied vocabulary": ({"vocab_size": 513, "tie_word_embeddings": True}, {"fsdp": 2, "tensor": 2}),
    "inner width": ({"intermediate_size": 130}, {"fsdp": 1, "tensor": 4}),
    "width": ({"hidden_size": 66}, {"fsdp": 4}),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("sizes", "axes"), ODD.values(), ids=ODD)
def test_a_mesh_on_which_the_model_cannot_be_loaded_is_refused(
    sizes: dict[str, Any], axes: dict[str, int], root: Path
) -> None:
    plan = families.resolve(SMALL | {"num_key_value_heads": 8} | sizes)
    maxtext.prepare(plan)
    mesh = MeshSpec.model_validate({"hosts": 1, "chips_per_host": 4, **axes})
    asked = candidate(4).model_copy(update={"mesh": mesh})
    answer = Compiler(plan, wanted(root, data={"max_seq_length": 128})).answer(asked)
    assert isinstance(answer, CompileFailure), answer
    assert (answer.certain, answer.of_mesh) == (True, True)
    assert "does not divide among" in answer.message


@pytest.mark.usefixtures("here")
def test_a_size_that_no_axis_divides_may_be_odd(root: Path) -> None:
    plan = families.resolve(SMALL | {"vocab_size": 513})
    maxtext.prepare(plan)
    answer = Compiler(plan, wanted(root, data={"max_seq_length": 128})).answer(candidate(4))
    assert isinstance(answer, CompileSuccess), answer


@pytest.mark.usefixtures("here")
def test_a_base_that_is_quantized_has_to_be_held_whole_first(root: Path) -> None:
    """Loading needs the memory of the whole base model, even if the step later needs only half a byte per value."""
    plan = families.resolve(WIDE)
    maxtext.prepare(plan)
    made = wanted(root, method={"lora": {**LORA, "quantization": "NF4"}}, data={"max_seq_length": 128})
    compiler, asked = Compiler(plan, made), candidate(4)
    config = compiler._configuration(asked)
    training = AbstractTraining(config, mesh_of(config, devices_of(asked)), made)
    step = training.lower_step().compile().memory_analysis()
    assert training.arguments_bytes == pytest.approx(step.argument_size_in_bytes, rel=0.1)

    assert compiler._loads(training, asked, 2**30) is None
    (loading,) = compiler._loading.values()
    assert isinstance(loading, CompileSuccess)
    loaded = loading.arguments_bytes
    assert loaded > 1.5 * step.argument_size_in_bytes
    answer = Compiler(plan, made)._loads(training, asked, loaded)
    assert isinstance(answer, MemoryExceeded)
    assert answer.arguments_bytes > answer.limit_bytes  # so no remat policy is tried
    assert abstract(root).lower_loading() is None


def test_a_fault_of_the_engines_own_is_an_answer_and_no_users_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Mock(devices=Mock(return_value=[]), limit=Mock(return_value=2**30))
    monkeypatch.setattr(Compiler, "_step", Mock(side_effect=AttributeError("'NoneType' has no 'astype'")))
    answer = Compiler(families.resolve(SMALL), request(root, "Train"), target=target).answer(candidate(4))
    assert isinstance(answer, CompileFailure)
    assert not answer.certain
    assert "astype" in answer.message


@pytest.mark.parametrize(
    ("method", "tensor"),
    [({}, 1), ({"lora": LORA}, 1), ({"lora": LORA}, 2)],
    ids=["full", "lora", "devices share rows"],
)
def test_preflight_compiles_for_tpu_what_training_lowers_for_it(
    method: dict[str, Any],
    tensor: int,
    stages: Stages,
    converted: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """The test compares the stripped module, the part of JAX's key that a machine without a TPU can compute."""
    made = request(
        stages.root, "Train", f"lowered-{tmp_path.name}", converted=converted, method=method,
        mesh={"hosts": 1, "chips_per_host": 4, "fsdp": 4 // tensor, "tensor": tensor},
        engine_overrides={"attention": "dot_product"}, data={"max_seq_length": 128},
        hyperparameters={"compute_precision": "BF16", "steps": 7, "global_batch_size": 4 // tensor},
    )  # fmt: skip
    running = stages.start(
        fault=("step_lowered_for_tpu", str(tmp_path / "told")),
        FINETUNE_REQUEST=made.to_json(),
        TPU_LIBRARY_PATH=environment["TPU_LIBRARY_PATH"],
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert running.wait() == 0, running.log[-4000:]
    told = json.loads((tmp_path / "told").read_text())
    assert told["stage"] == told["preflight"]


def test_losses_are_those_of_a_step_that_keeps_the_old_parameters(stages: Stages, converted: str) -> None:
    stages.run("Train", "donating", converted=converted)
    stages.run("Train", "keeping", converted=converted, fault=("keep_what_tunix_keeps",))
    assert stages.losses("donating") == stages.losses("keeping")
    assert len(stages.losses("keeping")) == 20


def test_losses_are_those_of_a_step_that_computes_less_again(stages: Stages, converted: str) -> None:
    """Losses do not depend on what remat keeps or where.

    On CPU, offloaded arrays stay in the same memory.
    """
    for run, policy in (("all", "full"), ("moved", "custom")):
        tuning = {"remat_policy": policy} | ({"decoder_layer_input": "offload"} if run == "moved" else {})
        stages.run("Train", run, converted=converted, engine_overrides=tuning)
    assert stages.losses("all") == stages.losses("moved")
