"""The tokens with which training teaches answers to end, counted in prepared rows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finetune_trainer.data import examples
from finetune_trainer.data.examples import TokenFile
from finetune_trainer.data.special_tokens import trained_ends
from finetune_trainer.tokens.encoding import TokenizedExample

END, EOS, CALL, BLANK = 1, 2, 3, 4
LIMIT = 8
#: Rows of tokens, with the trained ones negative.
Rows = list[list[int]]


class Words:
    """A tokenizer of which only the blank token decodes to white space."""

    @staticmethod
    def decode(ids: list[int]) -> str:
        return "\n" if ids == [BLANK] else "word"


def counted(path: Path, rows: Rows, *, chosen: list[int] | None = None, pairs: bool = False) -> list[int]:
    file = TokenFile(path / "rows.tokens")
    for row in rows:
        ids = np.asarray(row, np.int32)
        file.append(TokenizedExample(ids=np.abs(ids), trained=ids < 0))
    piece = SimpleNamespace(
        source=SimpleNamespace(tokens=file), chosen=np.asarray(range(len(rows)) if chosen is None else chosen)
    )
    data: Any = SimpleNamespace(pieces=[piece])
    renderer: Any = SimpleNamespace(special_ids=frozenset({END, EOS, CALL}))
    return trained_ends(data, renderer, Words(), limit=LIMIT, pairs=pairs)


@pytest.fixture(params=[1, 2, 3, 1 << 20])
def scanned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans a few tokens at a time, so that runs cross the borders."""
    monkeypatch.setattr(examples, "_SCANNED", request.param)


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([[9, -8, -END]], [END]),
        ([[9, -8, -END, 9, -8, -EOS], [9, -8, -END]], [END, EOS]),
        ([[-8, -END], [-8, -EOS], [-7, -EOS]], [EOS, END]),
        ([[9, -8, -END, -BLANK], [9, -END, -BLANK, -BLANK]], [END]),
        ([[9, -8, -CALL, -END]], [END]),
        ([[9, -8, -CALL, -7]], []),
        ([[9, -8, END]], []),
        ([[9, END, -8, -7]], []),
        ([[-8, -7]], []),
        ([[-BLANK]], []),
        ([[9, -8, -END], [-END, -7, -7, -7, -EOS]], [EOS]),
        ([[-END, -7, -7, -7, -EOS]] * 2 + [[-EOS, -7, -7, -7, -END]], [EOS, END]),
    ],
    ids=[
        "one",
        "one for each answer",
        "most frequent first",
        "before white space",
        "the last of several",
        "inside an answer",
        "not trained",
        "of the prompt",
        "text without an end",
        "white space alone",
        "also between the parts of an answer",
        "all between turns of trained prompts, too",
    ],
)
def test_the_last_special_token_of_every_trained_answer_counts(
    rows: Rows, ends: list[int], tmp_path: Path
) -> None:
    assert counted(tmp_path, rows) == ends


@pytest.mark.usefixtures("scanned")
def test_an_answer_that_may_be_cut_has_no_end(tmp_path: Path) -> None:
    """A row of the full length may have been cut at a token that only looks like an end; its earlier turns were not."""
    cut = [9, -8, -END, 9, 9, 9, -8, -CALL]
    assert len(cut) == LIMIT
    assert counted(tmp_path, [cut]) == [END]
    assert counted(tmp_path, [cut[1:]]) == [END, CALL]


@pytest.mark.usefixtures("scanned")
def test_rows_that_are_held_back_do_not_count(tmp_path: Path) -> None:
    rows = [[9, -8, -END], [9, -8, -EOS], [9, -8, -CALL]]
    assert counted(tmp_path, rows, chosen=[0, 2]) == [END, CALL]


@pytest.mark.usefixtures("scanned")
def test_of_a_pair_the_chosen_answer_counts(tmp_path: Path) -> None:
    chosen, rejected = [9, -8, -END], [9, -7, -EOS]
    long = [9, *[-8] * (LIMIT - 1), -CALL]
    assert counted(tmp_path, [chosen + rejected, long + rejected], pairs=True) == [END]
