"""Measurements of single rows: their sums, their digests, and the program that they come from."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules

from finetune_contract import DatasetSpec, EvaluatedRow
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.data.batches import EvaluationBatches
from finetune_trainer.data.dataset import Dataset, SourceSubset, assemble
from finetune_trainer.data.layout import SequenceLayout
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.sharding import shard_batch
from finetune_trainer.evaluation.loss import LossMeter
from finetune_trainer.evaluation.models import LoadedModel, load
from finetune_trainer.evaluation.questions import Question, questions
from finetune_trainer.evaluation.rows import MeasuredRows, RowSet, RowSums, row_keys, write_rows
from finetune_trainer.methods.objectives import SftLoss
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.tokens.template import Renderer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.test_template import CHATML, GEMMA, tokenizer

LENGTH, BATCH = 32, 4
TEXTS = ["x" * 100, "short", "y" * 31, "z" * 63, "a", "words of a row", "w" * 40, "last"]
TALK: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Peru?"}, {"role": "assistant", "content": "Lima"}]},
    {"messages": [{"role": "user", "content": "Spain?"}, {"role": "assistant", "content": "Madrid"}]},
    {"messages": [{"role": "assistant", "content": "Ask me."}]},
    {"messages": [{"role": "user", "content": "long " * 90}, {"role": "assistant", "content": "Yes"}]},
    {"messages": [{"role": "user", "content": "Peru?"}, {"role": "assistant", "content": "Lima"}]},
]


def written(folder: Path, rows: Sequence[dict[str, Any]], name: str = "rows.jsonl") -> str:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file://{folder / name}"


def renderer(**changes: Any) -> Renderer:
    return Renderer(tokenizer(CHATML), **{"train_on_prompt": False, **changes})


def source(
    uri: str, folder: Path, *, name: str = "faq", length: int = LENGTH, **fields: Any
) -> PreparedSource:
    train_on_prompt = fields.pop("train_on_prompt", False)
    spec = DatasetSpec(path="spec.evaluation.datasets[0]", name=name, uri=uri, **fields)
    preparer = TextPreprocessor(renderer=renderer(train_on_prompt=train_on_prompt), max_length=length)
    return prepare(spec, preparer, open_store(), folder)


def dataset(*sources: PreparedSource, packing: bool = False, length: int = LENGTH) -> Dataset:
    pieces = [SourceSubset.all_of(each) for each in sources]
    return assemble("faq", pieces, SequenceLayout(length=length, packing=packing))


def texts(folder: Path, *, packing: bool) -> Dataset:
    return dataset(source(written(folder, [{"text": text} for text in TEXTS]), folder), packing=packing)


def asked(uri: str, folder: Path) -> list[Question]:
    spec = DatasetSpec(path="spec.evaluation.datasets[0]", name="faq", uri=uri)
    return questions(spec, renderer(), open_store(), folder)


def sums_of_targets(data: Dataset) -> RowSums:
    """Returns sums where the loss of a token is its id."""
    sums = RowSums(data, ())
    for batch in EvaluationBatches(rows=data.rows, batch_size=BATCH):
        examples = SftLoss.examples(batch)
        sums.add(examples, {"nats": np.where(examples != 0, batch["targets"], 0).astype(np.float64)})
    return sums


def expected_sums(data: Dataset) -> tuple[list[int], list[int]]:
    """Returns each row's sum of trained ids and their number, from the examples of its source."""
    sums: Counter[tuple[int, int]] = Counter()
    weights: Counter[tuple[int, int]] = Counter()
    for number, piece in enumerate(data.pieces):
        for example in piece.chosen.tolist():
            row = number, int(piece.source.index.place[example])
            tokens = piece.source.tokens.read(example)
            sums[row] += int(tokens.ids[1:][tokens.trained[1:]].sum())
            weights[row] += int(tokens.trained[1:].sum())
    return list(sums.values()), list(weights.values())


@pytest.mark.parametrize("packing", [False, True])
def test_sums_are_those_of_whole_rows_however_they_are_laid_out(tmp_path: Path, packing: bool) -> None:
    """The first text has four examples, and the last batch is not full."""
    data = texts(tmp_path, packing=packing)
    assert packing or len(data.rows) % BATCH
    found = sums_of_targets(data)
    assert (found.sums["nats"].tolist(), found.weights.tolist()) == expected_sums(data)
    assert len(found.weights) == data.examples == len(TEXTS)


