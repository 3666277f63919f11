"""Datasets: what is read, what is refused, and the error messages."""

import gzip
import io
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.schema import DatasetSchema, open_rows
from finetune_trainer.data.shapes import Format
from finetune_trainer.data.sources import open_source
from finetune_trainer.errors import StageError
from finetune_trainer.readers import json_text
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.example import Conversation, PlainText, TextPair

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
GOOD = json.dumps({"messages": TURNS})


def source(uri: str, **fields: Any) -> DatasetSpec:
    return DatasetSpec(path="spec.datasets.train[0]", name="train-0", uri=uri, **fields)


def read(uri: str, scratch: Path, **fields: Any) -> tuple[Format, list[Any]]:
    schema, rows = open_rows(open_source(source(uri, **fields), open_store(), scratch), DatasetSchema)
    return schema.format, [schema.example(row) for row in rows]


def lines(*rows: object) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def messages(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_messages_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    rows = [{"messages": TURNS}] * 3
    (tmp_path / "a.jsonl").write_bytes(lines(*rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(*rows)))
    (tmp_path / "c.json").write_text(json.dumps(rows))
    (tmp_path / "d.json").write_bytes(lines(*rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "e.parquet")
    for name in ("a.jsonl", "b.jsonl.gz", "c.json", "d.json", "e.parquet"):
        found, examples = read(f"file://{tmp_path}/{name}", tmp_path)
        assert found is Format.MESSAGES, name
        assert [example.messages for example in examples] == [TURNS] * 3, name


def calling(name: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns an assistant's turn that calls a function, and the function's JSON schema."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    properties = {key: {"type": "string", "enum": [value, None]} for key, value in arguments.items()}
    schema = {"name": name, "parameters": {"type": "object", "properties": properties}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    return turn, {"type": "function", "function": schema}


WEATHER, MAIL = calling("get_weather", city="Lima"), calling("send_mail", to="a@b.c", text="hi")
NOW = calling("now")
OLD = [{"role": "assistant", "content": "x", "function_call": {"name": name, name: 1}} for name in "ab"]


@pytest.mark.parametrize(
    "rows",
    [
        [{"messages": [TURNS[0], turn], "tools": [tool]} for turn, tool in (WEATHER, MAIL, NOW)],
        [{"messages": [TURNS[0], WEATHER[0], MAIL[0]], "tools": [WEATHER[1], MAIL[1]]}, {"messages": TURNS}],
        [{"prompt": TURNS[:1], "completion": [turn], "tools": [tool]} for turn, tool in (WEATHER, MAIL, NOW)],
        [{"messages": [TURNS[0], OLD[0]]}, {"messages": [TURNS[0], OLD[1], {**TURNS[1], "weight": 0}]}],
    ],
    ids=["calls", "two in a row", "pairs", "keys of messages"],
)
def test_rows_of_a_columnar_file_have_no_keys_of_other_rows(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(*rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() != rows, "Arrow adds missing keys"
    shown = [
        [json.dumps([example.messages, example.tools, example.trained]) for example in examples]
        for _, examples in (read(f"file://{tmp_path}/a.{kind}", tmp_path) for kind in ("jsonl", "parquet"))
    ]
    assert shown[0] == shown[1]


def test_a_null_that_a_row_contains_stays(tmp_path: Path) -> None:
    turn, tool = calling("set_alarm", time="7:00", label=None)
    (tmp_path / "a.jsonl").write_bytes(lines({"messages": [TURNS[0], turn], "tools": [tool]}))
    call = {"function": {"name": "set_alarm", "arguments": '{"time": "7:00", "label": null}'}}
    row = {"messages": [TURNS[0], {**turn, "tool_calls": [call]}], "tools": json.dumps([tool])}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        _, [example] = read(f"file://{tmp_path}/{name}", tmp_path)
        arguments = example.messages[1]["tool_calls"][0]["function"]["arguments"]
        assert arguments == {"time": "7:00", "label": None}, name
        assert example.tools == [tool], name


def test_a_glob_reads_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines({"prompt": name, "completion": "x"}))
    _, examples = read(f"file://{tmp_path}/*.jsonl", tmp_path)
    assert [example.prompt for example in examples] == ["a", "b"]


def test_whole_pairs_of_escapes_are_characters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(rb'{"text": "\ud83d\ude00"}')
    _, (example,) = read(f"file://{tmp_path}/a.jsonl", tmp_path)
    assert example.text == "\U0001f600"


def test_byte_order_mark_and_blank_lines_are_no_rows_but_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(GOOD, "", "  ", GOOD))
    _, examples = read(f"file://{tmp_path}/a.jsonl", tmp_path)
    assert [example.place.row for example in examples] == [1, 4]


def test_roles_and_columns_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"chat": [{"role": "bot", "content": "x"}]}))
    _, examples = read(
        f"file://{tmp_path}/a.jsonl", tmp_path, columns={"messages": "chat"}, role_map={"bot": "assistant"}
    )
    assert examples[0].messages == [{"role": "assistant", "content": "x"}]
    assert examples[0].trained == [True]


def test_prompt_and_completion_may_be_texts_or_messages(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_bytes(lines({"question": "1+1?", "answer": "2"}))
    columns = {"prompt": "question", "completion": "answer"}
    found, (pair,) = read(f"file://{tmp_path}/text.jsonl", tmp_path, columns=columns)
    assert found is Format.PROMPT_COMPLETION
    assert isinstance(pair, TextPair)
    assert (pair.prompt, pair.completion) == ("1+1?", "2")

    history = [*TURNS, {"role": "user", "content": "again"}]
    row = {"prompt": history, "completion": [{"role": "assistant", "content": "hello"}]}
    (tmp_path / "chat.jsonl").write_bytes(lines(row))
    _, (chat,) = read(f"file://{tmp_path}/chat.jsonl", tmp_path)
    assert isinstance(chat, Conversation)
    assert chat.trained == [False, False, False, True]


def test_questions_and_texts_are_recognized_by_their_columns(tmp_path: Path) -> None:
    (tmp_path / "qa.jsonl").write_bytes(lines({"question": "1+1?", "answer": "2", "id": 7}))
    found, (pair,) = read(f"file://{tmp_path}/qa.jsonl", tmp_path)
    assert (found, pair.prompt, pair.completion) == (Format.QUESTION_ANSWER, "1+1?", "2")
    (tmp_path / "text.jsonl").write_bytes(lines({"body": "once"}))
    found, (text,) = read(f"file://{tmp_path}/text.jsonl", tmp_path, columns={"text": "body"})
    assert found is Format.TEXT
    assert isinstance(text, PlainText)
    assert text.text == "once"


def test_columns_that_are_named_decide_between_formats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"messages": TURNS, "gist": "short"}))
    assert read(f"file://{tmp_path}/a.jsonl", tmp_path)[0] is Format.MESSAGES
    assert (
        read(f"file://{tmp_path}/a.jsonl", tmp_path, columns={"text": "gist"}, ignore=["messages"])[0]
        is Format.TEXT
    )


