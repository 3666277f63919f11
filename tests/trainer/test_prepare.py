"""Which rows are dropped because nothing of them says anything, and what is noted on rows that are cut."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune_contract import DatasetDetails, DatasetReport, DatasetSpec, RowsFound, SplitSpec
from finetune_trainer.data import remarks
from finetune_trainer.data.dataset import SourceSubset, report_of, split_validation
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.data.report import details
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.notes import BLANK_ANSWER, BLANK_TEXT, Note
from finetune_trainer.tokens.template import Renderer
from tests.trainer.test_data_report import chat
from tests.trainer.test_template import CHATML, LLAMA3, QWEN3, tokenizer

type Row = dict[str, Any]


def prepared(
    folder: Path, rows: list[Row], *, template: str | None = CHATML, length: int = 400, train_on_prompt: bool = False
) -> PreparedSource:  # fmt: skip
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    renderer = Renderer(tokenizer(template, bos=True), train_on_prompt=train_on_prompt)
    spec = DatasetSpec(path="spec.datasets.train[0]", name="rows", uri=f"file://{path}")
    return prepare(spec, TextPreprocessor(renderer=renderer, max_length=length), open_store(), folder)


def noted(source: PreparedSource) -> dict[str, list[str]]:
    found = details(SourceSubset.all_of(source), report_of(SourceSubset.all_of(source), None)).found
    return {each.kind: each.first for each in found}


BLANK = ["", " ", "\n\n", "\xa0\u3000", "\u200b\ufeff", "<|im_end|>", " <eos>\n", "<think></think>",
         "<think>\n\n</think>\n\n"]  # fmt: skip
GOOD = {
    "messages": chat("one", "first"),
    "prompt": {"prompt": "one", "completion": "first"},
    "question": {"question": "one", "answer": "first"},
    "text": {"text": "first"},
}


def answering(form: str, text: str) -> Row:
    last = list(GOOD[form])[-1]
    return chat("one", text) if form == "messages" else {**GOOD[form], last: text}


#: Every form with every template, except conversations without one.
FORMS = [
    (form, template)
    for form in GOOD
    for template in (CHATML, LLAMA3, QWEN3, None)
    if template or form != "messages"
]


@pytest.mark.parametrize("train_on_prompt", [False, True])
@pytest.mark.parametrize(("form", "template"), FORMS)
def test_a_row_with_a_blank_answer_is_dropped(
    form: str, template: str | None, train_on_prompt: bool, tmp_path: Path
) -> None:
    rows = [GOOD[form], *(answering(form, text) for text in BLANK)]
    source = prepared(tmp_path, rows, template=template, train_on_prompt=train_on_prompt)
    assert list(source.index.dropped()) == [BLANK_TEXT if form == "text" else BLANK_ANSWER]
    assert source.index.said_place.tolist() == [*range(2, len(rows) + 1)]


def test_a_dataset_of_blank_answers_has_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="2 rows: the answer is blank") as caught:
        prepared(tmp_path, [chat("one", ""), chat("two", " ")])
    assert caught.value.reason == "DatasetHasNothingToTrain"


@pytest.mark.parametrize("train_on_prompt", [False, True])
@pytest.mark.parametrize("blank", BLANK)
def test_a_blank_turn_beside_others_is_not_trained_and_noted(
    blank: str, train_on_prompt: bool, tmp_path: Path
) -> None:
    row = {"messages": [*chat("one", blank)["messages"], *chat("two", "second")["messages"]]}
    source = prepared(tmp_path, [row, chat("one", "first")], train_on_prompt=train_on_prompt)
    assert noted(source)[Note.BLANK_TURN] == ["row 1"]
    tokens, of = source.tokens.read(0), tokenizer(CHATML, bos=True)
    text = of.decode(tokens.ids[tokens.trained])
    assert ("one" in text) == train_on_prompt
    assert text.endswith("second<|im_end|>" + "\n" * train_on_prompt)
    own = of.decode([of.convert_tokens_to_ids("<|im_end|>")])
    assert text.count(own) == (3 if train_on_prompt else 1)


def test_reasoning_or_calls_alone_are_an_answer(tmp_path: Path) -> None:
    shows = CHATML.replace(
        "{{ m['content'] }}",
        "{{ m['reasoning_content'] or '' }}{{ m['tool_calls'] or '' }}{{ m['content'] or '' }}",
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    rows: list[Row] = [chat("one", "") for _ in range(2)]
    rows[0]["messages"][1]["reasoning_content"] = "hm"
    rows[1]["messages"][1]["tool_calls"] = [call]
    assert len(prepared(tmp_path, rows, template=shows)) == 2
    # A template that leaves the reasoning out writes a blank answer.
    source = prepared(tmp_path, [rows[0], chat("one", "first")])
    assert list(source.index.dropped()) == [BLANK_ANSWER]


def test_rows_cut_within_an_answer_after_one_or_where_nothing_is_trained_are_counted_apart(
    tmp_path: Path,
) -> None:
    two = {"messages": [*chat("one", "first")["messages"], *chat("two", "x" * 20)["messages"]]}
    asked = {"messages": [*chat("one", "first")["messages"], {"role": "user", "content": "x" * 60}]}
    rows = [
        chat("one", "x" * 100),
        two,
        asked,
        chat("one", "first"),
        chat("one", "\n" * 90 + "x"),
        chat("y" * 90, "x"),
    ]
    end = len(
        tokenizer(CHATML).apply_chat_template(chat("one", "first")["messages"], tokenize=True)["input_ids"]
    )
    source = prepared(tmp_path, rows, length=end + 10)
    found = noted(source)
    assert found.pop("dropped: nothing to train within maxSeqLength") == ["row 5", "row 6"]
    assert found == {
        Note.CUT_IN_ANSWER: ["row 1"], Note.CUT_AFTER_ANSWER: ["row 2"], Note.CUT_UNTRAINED: ["row 3"],
    }  # fmt: skip
    assert report_of(SourceSubset.all_of(source), None).truncated_rows == 3


def test_notes_count_in_the_part_that_has_the_row(tmp_path: Path) -> None:
    rows = [chat(f"q{n}", "<|im_end|> x" if n % 2 else "x") for n in range(20)]
    source = prepared(tmp_path, rows)
    kept, held = split_validation([SourceSubset.all_of(source)], SplitSpec(fraction=0.4, seed=1))
    counts = []
    for (piece,) in (kept, held):
        found = details(piece, report_of(piece, None)).found
        (control,) = [each for each in found if each.kind == Note.CONTROL_TRAINED]
        assert control.count == int((source.index.place[piece.chosen] % 2 == 0).sum())
        counts.append(control.count)
    assert sum(counts) == 10
    assert np.all(counts)


REPORT: dict[str, Any] = {
    "path": "p", "name": "rows", "uri": "u", "revision": "r", "rows": 100, "tokens": 1, "trained_tokens": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "count", "form", "level", "text"),
    [
        (Note.CUT_IN_ANSWER, 6, "Messages", "Problem", "which loses its end token. Raise"),
        (Note.CUT_IN_ANSWER, 5, "Messages", "Note", "Raise datasets.maxSeqLength, or remove"),
        (Note.CUT_IN_ANSWER, 6, "Preference", "Problem", "or lower maxPromptLength"),
        (Note.CUT_AFTER_ANSWER, 6, "Messages", "Problem", "later answers are lost. Raise"),
        (Note.CUT_PROMPT, 6, "Preference", "Problem", "Raise maxPromptLength"),
        (Note.CUT_SYSTEM, 1, "Preference", "Problem", "which loses the system message"),
        (Note.MERGED, 50, "Messages", "Note", "move it to the beginning of the answers"),
        (Note.CUT_UNTRAINED, 50, "Messages", None, ""),
    ],
)
def test_a_remark_says_what_is_lost_and_what_to_change(
    kind: str, count: int, form: str, level: str | None, text: str
) -> None:
    report = DatasetReport(**REPORT, format=form)
    found = [RowsFound(kind=kind, count=count, first=["row 1"])]
    made = list(remarks.of_rows([DatasetDetails(report=report, found=found)]))
    assert [each.level for each in made] == ([level] if level else [])
    assert all(
        each.text.startswith(f"rows: {count} of 100 rows (the first: row 1): {kind}") and text in each.text
        for each in made
    )