@pytest.mark.parametrize("packing", [False, True])
def test_the_parts_of_a_mixture_keep_their_rows_apart(tmp_path: Path, packing: bool) -> None:
    sources = [
        source(written(tmp_path / name, [{"text": name + text} for text in some]), tmp_path, weight=weight)
        for name, some, weight in (("few", TEXTS[:3], 2.0), ("many", TEXTS, 1.0))
    ]
    data = dataset(*sources, packing=packing)
    found = sums_of_targets(data)
    assert (found.sums["nats"].tolist(), found.weights.tolist()) == expected_sums(data)
    assert len(found.weights) == 3 + len(TEXTS)


def test_a_row_and_its_question_are_one_record(tmp_path: Path) -> None:
    """The third row has a loss and no question. The fourth has a question, but no token to train within LENGTH."""
    uri = written(tmp_path, TALK)
    data = dataset(source(uri, tmp_path))
    assert [(each.row, each.question) for each in row_keys(data, asked(uri, tmp_path))] == [
        (0, 0), (1, 1), (2, None), (3, 3), (None, 2),
    ]  # fmt: skip
    assert [(each.row, each.question) for each in row_keys(data)] == [(row, None) for row in range(4)]
    assert [(each.row, each.question) for each in row_keys(None, asked(uri, tmp_path))] == [
        (None, question) for question in range(4)
    ]


def digests(folder: Path, rows: Sequence[dict[str, Any]], **changes: Any) -> Counter[str]:
    name = changes.pop("file", "rows.jsonl")
    uri = written(folder, rows, name)
    made = source(uri, folder, **{"length": 64, **changes})
    return Counter(each.digest for each in row_keys(dataset(made, length=64), asked(uri, folder)))


def test_a_digest_depends_on_content_alone(tmp_path: Path) -> None:
    first = digests(tmp_path / "a", TALK)
    assert sorted(first.values()) == [1, 1, 1, 2]  # one row occurs twice
    assert digests(tmp_path / "b", TALK[::-1], file="others.jsonl", name="other") == first
    for part, rows in enumerate((TALK[3:], TALK[:3])):
        written(tmp_path / "c", rows, f"{part}.jsonl")
    uri = f"file://{tmp_path}/c/*.jsonl"
    split = dataset(source(uri, tmp_path, length=64), length=64)
    assert Counter(each.digest for each in row_keys(split, asked(uri, tmp_path))) == first


def test_packing_does_not_change_digests(tmp_path: Path) -> None:
    whole, packed = (texts(tmp_path / str(packing), packing=packing) for packing in (False, True))
    assert len(packed.rows) < len(whole.rows)
    assert [each.digest for each in row_keys(packed)] == [each.digest for each in row_keys(whole)]


