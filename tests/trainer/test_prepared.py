"""Prepared sources: stored under a fingerprint of their inputs, found again, and made with little memory per row."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune_contract import CacheLayout, DatasetSpec
from finetune_trainer.data.cache import DataCache
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.template import Renderer
from tests.trainer.test_template import CHATML, LLAMA3, tokenizer

Prepare = Callable[..., PreparedSource]


def write(path: Path, rows: int) -> str:
    with path.open("w") as file:
        for i in range(rows):
            file.write(json.dumps({"question": f"What is {i}?", "answer": f"A number, {i}."}) + "\n")
    return f"file://{path}"


@pytest.fixture
def made(tmp_path: Path) -> Prepare:
    """Returns a function that prepares ``a.jsonl``, each time as another attempt."""
    write(tmp_path / "a.jsonl", 5)
    attempts = iter(range(1, 100))

    def once(
        *, template: str = CHATML, max_length: int = 128, renderer: Renderer | None = None, refresh: bool = False,
        **fields: Any,
    ) -> PreparedSource:  # fmt: skip
        source = {
            "path": "spec.datasets.train[0]",
            "name": "a",
            "uri": f"file://{tmp_path}/a.jsonl",
            **fields,
        }
        cache = DataCache(
            store=open_store(), layout=CacheLayout(f"file://{tmp_path}/cache"), scratch=tmp_path,
            reads=not refresh, writes=True, replaces=refresh, uid="0123456789", attempt=next(attempts), restart=0,
        )  # fmt: skip
        renderer = renderer or Renderer(tokenizer(template), train_on_prompt=False)
        return prepare(
            DatasetSpec.model_validate(source), TextPreprocessor(renderer=renderer, max_length=max_length), open_store(), tmp_path,
            cache=cache,
        )  # fmt: skip

    return once


class Idle(Renderer):
    """A renderer that must not be called."""

    def many(self, examples: Any) -> Any:
        raise AssertionError(examples)


def use(prepared: PreparedSource) -> tuple[str, list[str]]:
    assert prepared.use is not None
    return prepared.use.result, list(prepared.use.miss_because)


def test_what_was_prepared_is_found_again_and_no_row_is_read(made: Prepare) -> None:
    first = made()
    assert use(first) == ("Miss", [])
    again = made(renderer=Idle(tokenizer(CHATML), train_on_prompt=False))
    assert use(again) == ("Hit", [])
    assert again.use is not None
    assert again.use.size_bytes > 0
    assert (again.digest, again.format, len(again)) == (first.digest, first.format, 5)
    for number in range(5):
        one, other = first.tokens.read(number), again.tokens.read(number)
        assert (one.ids.tolist(), one.trained.tolist()) == (other.ids.tolist(), other.trained.tolist())
    assert (
        again.index.places(np.arange(5))
        == first.index.places(np.arange(5))
        == [f"row {i}" for i in range(1, 6)]
    )


MISSES: list[tuple[dict[str, Any], str]] = [
    ({"max_length": 64}, "maxSeqLength: 128 -> 64"),
    ({"template": LLAMA3}, "chatTemplate: "),
    ({"max_examples": 3}, "maxExamples: all -> 3"),
    ({"format": "QuestionAnswer"}, "format: Auto -> QuestionAnswer"),
    ({"renderer": Renderer(tokenizer(CHATML), train_on_prompt=True)}, "trainOnPrompt: False -> True"),
    ({"renderer": Renderer(tokenizer(CHATML, bos=True), train_on_prompt=False)}, "tokenizer: "),
]


@pytest.mark.parametrize(("change", "told"), MISSES, ids=[told for _, told in MISSES])
def test_a_miss_says_which_input_differed(made: Prepare, change: dict[str, Any], told: str) -> None:
    made()
    result, (reason,) = use(made(**change))
    assert result == "Miss"
    assert reason.startswith(told)
    assert use(made())[0] == "Hit"  # the first entry still exists


def test_other_content_is_a_miss_that_names_the_data(made: Prepare, tmp_path: Path) -> None:
    made()
    write(tmp_path / "a.jsonl", 6)
    result, (reason,) = use(made())
    assert (result, reason.partition(":")[0]) == ("Miss", "data")


def test_an_entry_that_is_not_whole_is_made_again(made: Prepare) -> None:
    kept = made()
    assert kept.use is not None
    tokens = Path(str(kept.use.uri).removeprefix("file://"))
    tokens.write_bytes(tokens.read_bytes()[:-4])
    assert use(made())[0] == "Miss"
    assert use(made())[0] == "Hit"


def test_refresh_reads_nothing_and_replaces_what_is_there(made: Prepare) -> None:
    first = made()
    fresh = made(refresh=True)
    assert use(fresh) == ("Miss", ["spec.cache is Refresh"])
    again = made()
    assert again.use is not None
    assert fresh.use is not None
    assert first.use is not None
    assert again.use.uri == fresh.use.uri != first.use.uri


def test_memory_grows_by_a_few_dozen_bytes_a_row(tmp_path: Path) -> None:
    """The limit covers the data held for each row and numpy's temporary copies of it; a row's text has 100 bytes."""
    renderer = Renderer(tokenizer(CHATML), train_on_prompt=False)
    peaks = {}
    for rows in (1000, 1000, 5000):  # the first measurement is a warm-up
        spec = DatasetSpec(path="p", name=f"n{rows}", uri=write(tmp_path / f"{rows}.jsonl", rows))
        tracemalloc.start()
        prepare(spec, TextPreprocessor(renderer=renderer, max_length=128), open_store(), tmp_path)
        peaks[rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[5000] - peaks[1000] < 4000 * 160