def test_each_line_of_a_text_file_is_a_row_but_for_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n  \ntwo")
    found, examples = read(f"file://{tmp_path}/a.txt", tmp_path)
    assert found is Format.TEXT
    assert [(example.place.row, example.text) for example in examples] == [(1, "one"), (4, "two")]


def array_record(path: Path, records: Sequence[bytes]) -> str:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return f"file://{path}"


def tf_example(**columns: str) -> bytes:
    from maxtext.input_pipeline.protos.example_pb2 import Example

    example = Example()
    for name, text in columns.items():
        example.features.feature[name].bytes_list.value.append(text.encode())
    made: bytes = example.SerializeToString()
    return made


def test_array_records_hold_json_or_examples_of_texts(tmp_path: Path) -> None:
    rows = [f"question {i}" for i in range(1030)]  # more than one read returns
    for name, write in (
        ("json", lambda row: json.dumps({"question": row, "answer": "y"}).encode()),
        ("proto", lambda row: tf_example(question=row, answer="y")),
    ):
        uri = array_record(tmp_path / f"{name}.arrayrecord", [write(row) for row in rows])
        found, examples = read(uri, tmp_path)
        assert found is Format.QUESTION_ANSWER
        assert [(example.place.row, example.prompt) for example in examples] == list(enumerate(rows, start=1))
    uri = array_record(tmp_path / "messages.arrayrecord", [tf_example(messages=json.dumps(TURNS))])
    assert read(uri, tmp_path)[1][0].messages == TURNS


