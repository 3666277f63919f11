"""The real TPU compiler, on small models."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx

from finetune_contract import CacheLayout, MethodSpec, PreflightOutcome, SliceShape, StageRequest
from finetune_trainer import engine, families
from finetune_trainer.arithmetic import forward_flops, step_flops
from finetune_trainer.compiled import by_hand
from finetune_trainer.compiled.asking import Asking, NoCompiler
from finetune_trainer.compiled.check import bounds, check_memory
from finetune_trainer.compiled.compiler import Compiler
from finetune_trainer.compiled.question import Answer, Answered, Candidate, Exceeded, Measured
from finetune_trainer.compiled.search import Choices, search
from finetune_trainer.compiled.step import Abstract, mesh_of
from finetune_trainer.errors import StageError
from finetune_trainer.stages.engine_config import engine_settings
from finetune_trainer.storage import open_store
from finetune_trainer.training.trainer import SftTrainer
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
#: What the search would choose, set, so that one candidate is compiled.
FIXED = {"remat_policy": "full", "num_vocab_tiling": "1"}
#: Wide enough that most of the arithmetic is matrix products, and that they overlap with the network; no weights.
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
def environment() -> dict[str, str]:
    venv = subprocess.run(
        [ROOT / "trainer_image/install.sh", "tpu"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    (library,) = Path(venv).glob("lib/*/site-packages/libtpu/libtpu.so")
    return {**os.environ, "TPU_LIBRARY_PATH": str(library)}


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
def asking(root: Path, environment: dict[str, str]) -> Iterator[Asking]:
    """One compiler for the module: starting it takes longer than a small step."""
    made = wanted(root)
    model = root / "models/qwen3"
    with Asking(made, families.read(model), model, open_store(), environment) as compiler:
        yield compiler


@pytest.fixture
def here(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler in this process: no start for every request."""
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TPU_LIBRARY_PATH", environment["TPU_LIBRARY_PATH"])


def candidate(batch: int) -> Candidate:
    made = wanted(Path("/tmp"))
    assert made.memory is not None
    return Candidate(slice=made.memory.slice, mesh=made.mesh, global_batch=batch)


def test_a_small_step_fits_and_its_cost_is_told(asking: Asking) -> None:
    answer = asking(candidate(4))
    assert isinstance(answer, Measured), answer
    assert answer.arguments_bytes < answer.peak_bytes < answer.limit_bytes
    assert answer.limit_bytes == pytest.approx(15.75 * 2**30, rel=1e-3)
    assert answer.step_seconds is not None
    assert 0 < answer.step_seconds[0] < answer.step_seconds[1]


def test_the_arithmetic_is_what_the_models_sizes_say(asking: Asking) -> None:
    """Forward, backward, and forward again: remat keeps nothing but the layers' inputs."""
    answer, plan = asking(candidate(4)), families.resolve(WIDE)
    assert isinstance(answer, Measured), answer
    needed = step_flops(plan, MethodSpec(), rows=1, length=1024) + forward_flops(plan, rows=1, length=1024)
    assert answer.flops == pytest.approx(needed, rel=0.15)


def test_an_answer_is_remembered_by_shape(root: Path, asking: Asking, environment: dict[str, str]) -> None:
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
def test_by_hand_a_missing_compiler_is_told_for_every_method(
    root: Path, method: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(root / "libtpu.so"))
    model = ["--model", str(root / "models/qwen3")]
    assert by_hand.main([*model, "--slice", "v6e:2x2", "--batch", "8", *method]) == 69
    assert "no libtpu" in capsys.readouterr().err


def test_a_compiler_that_ends_is_told(root: Path, environment: dict[str, str]) -> None:
    plan = families.read(root / "models/qwen3")
    made = wanted(root, use_cache="Off")
    with (
        Asking(made, plan, root / "gone", open_store(), environment) as compiler,
        pytest.raises(NoCompiler, match="ended with code 1"),
    ):
        compiler(candidate(4))


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
    running = stages.start(FINETUNE_REQUEST=made.to_json(), TPU_LIBRARY_PATH=environment["TPU_LIBRARY_PATH"])
    assert running.wait() == 0, running.log[-4000:]
    outcome = PreflightOutcome.model_validate_json(
        (stages.root / "proved/preflight/report.json").read_bytes()
    )
    assert outcome.memory is not None
    assert outcome.memory.unknown == ""
    assert outcome.memory.mesh == made.mesh
    assert outcome.memory.peak_bytes is not None


