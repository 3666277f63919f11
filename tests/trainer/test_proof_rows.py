"""The rows of a job that the proof of a conversion uses."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finetune_contract import DatasetSpec
from finetune_trainer.stages import convert
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.template import Renderer
from finetune_trainer.verification import conversion_check
from tests.trainer.requests import method
from tests.trainer.test_template import tokenizer


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_that_predict_nothing_are_passed_over(tmp_path: Path, pairs: bool) -> None:
    """Blank lines often come first in a corpus: preflight drops them, and the proof must not use only them."""
    texts = ["", "", "", "", "one", "", "two", "three", "four", "five"]
    rows = [{"prompt": "", "chosen": text, "rejected": ""} if pairs else {"text": text} for text in texts]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = DatasetSpec(path="spec.datasets.train[0]", name="a", uri=f"file://{tmp_path}/a.jsonl")
    of = tokenizer(None)
    context: Any = SimpleNamespace(
        request=SimpleNamespace(
            data=SimpleNamespace(train=[source]), method=method({"type": "DPO" if pairs else "SFT"})
        ),
        store=open_store(), scratch=tmp_path, renderer=Renderer(of, train_on_prompt=False),
    )  # fmt: skip
    plan: Any = SimpleNamespace(context_length=64)
    found = [of.decode(row, skip_special_tokens=True) for row in convert._rows(context, plan)]
    assert found == ["one", "two", "three", "four"][: conversion_check.ROWS]
