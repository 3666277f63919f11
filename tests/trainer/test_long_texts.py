"""Texts longer than a sequence: all of their tokens are trained, in several sequences of one row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from finetune_contract import DataReport, DatasetSpec, SplitSpec
from finetune_trainer.data.batches import steps_for
from finetune_trainer.data.dataset import SourceSubset, assemble, split_validation
from finetune_trainer.data.layout import SequenceLayout
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.test_data_report import check
from tests.trainer.test_template import CHATML, tokenizer

LENGTH = 16


def prepared(folder: Path, texts: list[str], *, bos: bool = True, **fields: Any) -> PreparedSource:
    """Returns prepared texts with a token for each byte, in sequences of at most LENGTH tokens."""
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    renderer = Renderer(beginning() if bos else tokenizer(CHATML), train_on_prompt=False)
    source = DatasetSpec(path="spec.datasets.train[0]", name="books", uri=f"file://{file}", **fields)
    return prepare(source, TextPreprocessor(renderer=renderer, max_length=LENGTH), open_store(), folder)


def beginning() -> Any:
    """Returns a tokenizer that adds a special token at the beginning of a text."""
    of = tokenizer(CHATML, bos=True)
    of.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", of.bos_token_id)]
    )
    return of


def sequences(source: PreparedSource) -> list[list[int]]:
    return [source.tokens.read(number).ids.tolist() for number in range(len(source))]


@pytest.mark.parametrize("size", [1, 13, 14, 15, 16, 29, 30, 31, 46, 47, 160])
def test_no_token_is_lost_and_every_sequence_has_something_to_predict(tmp_path: Path, size: int) -> None:
    text = "".join(chr(ord("a") + n % 26) for n in range(size))
    of = beginning()
    found = sequences(prepared(tmp_path, [text]))
    assert [token for part in found for token in part] == [
        of.bos_token_id,
        *of.encode(text, add_special_tokens=False),
        of.eos_token_id,
    ]
    assert all(2 <= len(part) <= LENGTH for part in found)
    assert len(found) == -(-(size + 2) // LENGTH)


def test_a_text_without_a_first_token_gets_none_in_later_sequences_either(tmp_path: Path) -> None:
    of = tokenizer(CHATML)
    found = sequences(prepared(tmp_path, ["x" * 40], bos=False))
    ends = [part.count(of.eos_token_id) for part in found]
    assert ends == [0, 0, 1]
    assert found[-1][-1] == of.eos_token_id


def test_rows_are_counted_as_rows_and_the_most_of_them_are_the_first_ones(tmp_path: Path) -> None:
    source = prepared(tmp_path, ["a" * 100, "b" * 5, "c" * 50, "d" * 50], max_examples=3)
    data = assemble("train", [SourceSubset.all_of(source)], SequenceLayout(length=LENGTH, packing=False))
    (report,) = data.reports
    assert (report.rows, report.truncated_rows, report.dropped_rows, report.duplicate_rows) == (3, 0, 0, 0)
    assert report.tokens == 102 + 7 + 52
    # ceil(102/16) + 1 + ceil(52/16), from which the number of steps is computed
    assert data.epoch == len(source) == 7 + 1 + 4
    assert steps_for(data.epoch, 1.0, 4) == 3


def test_what_is_held_back_is_whole_texts(tmp_path: Path) -> None:
    texts = [chr(ord("a") + n) * (20 + 7 * n) for n in range(12)]
    source = prepared(tmp_path, texts)
    (kept,), (held,) = split_validation([SourceSubset.all_of(source)], SplitSpec(fraction=0.25, seed=3))
    of = source.index
    assert set(of.place[kept.chosen]) | set(of.place[held.chosen]) == set(range(1, 13))
    assert not set(of.place[kept.chosen]) & set(of.place[held.chosen])
    assert len(set(of.place[held.chosen])) == 3
    (rest,), (two,) = split_validation(
        [SourceSubset.all_of(source)], SplitSpec(fraction=0.25, seed=3, max_examples=2)
    )
    assert len(set(of.place[two.chosen])) == 2
    assert set(of.place[two.chosen]) < set(of.place[held.chosen])
    assert np.array_equal(np.sort(np.concatenate([rest.chosen, two.chosen])), np.arange(len(source)))


def test_equal_texts_stay_on_one_side(tmp_path: Path) -> None:
    source = prepared(tmp_path, [("a" if n % 2 else "b") * 60 for n in range(10)])
    (kept,), (held,) = split_validation([SourceSubset.all_of(source)], SplitSpec(fraction=0.1, seed=3))
    assert not set(source.index.content[kept.chosen]) & set(source.index.content[held.chosen])


def test_a_text_is_equal_to_an_earlier_one_only_as_a_whole(tmp_path: Path) -> None:
    head, tail = "same beginning, longer than a sequence", "end" * 9
    source = prepared(tmp_path, [head, head + tail, head, head + tail, head + tail[::-1]])
    (report,) = assemble(
        "train", [SourceSubset.all_of(source)], SequenceLayout(length=LENGTH, packing=False)
    ).reports
    assert (report.rows, report.duplicate_rows) == (5, 2)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DataReport:
    root = tmp_path_factory.mktemp("long")
    write_model(root / "models/qwen3", TinyModelSpec())
    (root / "data").mkdir()
    texts = ["word " * 300, "short", "other " * 400]
    (root / "data/train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (root / "data/eval.jsonl").write_text(json.dumps({"text": "short, too"}) + "\n")
    return check(root, hyperparameters={"steps": None, "epochs": 1.0, "global_batch_size": 2})


def test_the_report_says_which_texts_are_split(found: DataReport) -> None:
    (details,) = found.train
    (split,) = [each for each in details.found if each.kind == Note.SPLIT]
    assert (split.count, split.first) == (2, ["row 1", "row 3"])
    assert not [each for each in details.found if "cut" in each.kind]
    assert [each.level for each in found.remarks if "split into several sequences" in each.text] == ["Note"]


def test_steps_come_from_the_sequences(found: DataReport) -> None:
    (details,) = found.train
    assert details.report.rows == 3
    assert found.epoch_sequences is not None
    assert found.epoch_sequences > 3
    assert found.steps == -(-found.epoch_sequences // 2)


def test_few_long_rows_are_tokenized_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizing 512 books at once took 15 GB in a pod with 8 GB."""
    monkeypatch.setattr("finetune_trainer.data.prepare._CHARACTERS", 1000)
    sizes: list[list[int]] = []
    many = Renderer.many

    def counted(renderer: Renderer, examples: Any) -> Any:
        sizes.append([len(each.text) for each in examples])
        return many(renderer, examples)

    monkeypatch.setattr(Renderer, "many", counted)
    texts = ["a" * 600, "b" * 600, "c" * 300, "d" * 5000, *["e"] * 600]
    source = prepared(tmp_path, texts)
    assert sizes == [[600], [600, 300], [5000], [1] * 512, [1] * 88]
    assert sum(map(len, sequences(source))) == sum(map(len, texts)) + 2 * len(texts)