def test_a_step_that_does_not_fit_ends_preflight_with_what_would(stages: Stages) -> None:
    """As a whole stage, with answers that the cache has: the record, the exit code, and no report."""
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
    answers: dict[int, Exceeded | Measured] = {
        8: Exceeded(needed_bytes=20 * 2**30, limit_bytes=limit, arguments_bytes=2**30),
        4: Measured(
            peak_bytes=10 * 2**30, limit_bytes=limit, arguments_bytes=2**30, temporaries_bytes=2**30, flops=1.0,
            hbm_bytes=1.0, network_bytes=0.0, step_seconds=(1.0, 2.0),
        ),
    }  # fmt: skip
    with Asking(made, families.read(model), model, store, found) as asking:
        for batch, answer in answers.items():
            fingerprint = asking.fingerprint(candidate(batch))
            answered = Answered(answer=answer, fingerprint=fingerprint)
            store.write(CacheLayout(made.cache).compiled(fingerprint), answered.to_json())
    running = stages.start(FINETUNE_REQUEST=made.to_json(), **found)
    assert running.wait() == 78, running.log[-4000:]
    result = result_of(made)
    assert result is not None
    failure = result.failure
    assert failure is not None
    assert (failure.code, failure.reason, failure.where) == (78, "MemoryExceeded", "spec.resources")
    assert failure.saw == ("does not fit, 20.00 GiB of 15.75 GiB per device with batch 8 on v5litepod-4")
    assert failure.fix == (
        "Compiled and found to fit: hyperparameters.globalBatchSize 4. No TPU time was used."
    )
    assert not (stages.root / "exceeded/preflight/report.json").exists()


def abstract(root: Path, **changes: Any) -> Abstract:
    """On the CPU, whose compiler takes a second."""
    plan = families.resolve(SMALL)
    made = request(root, "Train", **changes)
    chosen = engine_settings(made, plan, steps=1, platform="cpu", output=str(root))
    config = engine.configure(plan, engine.SFT, **chosen)
    accumulation = made.hyperparameters.gradient_accumulation_steps
    return Abstract(config, mesh_of(config, jax.devices()[:1]), made.method, accumulation)


def test_new_parameters_take_the_place_of_the_old_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = abstract(root).compile_step().memory_analysis().alias_size_in_bytes
    monkeypatch.setattr(
        SftTrainer,
        "jit_step",
        lambda trainer: nnx.jit(trainer.create_train_step_fn(), donate_argnames=("optimizer",)),
    )
    tunix = abstract(root).compile_step().memory_analysis().alias_size_in_bytes
    assert ours - tunix >= 4 * families.resolve(SMALL).parameters


LORA = {"rank": 4, "alpha": 8.0}
DPO = {"type": "DPO", "dpo": {"max_prompt_length": 24}}
ORPO = {"type": "ORPO", "orpo": {"max_prompt_length": 24}}
HALVES = {"gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({"method": DPO}, 1),
        ({"method": DPO, "hyperparameters": HALVES}, 1),
        ({"method": {**DPO, "lora": LORA}}, 0),
        ({"method": ORPO}, 0),
        ({"method": {"lora": {**LORA, "quantization": "NF4"}}}, 0),
        ({"data": {"packing": True}, "hyperparameters": HALVES}, 0),
    ],
    ids=["dpo", "dpo-accumulated", "dpo-lora", "orpo", "qlora", "accumulated"],
)
def test_every_method_compiles_with_what_it_keeps(root: Path, changes: dict[str, Any], copies: int) -> None:
    training = abstract(root, **changes)
    step, reference = training.compile_step(), training.compile_reference()
    assert step.memory_analysis().temp_size_in_bytes > 0
    assert (reference is not None) == (changes.get("method", {}).get("type") == "DPO")
    assert training.kept_bytes == pytest.approx(copies * 4 * families.resolve(SMALL).parameters, rel=1e-2)


