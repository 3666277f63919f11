"""The data report: its counts, the rows that it names, its warnings, and that its page is safe to open."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune_contract import DataReport, StageRequest
from finetune_trainer.data import remarks, report
from finetune_trainer.errors import StageError
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import data_check
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer, with_template
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.test_template import CHATML, GEMMA, tokenizer

EVIL = "<script>alert(1)</script>"


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


TRAIN = [
    chat("one", "first"),
    chat("two", "second"),
    chat("one", "first"),  # row 3 equals row 1
    {"messages": [{"role": "user", "content": "nobody answers"}]},
    chat("x " * 200, "is never reached"),  # truncation removes its answer
    chat(EVIL, "long " * 60),  # is truncated
]
HELD = [chat("one", "first"), chat("two", "another"), chat("three", "third")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    write_model(root / "models/qwen3", TinyModelSpec())
    (root / "data").mkdir()
    for name, rows in (("train", TRAIN), ("eval", HELD)):
        (root / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def check(folder: Path, **changes: Any) -> DataReport:
    made: StageRequest = request(folder, "Preflight", use_cache="Off", **changes)
    return data_check.check(
        StageContext(
            request=made,
            store=open_store(),
            processes=Processes(count=1, index=0),
            stopper=ImmediateStop(),
            scratch=folder,
        )
    )


@pytest.fixture(scope="module")
def found(folder: Path) -> DataReport:
    return check(folder, hyperparameters={"steps": None, "epochs": 2.0, "global_batch_size": 2})


def rows(found: DataReport, kind: str) -> list[str]:
    (listed,) = [each for each in found.train[0].found if each.kind == kind]
    assert listed.count == len(listed.first)
    return listed.first


def test_rows_are_counted_and_those_that_are_not_whole_are_named(found: DataReport) -> None:
    counts = found.train[0].report
    assert (counts.rows, counts.dropped_rows, counts.truncated_rows, counts.duplicate_rows) == (4, 2, 1, 1)
    assert rows(found, "dropped: no turn to train") == ["row 4"]
    assert rows(found, "dropped: nothing to train within maxSeqLength") == ["row 5"]
    assert rows(found, Note.CUT_IN_ANSWER) == ["row 6"]
    assert rows(found, "equal to an earlier row") == ["row 3"]
    assert 0 < counts.trained_tokens < counts.tokens


def test_the_histogram_counts_every_row_before_anything_is_cut(found: DataReport) -> None:
    details = found.train[0]
    assert sum(bucket.rows for bucket in details.histogram) == len(TRAIN)
    assert details.histogram[-1].up_to >= details.longest > 64 >= details.p50
    assert [bucket.up_to for bucket in report.histogram(np.array([1, 2, 3, 9]))] == [1, 2, 4, 8, 16]
    assert [bucket.rows for bucket in report.histogram(np.array([1, 2, 3, 9]))] == [1, 1, 1, 0, 1]


def test_validation_rows_and_prompts_that_were_trained_are_named(found: DataReport) -> None:
    (leak,) = found.leaks
    assert (leak.same_rows.count, leak.same_rows.first) == (1, ["row 1"])
    assert (leak.same_prompts.count, leak.same_prompts.first) == (1, ["row 2"])
    assert any("faq: 1 rows are also in train-0" in remark.text for remark in found.remarks)


def test_epochs_become_steps(found: DataReport) -> None:
    assert (found.epoch_sequences, found.steps, found.epochs_shown) == (4, 4, 2.0)


def test_samples_show_what_is_trained(found: DataReport) -> None:
    first = found.samples[0]
    assert (first.dataset, first.row) == ("train-0", "row 1")
    trained = [text for wanted, text in first.pieces if wanted]
    assert trained == ["first<|im_end|>"]
    assert sum(row.dataset == "train-0" for row in found.samples) == 3
    assert "⟦first<|im_end|>⟧" in report.samples_jsonl(found)


def test_the_page_shows_everything_without_script_and_with_what_rows_say_escaped(found: DataReport) -> None:
    shown = found.model_copy(
        update={"samples": [found.samples[0].model_copy(update={"pieces": [(True, EVIL)], "row": EVIL})]}
    )
    html = report.render(shown)
    assert "<script" not in html
    assert "http" not in html.replace("https://", "http://").split("</style>")[0]
    assert "<mark>&lt;script&gt;alert(1)&lt;/script&gt;</mark>" in html
    for text in ("4 steps of 2 sequences", "row 6", "train-0", "faq", "Same rows"):
        assert text in html
    assert DataReport.model_validate_json(found.to_json()) == found


def test_a_sample_reads_only_the_first_rows_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_check, "SAMPLE_ROWS", 2)
    found = check(folder, data={"check": "Sample"})
    assert found.train[0].report.rows == 2
    assert {each.report.checked for each in (*found.train, *found.validation)} == {"Sample"}
    assert found.epoch_sequences is None
    assert "Only the first rows" in report.render(found)


def test_off_reads_no_row_but_settles_what_will_be_read(folder: Path) -> None:
    (folder / "data/broken.jsonl").write_text("no JSON at all")
    source = {"path": "spec.datasets.train[0]", "name": "a", "uri": f"file://{folder}/data/broken.jsonl"}
    found = check(folder, data={"check": "Off", "train": [source]})
    assert (found.train[0].report.checked, found.train[0].report.rows) == ("Off", 0)
    assert len(found.train[0].report.revision) == 40
    assert "No row was read" in report.render(found)


def test_rows_held_back_are_reported_as_a_validation_set(folder: Path) -> None:
    split = {"validation": [], "split_from_train": {"fraction": 0.3, "seed": 1}}
    found = check(folder, data=split)
    train, held = found.train[0].report, found.validation[0].report
    assert train.rows + held.rows == 4
    assert (train.dropped_rows, held.dropped_rows) == (2, 0)
    assert not found.leaks


# --- remarks ------------------------------------------------------------------------------------------------------


def told(of: Any) -> str:
    return " ".join(each.text for each in remarks.of_tokenizer(of, Renderer(of, train_on_prompt=False)))


def test_special_tokens_and_templates_that_need_care_are_reported() -> None:
    of = tokenizer(CHATML)
    assert "defines no padding token" in told(of)
    of.pad_token = "<eos>"
    assert "Padding and end of sequence are the same token" in told(of)
    of.pad_token = "<bos>"
    assert told(of) == ""
    assert "has no chat template" in told(tokenizer(None))
    silent = tokenizer(CHATML.partition("{% if add_generation_prompt %}")[0])
    assert "writes nothing before an assistant's turn" in told(silent)
    of.eos_token = None
    assert "defines no end-of-sequence token" in told(of)


def test_turns_that_never_end_are_reported(folder: Path) -> None:
    endless = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    found = check(folder, data={"chat_template": endless})
    assert any("No trained turn ends with a token" in remark.text for remark in found.remarks)
    assert not any("No trained turn" in remark.text for remark in check(folder).remarks)


def test_the_jobs_own_template_takes_the_place_of_the_tokenizers(folder: Path) -> None:
    swapped = CHATML.replace("<|im_start|>", "<|im_end|>")
    rendered = check(folder, data={"chat_template": swapped}).samples[0]
    assert "".join(text for _, text in rendered.pieces).startswith("<|im_end|>user")


def test_a_template_that_is_no_jinja_is_reported_with_its_line() -> None:
    with pytest.raises(StageError, match=r"spec\.datasets\.chatTemplate: .*line 2") as caught:
        with_template(tokenizer(None), "{{ bos_token }}\n{% for m in messages %}")
    assert caught.value.reason == "ChatTemplateInvalid"


def test_a_template_that_refuses_the_probe_is_taken() -> None:
    of = tokenizer(None)
    with_template(of, GEMMA + "{{ raise_exception('needs more') }}")
    assert of.chat_template.startswith("{{ bos_token }}")


TOOL = {"type": "function", "function": {"name": "count", "description": "", "parameters": {}}}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            chat("two", "<think>\nlong and careful thoughts\n</think>\n\nsecond"),
            "omits a part of the last answer",
        ),
        ({**chat("two", "second"), "tools": [TOOL]}, "renders no tools"),
    ],
    ids=["reasoning", "tools"],
)
def test_what_the_template_leaves_out_of_rows_is_a_problem_that_names_the_first(
    tmp_path: Path, row: dict[str, Any], told: str
) -> None:
    write_model(tmp_path / "models/qwen3", TinyModelSpec())
    (tmp_path / "data").mkdir()
    for name in ("train", "eval"):
        lines = [chat("one", "first"), row, row]
        (tmp_path / f"data/{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    answers = "m['content'].split('</think>')[-1]"
    made = check(tmp_path, data={"chat_template": CHATML.replace("m['content']", answers)})
    problems = [each.text for each in made.remarks if each.level == "Problem" and told in each.text]
    assert [text.partition(": the chat")[0] for text in problems] == [
        "train-0: 2 of 3 rows (the first: row 2)", "faq: 2 of 3 rows (the first: row 2)",
    ]  # fmt: skip


def test_what_nothing_reads_is_named_counted_and_escaped(folder: Path) -> None:
    turns = chat("one", "first")["messages"]
    named = [{**turn, "tool_call_id": "call_1"} for turn in chat("three", "third")["messages"]]
    lines = [
        {"messages": turns, "note": EVIL, "id": 1, "images": ["a.png"]},
        {"messages": turns, "id": 2, "images": [], "usefulness": 0.5},
        {"messages": named, "persona": "x" * 300},
    ]
    (folder / "data/more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    source = {"path": "spec.datasets.train[0]", "name": "more", "uri": f"file://{folder}/data/more.jsonl"}
    made = {
        "train": [{**source, "ignore": ["images", "audio"]}], "validation": [], "dedupe": "Exact",
    }  # fmt: skip
    found = check(folder, data=made, hyperparameters={"steps": 2})
    (details,) = found.train
    assert [(value.name, value.count, value.text, value.ignored) for value in details.unread] == [
        ("note", 1, True, False), ("id", 2, False, False), ("images", 1, True, True), ("usefulness", 1, False, False), ("messages[].tool_call_id", 2, True, False), ("persona", 1, True, False),
    ]  # fmt: skip
    texts = [remark.text for remark in found.remarks]
    assert any("more: nothing reads the texts of note, persona. If one" in text for text in texts)
    of_keys = "more: nothing reads the texts of messages[].tool_call_id, of which the chat template reads none. If one "
    assert f"{of_keys}belongs to its turn, write it into the content." in texts, (
        "keys of messages cannot be mapped"
    )
    assert any("more: nothing reads the values of usefulness, which" in text for text in texts)
    assert any("columns.ignore lists audio, which does not occur" in text for text in texts)
    repeated = "equal to an earlier row of the training sources"
    assert details.report.drop_reasons == {repeated: 1}
    assert rows(found, f"dropped: {repeated}") == ["row 2"]
    html = report.render(found)
    assert EVIL not in html
    assert "&lt;script&gt;" in html
    with pytest.raises(StageError, match=r'nothing reads "images" .*ignore: \[images\]'):
        check(folder, data={"train": [source], "validation": []}, hyperparameters={"steps": 2})
