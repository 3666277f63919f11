"""Answers from the KV cache are those of whole forward passes, token by token, for every family, adapter included."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.errors import JaxRuntimeError

from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.lora import with_lora
from finetune_trainer.evaluation.decoding import sized, with_cache
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.models import LoadedModel, load
from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.storage import engine_path, open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.fixed_rows import FixedRowCapacity

NEW, ROWS = 12, 4
#: More prompts than a batch has, of very different lengths, so that most rows are padded.
LENGTHS = (1, 40, 7, 19, 3, 70)
SPECS = {
    "qwen3 with an adapter": TinyModelSpec(std=0.125, vocab=509),
    "llama": TinyModelSpec(std=0.125, vocab=509, family="llama", layers=3),
    "qwen2": TinyModelSpec(std=0.125, vocab=509, family="qwen2", layers=3),
    "gemma2": TinyModelSpec(std=0.125, vocab=509, family="gemma2", config={"sliding_window": 256}),
    "gemma3": TinyModelSpec(
        std=0.125, vocab=509, family="gemma3", layers=7, kv_heads=1, config={"sliding_window": 256}
    ),
    "mixtral": TinyModelSpec(std=0.125, vocab=509, family="mixtral"),
    "qwen3-moe": TinyModelSpec(std=0.125, vocab=509, family="qwen3-moe"),
    "deepseek2": TinyModelSpec(std=0.125, vocab=509, family="deepseek2", layers=3),
    "gemma2, short window": TinyModelSpec(
        std=0.125, vocab=509, family="gemma2", config={"sliding_window": 8}
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    loaded: LoadedModel
    prompts: list[list[int]]

    def answers(
        self,
        *,
        cached: bool,
        numbers: slice = slice(None),
        ends: frozenset[int] = frozenset(),
        **sampling: Any,
    ) -> list[list[int]]:
        generator = Generator(
            self.loaded,
            Sampling(max_new_tokens=NEW, **sampling),
            end_ids=ends,
            row_capacity=FixedRowCapacity(number=ROWS),
            longest=1024,
            cached=cached,
        )
        return generator.answers(self.prompts[numbers])


#: Whole forward passes of experts take a minute.
OF_EXPERTS = ("mixtral", "qwen3-moe", "deepseek2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.thorough if name in OF_EXPERTS else ()) for name in SPECS],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    root: Path = tmp_path_factory.mktemp("model")
    folder = write_model(root / "hf", SPECS[request.param])
    plan = families.read(folder)
    maxtext.prepare(plan)
    items = streaming.convert(open_weights(folder, plan), plan, f"file://{root}/c", store=open_store()).items
    lora = "adapter" in request.param
    adapter = {
        "enable_lora": lora,
        "lora_rank": 4,
        "lora_alpha": 8.0,
        "lora_module_path": plan.lora_module_path(),
    }
    # which selects plain attention on CPU, in programs of the widths that the TPU's kernel needs
    attention = "autoselected" if lora or "window" in request.param else "dot_product"
    config = maxtext.configure(
        plan, maxtext.SFT, run_name="x", base_output_directory=str(root), hardware="cpu", packing=False,
        load_parameters_path=engine_path(items), dtype="float32", weight_dtype="float32",
        attention=attention, per_device_batch_size=ROWS, max_target_length=64, lora=adapter,
    )  # fmt: skip
    loaded = load(config)
    if lora:
        with jax.set_mesh(loaded.mesh), logical_axis_rules(config.logical_axis_rules):
            model = with_lora(loaded.model, loaded.mesh, config)
        keys = iter(jax.random.split(jax.random.key(1), 100))
        for _, value in nnx.iter_graph(model):
            if isinstance(value, nnx.LoRAParam):
                value.set_value(jax.random.normal(next(keys), value.get_value().shape) * 0.2)
        loaded = LoadedModel(model=model, config=config, mesh=loaded.mesh)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(30, 500, length).tolist() for length in LENGTHS]
    yield Case(name=request.param, loaded=loaded, prompts=prompts)
    jax.clear_caches()


def test_greedy_answers_are_those_of_whole_forward_passes(case: Case) -> None:
    answers = case.answers(cached=True)
    assert answers == case.answers(cached=False)
    assert {len(answer) for answer in answers} == {NEW}
    assert len({tuple(answer) for answer in answers}) == len(LENGTHS), "answers depend on the prompts"


@pytest.mark.parametrize("case", ["qwen3 with an adapter"], indirect=True)
def test_an_answer_stops_before_the_token_that_ends_it(case: Case) -> None:
    answers = case.answers(cached=True)
    ends = frozenset({answers[0][0], answers[1][5]})
    cut = [answer[: next((i for i, token in enumerate(answer) if token in ends), NEW)] for answer in answers]
    assert cut[0] == []
    assert case.answers(cached=True, ends=ends) == cut


@pytest.mark.parametrize("case", ["qwen3 with an adapter"], indirect=True)
def test_answers_are_the_same_where_devices_hold_half_of_the_rows(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, program, refused = case.answers(cached=True), Generator.program, list[int]()

    def half(generator: Generator, width: int, rows: int) -> tuple[Any, Any]:
        run, state = program(generator, width, rows)

        def refuse(*_: Any) -> Any:
            refused.append(rows)
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")

        return (run if rows <= ROWS // 2 else refuse), state

    monkeypatch.setattr(Generator, "program", half)
    assert case.answers(cached=True) == answers
    assert refused == [ROWS]


def test_maxtext_cannot_decode_beyond_a_sliding_window(case: Case) -> None:
    """Whole forward passes are used beyond the window; all other models have a cache."""
    config = sized(case.loaded.config, rows=ROWS, prompt=64, total=64 + NEW)
    with jax.set_mesh(case.loaded.mesh), logical_axis_rules(config.logical_axis_rules):
        assert (with_cache(case.loaded.model, config, case.loaded.mesh) is None) is ("window" in case.name)


@pytest.mark.parametrize("case", ["qwen3 with an adapter"], indirect=True)
def test_a_drawn_answer_depends_on_the_seed_and_the_prompts_number_alone(case: Case) -> None:
    drawn: dict[str, Any] = {"temperature": 1.0, "top_k": 50}
    answers = case.answers(cached=True, seed=1, **drawn)
    assert answers == case.answers(cached=False, seed=1, **drawn)
    assert answers != case.answers(cached=True, seed=2, **drawn)
    assert answers[:2] == case.answers(cached=True, numbers=slice(2), seed=1, **drawn)
    assert case.answers(cached=True, seed=3, temperature=1.0, top_k=1) == case.answers(cached=True)