@pytest.mark.usefixtures("here")
def test_dpo_runs_and_holds_the_model_that_it_began_with(root: Path) -> None:
    plan = families.resolve(SMALL)
    engine.prepare(plan)
    answers = [
        Compiler(plan, wanted(root, method=method, data={"max_seq_length": 128})).answer(candidate(4))
        for method in (DPO, ORPO)
    ]
    dpo, orpo = (answer for answer in answers if isinstance(answer, Measured))
    copy = 4 * plan.parameters / 4  # float32, on four devices
    assert dpo.arguments_bytes - orpo.arguments_bytes == pytest.approx(copy, rel=0.05)
    assert dpo.peak_bytes - orpo.peak_bytes >= 0.9 * copy
    assert dpo.flops > 1.1 * orpo.flops


@pytest.mark.usefixtures("here")
def test_what_is_chosen_and_what_would_fit_is_what_the_compiler_says(root: Path) -> None:
    """On chips with less memory: one that holds what is kept under one policy, then one that does not hold that."""
    plan = families.resolve(SMALL | {"num_hidden_layers": 16})
    engine.prepare(plan)
    made = wanted(root, data={"max_seq_length": 128}, engine_overrides={"num_vocab_tiling": "1"})
    compiler = Compiler(plan, made)
    known: dict[str, Answer] = {}

    def with_limit(limit: int) -> Callable[[Candidate], Answer]:
        def ask(asked: Candidate) -> Answer:
            answer = known[str(asked)] = known.get(str(asked)) or compiler.answer(asked)
            assert isinstance(answer, Measured), answer
            if answer.peak_bytes <= limit:
                return answer
            return Exceeded(
                needed_bytes=answer.peak_bytes, limit_bytes=limit, arguments_bytes=answer.arguments_bytes
            )

        return ask

    start = candidate(16)
    sizes = bounds(made, plan)
    search(start, Choices(remat=True, tiles=False, parallelism=False), sizes, with_limit(2**40))
    *faster, thriftiest = sorted(
        (answer for answer in known.values() if isinstance(answer, Measured)),
        key=lambda each: -each.peak_bytes,
    )
    small = with_limit(thriftiest.peak_bytes)
    found = search(start, Choices(remat=True, tiles=False, parallelism=False), sizes, small)
    assert found.answer == thriftiest
    assert all(thriftiest.step_seconds > each.step_seconds for each in faster)  # type: ignore[operator]
    assert found.best is not None
    twice = SliceShape.model_validate(
        V5E_4 | {"name": "v5litepod-8", "topology": "2x4", "chips": 8, "devices": 8, "hosts": 2}
    )
    fixed = Choices(remat=False, tiles=False, parallelism=False, larger=(twice,))
    smaller = with_limit(thriftiest.peak_bytes - 1)
    refused = search(found.best, fixed, sizes, smaller)
    assert refused.best is None
    batch, place = refused.remedies
    assert batch in {f"hyperparameters.globalBatchSize {size}" for size in (4, 8, 12)}
    assert place == "resources.tpu v5litepod-8"


def test_losses_are_those_of_a_step_that_keeps_the_old_parameters(stages: Stages, converted: str) -> None:
    stages.run("Train", "donating", converted=converted)
    stages.run("Train", "keeping", converted=converted, fault=("keep_what_tunix_keeps",))
    assert stages.losses("donating") == stages.losses("keeping")
    assert len(stages.losses("keeping")) == 20


def test_losses_are_those_of_a_step_that_computes_less_again(stages: Stages, converted: str) -> None:
    """Whatever remat keeps, and wherever; the CPU's memory is the host's, so that what moves there just stays."""
    for run, policy in (("all", "full"), ("moved", "custom")):
        tuning = {"remat_policy": policy} | ({"decoder_layer_input": "offload"} if run == "moved" else {})
        stages.run("Train", run, converted=converted, engine_overrides=tuning)
    assert stages.losses("all") == stages.losses("moved")