def test_a_record_of_something_else_is_reported_with_its_number(tmp_path: Path) -> None:
    uri = array_record(tmp_path / "a.arrayrecord", [GOOD.encode(), b"\xff\x01 no message"])
    with pytest.raises(
        StageError, match=r"row 2: the record is neither a JSON object nor a tf\.train\.Example"
    ):
        read(uri, tmp_path)


def test_only_the_first_max_examples_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(GOOD, GOOD, "broken"))
    assert len(read(f"file://{tmp_path}/a.jsonl", tmp_path, max_examples=2)[1]) == 2


def test_the_revision_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    revisions = []
    for folder, content in (("one", GOOD), ("two", GOOD), ("three", GOOD + "\n" + GOOD)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(content)
        revisions.append(
            open_source(source(f"file://{tmp_path}/{folder}/a.jsonl"), open_store(), tmp_path).revision
        )
    assert revisions[0] == revisions[1] != revisions[2]


def test_rows_are_those_of_the_revision_or_none(root: str, tmp_path: Path) -> None:
    """In both kinds of storage; the files of a bucket are fetched when the first row is read."""
    store = open_store()
    store.write(f"{root}/a.jsonl", lines({"text": "version A"}))
    store.write(f"{root}/b.jsonl", lines({"text": "unchanged"}))
    found = open_source(source(f"{root}/*.jsonl"), store, tmp_path / "scratch")
    store.write(f"{root}/a.jsonl", lines({"text": "version B"}))
    with pytest.raises(StageError, match=r"a\.jsonl was replaced or removed") as caught:
        list(found.rows())
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert caught.value.where == "spec.datasets.train[0].uri"


def test_files_that_are_no_longer_what_preflight_found_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(GOOD)
    uri = f"file://{file}"
    found = open_source(source(uri), open_store(), tmp_path).revision
    assert open_source(source(uri, digest=found), open_store(), tmp_path).revision == found
    file.write_text(GOOD.replace("hello", "other"))
    with pytest.raises(StageError, match="has changed since preflight checked it") as error:
        open_source(source(uri, digest=found), open_store(), tmp_path)
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert error.value.where == "spec.datasets.train[0].uri"


AT = "spec.datasets.train[0]"
BROKEN: list[tuple[str, bytes, Mapping[str, Any], str, str]] = [
    ("a role that is not ours", lines(*[GOOD] * 40, messages(("user", "x"), ("oracle", "y"))), {},
     "DatasetSchemaMismatch",
     f'{AT}, row 41: role "oracle" of message 2 is not one of system, user, assistant, tool. Map it: roleMap: {{oracle: …}},'),
    ("no role", lines({"messages": [{"content": "x"}]}), {}, "DatasetSchemaMismatch",
     f"{AT}, row 1: message 1 has no role (found nothing). Give it one of"),
    ("a role that is a number", lines({"messages": [{"role": 1, "content": "x"}]}), {}, "DatasetSchemaMismatch", "found a number"),
    ("broken JSON", lines(*[GOOD] * 6, '{"messages": ['), {}, "DatasetNotJson", f"{AT}, row 7: the line is not JSON: it ends unexpectedly"),
    ("lone surrogate", lines(GOOD, r'{"text": "an \ud83d emoji"}'), {}, "DatasetNotJson",
     rf"{AT}, row 2: the line is not JSON: \ud83d is a lone surrogate"),
    ("endless nesting", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, "DatasetNotJson",
     "row 1: the line is not JSON: it is nested too deeply"),
    ("a number without end", b'{"text": ' + b"9" * 5_000 + b"}", {}, "DatasetNotJson", "row 1: the line is not JSON: Exceeds"),
    ("text that is no JSON", b"hello", {}, "DatasetNotJson", "found hello"),
    ("an empty file", b"", {}, "DatasetEmpty", f"{AT}: the dataset is empty"),
    ("blank lines only", b"\n\n  \n", {}, "DatasetEmpty", "the dataset is empty"),
    ("a list as row", lines([1, 2]), {}, "DatasetSchemaMismatch", "row 1: the row is not an object (found int"),
    ("a text as row", lines('"x"'), {}, "DatasetSchemaMismatch", "the row is not an object (found str"),
    ("bytes that are no UTF-8", b'{"messages": "\xff"}', {}, "DatasetSchemaMismatch", "the row is not UTF-8 (found byte 0xff)"),
    ("no column we know", lines({"title": "x", "id": 1}), {}, "DatasetSchemaMismatch",
     "(found columns title, id, expected messages; prompt and completion; chosen and rejected; question and answer; text)"),
    ("text under another name", lines({"Body": "x"}), {}, "DatasetSchemaMismatch", "Name them: columns: {text: Body}."),
    ("an answer that is a list", lines({"question": "x", "answer": ["y"]}), {}, "DatasetSchemaMismatch",
     f'{AT}, row 1: "answer" must be text (found a list)'),
    ("a question that is gone", lines({"question": "x", "answer": "y"}, {"q": "x", "answer": "y"}), {},
     "DatasetSchemaMismatch", f'{AT}, row 2: there is no column "question"'),
    ("text that is null", lines({"text": "x"}, {"text": None}), {}, "DatasetSchemaMismatch", "row 2: \"text\" must be text (found null)"),
    ("preferences for SFT", lines({"prompt": "x", "chosen": "y", "rejected": "z"}), {}, "DatasetSchemaMismatch",
     "for preference methods, not for SFT. To train on the better answers: columns: {prompt: prompt, completion: chosen, ignore: [rejected]}."),
    ("a column that the format does not have", lines(GOOD), {"format": "Messages", "columns": {"text": "x"}},
     "UnknownColumn", f"{AT}.columns: format Messages has no such column (found text, expected one of messages, system, tools, label)"),
    ("question and answer", lines({"Question": "x", "Answer": "y"}), {}, "DatasetSchemaMismatch",
     "Name them: columns: {question: Question, answer: Answer}."),
    ("messages that are text", lines({"messages": "hi"}), {}, "DatasetSchemaMismatch", "must be a list of messages that is not empty (found text)"),
    ("messages that are null", lines(GOOD, {"messages": None}), {}, "DatasetSchemaMismatch", "row 2: "),
    ("no messages", lines({"messages": []}), {}, "DatasetSchemaMismatch", "found an empty list"),
    ("a message that is text", lines({"messages": ["hi"]}), {}, "DatasetSchemaMismatch", "message 1 is not an object (found text)"),
    ("a picture in the content", lines(messages(("user", [{"type": "image_url", "image_url": {"url": "x"}}]))), {}, "ValueNotRead",
     "message 1 has a content part of type image_url, and only text is trained (found keys type, image_url). Remove the row, or leave such"),
    ("content that is null", lines(messages(("user", "x"), ("assistant", None))), {}, "DatasetSchemaMismatch",
     "the content of message 2 must be text (found null). Write the answer, or remove the row."),
    ("a question that is null", lines(messages(("user", None))), {}, "DatasetSchemaMismatch", "Write the text, or remove"),
    ("a completion that is null", lines({"prompt": "x", "completion": None}), {}, "DatasetSchemaMismatch",
     "(found text and null). Write the completion, or remove the row."),
    ("a line that is cut", lines(GOOD, '{"messages": ['), {}, "DatasetNotJson",
     'row 2: the line is not JSON: it ends unexpectedly after column 14 (found {"messages": [, expected one JSON object per line)'),
    ("a line that is cut within a text", lines(GOOD, '{"text": "hel', GOOD), {}, "DatasetNotJson",
     "row 2: the line is not JSON: it ends unexpectedly after column 13"),
    ("a value that is left out", lines('{"text": }'), {}, "DatasetNotJson", "Expecting value at column 10"),
    ("no content", lines({"messages": [{"role": "user"}]}), {}, "DatasetSchemaMismatch", "found no content"),
    ("a column that is gone in row 2", lines(GOOD, {"other": 1}), {}, "DatasetSchemaMismatch",
     f'{AT}, row 2: there is no column "messages" (found columns other, expected rows of the shape Messages;'),
    ("a prompt that is a number", lines({"prompt": 1, "completion": "x"}), {}, "DatasetSchemaMismatch", "found a number and text"),
    ("the wrong format asked for", lines(GOOD), {"format": "PromptCompletion"}, "DatasetSchemaMismatch", 'there is no column "prompt"'),
    ("columns the wrong way round", lines(GOOD), {"columns": {"chat": "messages"}}, "UnknownColumn",
     f"{AT}.columns: columns maps standard names to the dataset's columns (found chat, expected one of messages, prompt, completion, "),
    ("columns the wrong way round, by name", lines(GOOD), {"columns": {"chat": "messages"}}, "UnknownColumn",
     "Swap them: the standard name first"),
    ("a mapped column that is not there", lines({"instruction": "x", "output": "y"}),
     {"columns": {"prompt": "instr", "completion": "output"}}, "UnknownColumn",
     'columns.prompt names "instr", which row 1 does not have (found columns instruction, output). Write columns: {prompt: '),
    ("the same of a named format", lines({"Q": "x", "A": "y"}),
     {"format": "QuestionAnswer", "columns": {"question": "title", "answer": "A"}}, "UnknownColumn",
     'columns.question names "title", which row 1 does not have'),
    ("roleMap the wrong way round", lines(GOOD), {"role_map": {"assistant": "bot"}}, "UnknownRole", "found bot"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "fields", "reason", "told"), BROKEN, ids=[row[0] for row in BROKEN]
)
def test_bad_rows_are_refused_with_row_finding_and_fix(
    name: str, content: bytes, fields: Mapping[str, Any], reason: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(StageError) as caught:
        read(f"file://{tmp_path}/a.jsonl", tmp_path, **fields)
    assert caught.value.reason == reason
    assert told in str(caught.value)
    assert caught.value.fix
    if reason.startswith("Dataset"):
        assert caught.value.code is ExitCode.BAD_DATA
        assert f"file://{tmp_path}/a.jsonl" in str(caught.value)


FILES = [
    ("a.xlsx", b"x", "file:///{}/a.xlsx", "UnsupportedFileType", ExitCode.BAD_DATA),
    ("a.jsonl.gz", b"not gzip", "file:///{}/a.jsonl.gz", "DatasetNotJson", ExitCode.BAD_DATA),
    ("b.jsonl.gz", gzip.compress(GOOD.encode() * 500)[:-20], "file:///{}/b.jsonl.gz", "UnreadableFile", ExitCode.BAD_DATA),
    ("a.parquet", b"not parquet", "file:///{}/a.parquet", "UnreadableFile", ExitCode.BAD_DATA),
    ("a.arrayrecord", b"no array record", "file:///{}/a.arrayrecord", "UnreadableFile", ExitCode.BAD_DATA),
    ("a.json", rb'[{"text": "\ud83d"}]', "file:///{}/a.json", "DatasetNotJson", ExitCode.BAD_DATA),
    ("a.json", b'[{"text": "a"}, {"te', "file:///{}/a.json", "DatasetNotJson", ExitCode.BAD_DATA),
    ("there.jsonl", b"", "file:///{}/elsewhere.jsonl", "DatasetMissing", ExitCode.INPUT_MISSING),
    ("there.jsonl", b"", "file:///{}/else*.jsonl", "DatasetMissing", ExitCode.INPUT_MISSING),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "uri", "reason", "code"), FILES)
def test_files_that_cannot_be_read_are_named(
    name: str, content: bytes, uri: str, reason: str, code: ExitCode, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    address = uri.format(str(tmp_path).lstrip("/"))
    with pytest.raises(StageError) as caught:
        read(address, tmp_path)
    assert (caught.value.reason, caught.value.code) == (reason, code)
    assert address in str(caught.value)


def test_of_several_files_the_error_names_the_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl").write_bytes(lines(GOOD, messages(("oracle", "x"))))
    with pytest.raises(StageError, match=r"spec\.datasets\.train\[0\], b\.jsonl row 2: role"):
        read(f"file://{tmp_path}/*.jsonl", tmp_path)


ARRAYS = [
    (b"[]", []), (b" [ ] \n", []), (b"[1,23 , 456]", [1, 23, 456]),
    ('[{"a": "é😀"},\n{"b": [1, {"c": "]"}]}]'.encode(), [{"a": "é😀"}, {"b": [1, {"c": "]"}]}]),
    (rb'[{"a": "\ud83d\ude00"}, "\\", null]', [{"a": "😀"}, "\\", None]),
    (b'[{"a": 1} {"b": 2}]', "no comma after element 1"), (b'[{"a": 1}', "it ends unexpectedly"), (b"[1] 2", "content after the array"),
    (b"[1,]", "Expecting value"), (b'[{"a": "x]', "Unterminated string"), (b'["\xff"]', "can't decode"),
    (rb'["\ud83d"]', "lone surrogate"), (b"[" * 100_000, "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 3, 2**20])
@pytest.mark.parametrize(("content", "found"), ARRAYS, ids=[repr(content)[:30] for content, _ in ARRAYS])
def test_an_array_is_read_element_by_element(
    content: bytes, found: list[Any] | str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "CHUNK", chunk)
    if isinstance(found, list):
        assert list(json_text.JsonStream(io.BytesIO(content)).values()) == found
        return
    with pytest.raises(ValueError, match=found):
        list(json_text.JsonStream(io.BytesIO(content)).values())


def test_an_array_is_the_same_wherever_its_file_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{"a": [1.5e10, -2e-3, True, None]}, 1.25e-7, '\\"é😀', [[], {}], {"b" * 50: {" ": "\t"}}]
    for text in (json.dumps(values), json.dumps(values, ensure_ascii=False, indent=40)):
        content = text.encode()
        for chunk in range(1, len(content) + 1):
            monkeypatch.setattr(json_text, "CHUNK", chunk)
            assert list(json_text.JsonStream(io.BytesIO(content)).values()) == json.loads(content)


def test_a_fault_in_an_array_ends_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "CHUNK", 100)
    stream = io.BytesIO(b'[{"a": x}' + b" " * 10_000)
    with pytest.raises(ValueError, match="Expecting value"):
        list(json_text.JsonStream(stream).values())
    assert stream.tell() <= 200


def test_of_an_array_few_rows_are_in_memory(tmp_path: Path) -> None:
    """Keeping all rows took eleven times the file's size."""
    row = json.dumps({"text": "x" * 10_000 + "😀"})
    (tmp_path / "a.json").write_text(f"[{','.join([row] * 1000)}]")
    tracemalloc.start()
    opened = open_source(source(f"file://{tmp_path}/a.json"), open_store(), tmp_path)
    assert sum(1 for _ in opened.rows()) == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20