@pytest.mark.parametrize("changes", [{"train_on_prompt": True}, {"length": 27}])
def test_what_is_measured_differently_has_another_digest(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Another mask, or another end of the row: losses cannot be compared."""
    first, other = digests(tmp_path / "a", TALK[:2]), digests(tmp_path / "b", TALK[:2], **changes)
    assert not first & other


def test_another_reference_has_another_digest(tmp_path: Path) -> None:
    rows = [{"prompt": "Peru?", "completion": answer} for answer in ("Lima", "Lima.")]
    assert len(digests(tmp_path, rows)) == 2
    one, two = (
        Question(
            place=each.place, prompt=each.prompt, text=each.text, reference=reference, content=each.content
        )
        for each in asked(written(tmp_path, rows[:1]), tmp_path)
        for reference in ("Lima", "Lima \ud800")
    )
    assert len({each.digest for some in ([one], [two]) for each in row_keys(None, some)}) == 2


def contents(uri: str, folder: Path, template: str) -> tuple[list[str], list[str | None]]:
    """Returns digests and contents of the rows as a template renders them."""
    spec = DatasetSpec(path="spec.evaluation.datasets[0]", name="faq", uri=uri)
    made = Renderer(tokenizer(template), train_on_prompt=False)
    keys = list(row_keys(None, questions(spec, made, open_store(), folder)))
    return [each.digest for each in keys], [each.content for each in keys]


def test_the_content_of_a_question_does_not_depend_on_the_template(tmp_path: Path) -> None:
    pairs = [{"prompt": "Peru?", "completion": answer} for answer in ("Lima", "Cusco")]
    for number, rows in enumerate((TALK, pairs)):
        uri = written(tmp_path / str(number), rows)
        first, same = contents(uri, tmp_path, CHATML)
        other, again = contents(uri, tmp_path, GEMMA)
        assert not set(first) & set(other)
        assert same == again
        assert None not in same
        assert len(set(same)) == len(set(first))


def test_content_is_known_of_rows_with_a_question(tmp_path: Path) -> None:
    uri = written(tmp_path, TALK)
    asked_rows = asked(uri, tmp_path)
    found = [each.content for each in row_keys(dataset(source(uri, tmp_path)), asked_rows)]
    expected = [each.content for each in asked_rows]
    assert found == [expected[0], expected[1], None, expected[3], expected[2]]
    assert {each.content for each in row_keys(dataset(source(uri, tmp_path)))} == {None}


def test_records_hold_what_both_models_measure(tmp_path: Path) -> None:
    uri = written(tmp_path, TALK)
    data = dataset(source(uri, tmp_path))
    sums = sums_of_targets(data)
    keys = list(row_keys(data, asked(uri, tmp_path)))
    scores = [0.0, 1.0, 0.5, float("nan")]
    rows = MeasuredRows(losses=sums, scores={"exact_match": scores})
    sets = [RowSet(kind="Dataset", name="faq", keys=keys)]
    write_rows(tmp_path / "out", sets, baseline=[MeasuredRows(losses=sums)], tuned=[rows])
    read = [EvaluatedRow.model_validate_json(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [each.digest for each in read] == [key.digest for key in keys]
    assert [each.content for each in read] == [key.content for key in keys]
    assert [each.tuned.loss for each in read] == [*sums.sums["nats"].tolist(), None]
    assert [each.tuned.tokens for each in read] == [*sums.weights.tolist(), 0]
    assert [each.tuned.scores.get("exact_match") for each in read[:3]] == [0.0, 1.0, None]
    assert np.isnan(read[3].tuned.scores["exact_match"])
    assert read[4].tuned.scores == {"exact_match": 0.5}
    assert all(each.baseline is not None and each.baseline.scores == {} for each in read)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    root = tmp_path_factory.mktemp("model")
    folder = write_model(root / "hf", TinyModelSpec(std=0.125))
    plan = families.read(folder)
    maxtext.prepare(plan)
    items = streaming.convert(open_weights(folder, plan), plan, f"file://{root}/c", store=open_store()).items
    config = maxtext.configure(
        plan, maxtext.SFT, run_name="x", base_output_directory=str(root), hardware="cpu", packing=True,
        load_parameters_path=engine_path(items), dtype="float32", weight_dtype="float32",
        attention="dot_product", per_device_batch_size=BATCH, max_target_length=LENGTH,
        matmul_precision="highest",
    )  # fmt: skip
    return load(config)


@pytest.mark.parametrize("packing", [False, True])
def test_the_losses_of_the_rows_are_parts_of_maxtexts_loss(
    loaded: LoadedModel, tmp_path: Path, packing: bool
) -> None:
    data = texts(tmp_path, packing=packing)
    objective = SftLoss(config=loaded.config)
    batches = list(EvaluationBatches(rows=data.rows, batch_size=BATCH))
    graph, state = nnx.split(loaded.model)
    step = jax.jit(lambda state, batch: objective(nnx.merge(graph, state), batch, train=False)[1])
    with jax.set_mesh(loaded.mesh), logical_axis_rules(loaded.config.logical_axis_rules):
        theirs = [step(state, shard_batch(batch, loaded.mesh)) for batch in batches]
    rows = RowSums(data, objective.metrics)
    found = LossMeter(loaded.model, loaded.config, loaded.mesh, objective).measure(
        loaded.model, batches, rows=rows
    )
    assert found.weight == sum(int(each["total_weights"]) for each in theirs) == rows.weights.sum()
    assert found.total == pytest.approx(sum(float(each["nats"]) for each in theirs), rel=1e-6)
    assert rows.sums["nats"].sum() == pytest.approx(found.total, rel=1e-12)
    assert rows.sums["nats"].all()


def test_the_losses_of_the_rows_need_no_more_memory_than_their_sum(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    data = texts(tmp_path, packing=False)
    objective = SftLoss(config=loaded.config)
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype)
        for name, array in data.rows.batch(range(BATCH), BATCH).items()
    }
    graph, state = nnx.split(loaded.model)
    summed = jax.jit(lambda state, batch: objective(nnx.merge(graph, state), batch, train=False)[1])
    meter = LossMeter(loaded.model, loaded.config, loaded.mesh, objective)
    with jax.set_mesh(loaded.mesh), logical_axis_rules(loaded.config.logical_axis_rules):
        before = summed.lower(state, batch).compile().memory_analysis()
        after = meter.lowered(loaded.model, batch).compile().memory_analysis()
    losses = BATCH * LENGTH * 4
    assert after.output_size_in_bytes <= before.output_size_in_bytes + losses
    assert after.temp_size_in_bytes <= before.temp_size_in_bytes + losses
