"""The programs that a job runs on its slice, as preflight derives them from rows and prompts."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
import yaml
from flax import nnx

from devcluster.fixtures.chat_data import write_data
from finetune_trainer.compiled.compile_protocol import SliceProgram
from finetune_trainer.engine.widths import DECIDING
from finetune_trainer.evaluation.benchmarks import scores
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.likelihood import Likelihood
from finetune_trainer.evaluation.loaded_backend import LoadedModelBackend
from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.evaluate import benchmarks_of, harness_of
from finetune_trainer.stages.slice_programs import programs
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.fixed_rows import FixedRowCapacity
from tests.trainer.requests import request

DPO = {"type": "DPO", "max_prompt_length": 24}
LORA = {"rank": 4, "alpha": 8.0}


def context_of(root: Path, **changes: Any) -> StageContext:
    write_model(root / "models/qwen3", TinyModelSpec(context=4096))
    write_data(root / "data", train=12, evaluation=40)
    return StageContext(
        request=request(root, "Preflight", **changes),
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=ImmediateStop(),
        scratch=root,
    )


def found(root: Path, **changes: Any) -> list[SliceProgram]:
    context = context_of(root, **changes)
    plan = context.plan(context.model(weights=False))
    return programs(context, plan, benchmarks_of(context))


def kinds(programs: list[SliceProgram]) -> list[tuple[str, bool]]:
    return [(each.kind, each.adapter) for each in programs]


def dataset(root: Path, *metrics: str, **changes: Any) -> dict[str, Any]:
    source = {
        "path": "spec.evaluation.datasets[0]",
        "name": "faq",
        "uri": f"file://{root}/data/eval.jsonl",
        **changes,
    }
    return {"datasets": [{"source": source, "metrics": list(metrics)}]}


def test_a_training_that_is_not_evaluated_runs_its_validation_alone(tmp_path: Path) -> None:
    assert kinds(found(tmp_path, evaluation={"prompts": []})) == [("Train", True), ("TrainingLoss", True)]
    assert kinds(found(tmp_path, evaluation={"prompts": []}, data={"validation": []})) == [("Train", True)]


def test_prompts_and_questions_are_answered_in_few_widths(tmp_path: Path) -> None:
    made = found(tmp_path, evaluation={**dataset(tmp_path, "ExactMatch", "Loss"), "prompts": ["why " * 900]})
    answers = [("Generate", True)] * 2
    assert kinds(made) == [("Train", True), ("TrainingLoss", True), ("Loss", True), *answers]
    wide, narrow = sorted((each for each in made if each.kind == "Generate"), key=lambda each: -each.width)
    assert wide.count == 1
    assert narrow.count == 40
    assert wide.width >= 900 > narrow.width
    assert {(each.new_tokens, each.longest) for each in (wide, narrow)} == {(16, 4080)}


def test_the_base_model_of_an_adapter_has_programs_of_its_own_which_come_last(tmp_path: Path) -> None:
    made = found(tmp_path, method={"lora": LORA})
    assert kinds(made) == [
        ("Train", True), ("TrainingLoss", True), ("Loss", True), ("Generate", True), ("Loss", False),
        ("Generate", False),
    ]  # fmt: skip
    alone = found(tmp_path, method={"lora": LORA}, evaluation={"baseline": False})
    assert all(each.adapter for each in alone)


def test_preferences_are_measured_beside_their_reference_and_texts_by_a_loss_of_their_own(
    tmp_path: Path,
) -> None:
    losses = dataset(tmp_path, "Loss")
    assert {*kinds(found(tmp_path, method=DPO, evaluation=losses))} >= {
        ("Loss", True), ("Reference", True), ("TextLoss", True),
    }  # fmt: skip
    adapted = kinds(found(tmp_path, method={**DPO, "lora": LORA}, evaluation={**losses, "baseline": False}))
    assert ("Reference", False) in adapted, "a model without its adapter is its own reference"
    assert ("Reference", True) not in adapted


class Ran:
    """Records which programs the Evaluate stage's engine runs, by kind and width, and the number of texts for each.

    Nothing is computed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts = Counter[tuple[str, int]]()

        def measured(_: Any, pairs: Sequence[Any], __: int, width: int) -> list[tuple[float, bool]]:
            self.texts["Likelihood", width] += len(pairs)
            return [(-1.0, False)] * len(pairs)

        def answered(_: Any, __: Any, numbers: Sequence[int], width: int, ___: int) -> list[list[int]]:
            self.texts["Generate", width] += len(numbers)
            return [[] for _ in numbers]

        monkeypatch.setattr(Likelihood, "_measured", measured)
        monkeypatch.setattr(Generator, "_batch", answered)
        monkeypatch.setattr(Generator, "_needs", lambda *_: {"tokens": 1, "logits": 1})

    def engine(self, context: StageContext, length: int) -> LoadedModelBackend:
        config = SimpleNamespace(**dict.fromkeys(DECIDING), logical_axis_rules=())
        config.attention = "autoselected"
        loaded = LoadedModel(model=nnx.Dict(), config=config, mesh=jax.make_mesh((1,), ("data",)))
        ends = context.renderer.end_ids()
        return LoadedModelBackend(
            loaded, row_capacity=FixedRowCapacity(number=4), context=length, end_ids=ends
        )


@pytest.mark.parametrize("kind", ["multiple_choice", "generate_until", "loglikelihood_rolling"])
def test_benchmarks_tell_without_a_model_which_programs_evaluate_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    rows = [{"text": "so it is " * (1 + 5 * max(0, number - 19)), "gold": number % 2} for number in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    described: dict[str, Any] = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test",
        "output_type": kind, "doc_to_text": "{{text}}", "doc_to_target": "{{gold}}",
    }  # fmt: skip
    match kind:
        case "multiple_choice":
            described |= {"doc_to_choice": ["yes", "no"], "doc_to_target": "gold"}
        case "generate_until":
            described |= {
                "generation_kwargs": {"max_gen_toks": 32},
                "metric_list": [{"metric": "exact_match"}],
            }
        case _:
            described |= {
                "doc_to_text": "",
                "doc_to_target": "{{text}}",
                "metric_list": [{"metric": "word_perplexity"}],
            }
    (folder / "mine.yaml").write_text(yaml.safe_dump(described))
    benchmark = {"path": "spec.evaluation.benchmarks[0]", "name": "mine", "uri": f"file://{folder}"}
    evaluation = {"prompts": [], "benchmarks": [benchmark]}
    asked = [each for each in found(tmp_path, evaluation=evaluation) if each.count]
    assert {each.kind for each in asked} == {"Generate" if kind == "generate_until" else "Likelihood"}
    assert sum(each.count for each in asked) == (60 if kind == "multiple_choice" else 30)
    assert all(each.new_tokens == (32 if kind == "generate_until" else 0) for each in asked)

    context, ran = context_of(tmp_path, evaluation=evaluation), Ran(monkeypatch)
    length = context.plan(context.model(weights=False)).context_length
    (loaded,) = benchmarks_of(context)
    scores(loaded.tasks[0], harness_of(context, ran.engine(context, length), length), chat=True)
    assert {(each.kind, each.width): each.count for each in asked} == ran.texts
    assert len(ran.texts) > 1, "the texts have several widths"


def test_the_rows_are_not_read_where_preflight_reads_none(tmp_path: Path) -> None:
    made = found(
        tmp_path,
        data={"check": "Off"},
        evaluation=dataset(tmp_path, "ExactMatch", uri=f"file://{tmp_path}/data/nothing.jsonl"),
    )
    assert [each.count for each in made if each.kind == "Generate"] == [1]
