"""Data files of all kinds: compression, encodings, layouts of JSON, CSV, text and Parquet, and what is refused."""

import codecs
import datetime as dt
import gzip
import io
import json
import re
import tracemalloc
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, parquet

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.sources import open_source
from finetune_trainer.errors import StageError
from finetune_trainer.readers import suffix_of
from finetune_trainer.readers.row_location import Row
from finetune_trainer.storage import open_store

AT = "spec.datasets.train[0]"
ROWS = [{"text": "é\u2028 one"}, {"text": "two\r\n"}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()


def zstd(data: bytes) -> bytes:
    compressed: bytes = pyarrow.Codec("zstd").compress(data, asbytes=True)
    return compressed


def table(columns: Mapping[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out, **options)
    return out.getvalue()


def rows_of(folder: Path, files: Mapping[str, bytes], **fields: Any) -> Iterator[Row]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    names = next(iter(files)) if len(files) == 1 else f"*{Path(next(iter(files))).suffix}"
    spec = DatasetSpec(path=AT, name="train-0", uri=f"file://{folder}/{names}", **fields)
    return open_source(spec, open_store(), folder).rows()


def read(folder: Path, name: str, content: bytes, **fields: Any) -> list[Any]:
    return [row.value for row in rows_of(folder, {name: content}, **fields)]


def refusal(folder: Path, name: str, content: bytes, **fields: Any) -> StageError:
    with pytest.raises(StageError) as caught:
        read(folder, name, content, **fields)
    error = caught.value
    assert f"{folder}/{name}" in str(error), "every refusal names the file"
    assert error.fix
    return error


# --- names, compression, encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("A.JSONL", ".jsonl"), ("a.ndjson", ".ndjson"), ("a.Json.GZ", ".json"), ("a.csv.zst", ".csv"), ("a.txt.zstd", ".txt"),
     ("a.tsv", ".tsv"), ("a.PARQUET", ".parquet"), ("a.arrayrecord", ".arrayrecord"), ("a.parquet.gz", ""), ("a.gz", ""),
     ("a.xlsx", ""), ("jsonl", "")],
)  # fmt: skip
def test_suffixes_in_any_case_name_the_kind(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.NDJSON", "a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize(
    "content",
    [LINES, gzip.compress(LINES), zstd(LINES), gzip.compress(LINES[:9]) + gzip.compress(LINES[9:]), zstd(LINES[:9]) + zstd(LINES[9:]),
     codecs.BOM_UTF8 + LINES, LINES.decode().encode("utf-16"), codecs.BOM_UTF16_BE + LINES.decode().encode("utf-16-be"),
     LINES.decode().encode("utf-32"), gzip.compress(LINES.decode().encode("utf-16")), LINES.replace(b"\n", b"\r\n"),
     LINES.replace(b"\n", b"\r"), LINES.replace(b"\n", b"\n\n \n")],
    ids=["plain", "gzip", "zstd", "gzip members", "zstd frames", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gzip of utf-16",
         "crlf", "cr", "blank lines"],
)  # fmt: skip
def test_compression_and_encoding_are_found_in_the_content(tmp_path: Path, name: str, content: bytes) -> None:
    assert read(tmp_path, name, content) == ROWS


@pytest.mark.parametrize(
    ("content", "text"),
    [(gzip.compress(LINES)[:-9], "not complete gzip data"), (gzip.compress(LINES * 9)[:-40] + b"x" * 40, "not complete gzip data"),
     (gzip.compress(LINES) + b"garbage", "not complete gzip data"), (zstd(LINES)[:-3], "not complete Zstandard data"),
     (zstd(LINES) + b"garbage", "not complete Zstandard data"), (gzip.compress(gzip.compress(LINES)), "compressed, perhaps twice"),
     (codecs.BOM_UTF16_LE + b"\x00\xd8{\x00", "not the UTF-16 that its byte order mark says"),
     (LINES.decode().encode("utf-16-le"), "NUL bytes, as does UTF-16 without a byte order mark")],
    ids=["cut gzip", "damaged gzip", "more than gzip", "cut zstd", "more than zstd", "gzip twice", "no utf-16", "no mark"],
)  # fmt: skip
def test_damaged_content_is_refused_by_name(tmp_path: Path, content: bytes, text: str) -> None:
    error = refusal(tmp_path, "a.jsonl", content)
    assert (error.code, error.reason) == (ExitCode.BAD_DATA, "UnreadableFile")
    assert text in str(error)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
@pytest.mark.parametrize(
    "row", [b'{"text": "' + b"x" * 2**20 + b'"}\n', b'{"text": "x"}\n' * 2**13, b" " * 2**20]
)
def test_a_file_that_expands_enormously_is_refused_in_little_memory(
    tmp_path: Path, compress: Any, row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune_trainer.readers.opening.ANY_FILE", 2**20)
    content = compress(row * 20)
    tracemalloc.start()
    with pytest.raises(StageError, match=r"bytes that become more than|the row is too large") as caught:
        for _ in rows_of(tmp_path, {"a.jsonl": content}):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code is ExitCode.BAD_DATA
    assert peak < 40 * 2**20


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b'{"text": "' + b"x" * 5000), ("a.json", b'{"data": [{"text": "' + b"x" * 5000 + b'"}]}'), ("a.txt", b"x" * 5000),
     ("a.csv", b'text\n"' + b"x\n" * 2500), ("a.csv", b"text\n" + b"x" * 5000), ("a.parquet", table({"text": ["a", "x" * 5000]}))],
)  # fmt: skip
def test_rows_have_a_largest_size(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("json_rows", "json_text", "text", "delimited", "opening", "parquet"):
        monkeypatch.setattr(f"finetune_trainer.readers.{module}.MAX_ROW", 4000)
    monkeypatch.setattr("finetune_trainer.readers.json_text.CHUNK", 1000)
    assert "large" in str(refusal(tmp_path, name, content))


FOREIGN = [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", "a Git LFS pointer"),
    (b"PK\x03\x04\x14\x00", "a zip archive or an Excel workbook"), (b"SQLite format 3\x00", "an SQLite database"),
    (b"%PDF-1.7", "a PDF document"), (b"BZh91AY&SY", "compressed in a way"), (b"ORC\x0c\x0a", "ORC"), (b"Obj\x01\x04", "Avro"),
    (b"a.jsonl" + b"\0" * 250 + b"ustar\0", "a tar archive"), (b"\x80\x04\x95\x00", "a Python pickle"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.parquet", "a.arrayrecord", "a.jsonl.gz"])
@pytest.mark.parametrize(("content", "kind"), FOREIGN, ids=[kind for _, kind in FOREIGN])
def test_files_of_other_kinds_are_named(tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    assert f"the file is {kind}" in str(refusal(tmp_path, name, content))


def test_tables_of_other_kinds_are_named(tmp_path: Path) -> None:
    feather.write_feather(pyarrow.table({"text": ["a"]}), tmp_path / "a.feather")
    content = (tmp_path / "a.feather").read_bytes()
    assert "Arrow IPC or Feather" in str(refusal(tmp_path, "a.parquet", content))
    assert "the file is Parquet" in str(refusal(tmp_path, "a.jsonl", table({"text": ["a"]})))
    assert "HTML or XML" in str(refusal(tmp_path, "a.jsonl", b"<!DOCTYPE html><html>"))
    assert read(tmp_path, "a.txt", b"<html>\n<p>") == [{"text": "<html>"}, {"text": "<p>"}]


def test_a_tf_record_is_named(tmp_path: Path) -> None:
    import google_crc32c

    length = (20).to_bytes(8, "little")
    checksum = google_crc32c.value(length)
    masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    content = length + masked.to_bytes(4, "little") + b"x" * 24
    assert "a TFRecord file" in str(refusal(tmp_path, "a.arrayrecord", content))


# --- JSON -------------------------------------------------------------------------------------------------------------

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
LAYOUTS: list[tuple[str, list[Any]]] = [
    (json.dumps(ROWS), ROWS), (json.dumps(ROWS, indent=2), ROWS), ("\n".join(json.dumps(row, indent=2) for row in ROWS), ROWS),
    ("".join(json.dumps(row) for row in ROWS), ROWS), (json.dumps({"data": ROWS}), ROWS), (json.dumps({"train": ROWS}, indent=1), ROWS),
    (json.dumps({"version": "1.1", "data": ROWS, "license": {"name": "MIT"}}), ROWS), (json.dumps({"my_rows": ROWS}), ROWS),
    (json.dumps(ROWS[0]), ROWS[:1]), (json.dumps({"messages": TURNS}), [{"messages": TURNS}]),
    (json.dumps({"messages": TURNS}, indent=2), [{"messages": TURNS}]), (json.dumps({"text": "x", "data": [{"a": 1}]}), [{"text": "x", "data": [{"a": 1}]}]),
    ("\n".join(json.dumps({"data": ROWS}) for _ in range(2)), [{"data": ROWS}] * 2), ("[]", []), ("", []), (" \n ", []),
    (json.dumps({"messages": TURNS, "tools": [{"name": "f"}]}), [{"messages": TURNS, "tools": [{"name": "f"}]}]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson.gz"])
@pytest.mark.parametrize(("text", "rows"), LAYOUTS, ids=[text[:30] for text, _ in LAYOUTS])
def test_json_is_read_in_every_layout(tmp_path: Path, name: str, text: str, rows: list[Any]) -> None:
    assert read(tmp_path, name, text.encode()) == rows


def test_of_a_wrapped_array_few_rows_are_in_memory(tmp_path: Path) -> None:
    row = json.dumps({"text": "x" * 10_000})
    (tmp_path / "a.json").write_text(f'{{"version": 1, "data": [{",".join([row] * 3000)}]}}')
    spec = DatasetSpec(path=AT, name="train-0", uri=f"file://{tmp_path}/a.json")
    tracemalloc.start()
    assert sum(1 for _ in open_source(spec, open_store(), tmp_path).rows()) == 3000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize(
    ("content", "text"),
    [('{"train": [{"a": 1}], "test": [{"a": 2}]}', "several lists of rows"),
     ('{"prompt": ["a", "b"], "completion": ["c", "d"]}', "one object of columns instead of rows"),
     ('{"prompt": {"0": "a", "1": "b"}, "completion": {"0": "c", "1": "d"}}', "one object of columns instead of rows"),
     ('{\n "text": "a"\n}\n{\n "text" "b"\n}', f"{AT}, row 2: the file is not JSON: line 5: Expecting ':' delimiter"),
     ('[{"text": "a"},\n{"text": tru}]', f"{AT}, row 2: the file is not JSON: line 2: Expecting value"),
     ('{"data": [{"a": 1}', "it ends unexpectedly"), ('{"data": [{"a": 1}], "data": []}', 'the key "data" occurs twice'),
     ('{"text": "a", "text": "b"}', 'the key "text" occurs twice in one object'),
     ('{"text": "a"}\n{"messages": [{"role": "user", "role": "x"}]}', 'row 2: the line is not JSON: the key "role" occurs twice'),
     ('{"text": "a"}\n{"text": "\x1b[31m" }', r"found {"), ('{"text": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply, more than 100 levels"),
     ('[{"text": "a"}]\n[{"text": "b"}]', "content after the array"), ('{"data": [1, 2, 3]}', "one object of columns")],
)  # fmt: skip
def test_json_of_another_form_is_refused(tmp_path: Path, content: str, text: str) -> None:
    error = refusal(tmp_path, "a.json", content.encode())
    assert text in str(error)
    assert error.code is ExitCode.BAD_DATA
    assert str(error).isprintable()


# --- CSV and text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "fields", "rows"),
    [("a.csv", "id,text\n007,NA\n1.10,\n", {}, [{"id": "007", "text": "NA"}, {"id": "1.10", "text": ""}]),
     ("a.csv", 'a,b\r\n"x, ""y""","1\r\n2"\r\n\r\nnull,true\r\n', {}, [{"a": 'x, "y"', "b": "1\r\n2"}, {"a": "null", "b": "true"}]),
     ("a.tsv", 'a\tb\nx,y\t"1\n2"\n', {}, [{"a": "x,y", "b": "1\n2"}]), ("a.csv", "a;b\n1,5;2\n", {"separator": ";"}, [{"a": "1,5", "b": "2"}]),
     ("a.csv", "a|b\n1|2", {"separator": "|"}, [{"a": "1", "b": "2"}]), ("a.csv", "text\rone\rtwo", {}, [{"text": "one"}, {"text": "two"}]),
     ("a.csv", "text\n" + "x" * 200_000, {}, [{"text": "x" * 200_000}]), ("a.csv", "", {}, []), ("a.csv", "text\n", {}, []),
     ("a.csv", "text\n\u2028a\u0085b\n", {}, [{"text": "\u2028a\u0085b"}]),
     ("a.csv", 'messages\n"[{""role"": ""user""}]"\n', {}, [{"messages": '[{"role": "user"}]'}]),
     ("a.txt", "one\r\ntwo\rthree\n\nfour \u2028x", {}, [{"text": text} for text in ("one", "two", "three", "four \u2028x")]),
     ("a.txt", "one\nmore\n\ntwo\r\n\r\n\n\nthree\n", {"separator": "\n\n"}, [{"text": text} for text in ("one\nmore", "two", "three")]),
     ("a.txt", "a<|end|>\nb\n<|end|>", {"separator": "<|end|>"}, [{"text": "a"}, {"text": "b"}]),
     ("a.txt", "a\r\n---\r\nb", {"separator": "\r\n---\r\n"}, [{"text": "a"}, {"text": "b"}])],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_and_texts_are_read_as_they_are_written(
    tmp_path: Path, name: str, content: str, fields: Mapping[str, Any], rows: list[Any], encoding: str
) -> None:
    assert read(tmp_path, name, content.encode(encoding), **fields) == rows


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_a_separator_is_found_wherever_the_text_is_cut(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune_trainer.readers.opening.CHUNK", chunk)
    content = "é--\r\n--one--two\r\n--\r\n---three".encode()
    rows = rows_of(tmp_path, {"a.txt": content}, separator="\n--")
    assert [(row.place.row, row.value["text"]) for row in rows] == [
        (1, "é--"),
        (2, "one--two"),
        (4, "-three"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "fields", "text"),
    [("a.csv", "a,b\n1,2\n\n1,2,3\n", {}, f"{AT}, row 2: line 4: the row does not have as many fields as the header (found 3"),
     ("a.csv", "a,b\n1\n", {}, "expected 2: a, b"), ("a.csv", 'a,b\n"1,2\n3,4', {}, "row 1: line 2: the row is not CSV (found a quote that is not"),
     ("a.csv", 'a,b\n"1"x,2', {}, "row 1: line 2: the row is not CSV"), ("a.csv", "a;b\n1;2\n", {}, f'Set {AT}.separator: ";"'),
     ("a.csv", "a\tb\n1\t2\n", {}, r'separator: "\t"'), ("a.tsv", "a,b\n1,2\n", {}, 'separator: ","'),
     ("a.csv", 'a,"b\n', {}, f"{AT}, the header: line 1: the row is not CSV"),
     ("a.csv", "a,a\n1,2\n", {}, 'column 1 is "a"'), ("a.csv", ",a\n1,2\n", {}, "to_csv(path, index=False)"), ("a.csv", "a,b\n\0,1", {}, "NUL"),
     ("a.txt", "one\ntwo\0\n", {}, "NUL"), ("a.parquet", table({"a": ["b"]}), {"separator": ";"}, "files of this kind have no separator")],
)  # fmt: skip
def test_tables_that_are_not_as_their_header_says_are_refused(
    tmp_path: Path, name: str, content: str | bytes, fields: Mapping[str, Any], text: str
) -> None:
    error = refusal(tmp_path, name, content if isinstance(content, bytes) else content.encode(), **fields)
    assert text in str(error)


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.tsv"])
def test_bytes_that_are_not_utf_8_are_refused_with_what_they_are(tmp_path: Path, name: str) -> None:
    error = refusal(tmp_path, name, b"text\na\nb\xff\n")
    assert "0xff" in str(error)
    assert f"row {3 if name == 'a.txt' else 2}" in str(error)
    error = refusal(tmp_path, "b.txt", b"text--a\xff", separator="--")
    assert "byte 0xff near byte 7" in str(error)


@pytest.mark.parametrize(
    ("name", "separator", "text"),
    [("a.jsonl", ";", "files of this kind have no separator"), ("a.txt", "<|end|>", "it does not occur in the text"),
     ("a.csv", ";;", "one character"), ("a.csv", '"', "one character"), ("a.csv", "|", "it does not occur in the header"), ("a.txt", "", "it does not occur")],
)  # fmt: skip
def test_a_separator_that_does_not_suit_is_refused(
    tmp_path: Path, name: str, separator: str, text: str
) -> None:
    error = refusal(tmp_path, name, b'{"text": "a"}\n', separator=separator)
    assert (error.code, error.reason, error.where) == (
        ExitCode.BAD_REQUEST,
        "UnknownSeparator",
        f"{AT}.separator",
    )
    assert text in str(error)


def test_one_of_several_texts_needs_the_separator(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"a.txt": b"one\nmore", "b.txt": b"two\n---\nthree"}, separator="\n---\n")
    assert [row.value["text"] for row in rows] == ["one\nmore", "two", "three"]


# --- Parquet ----------------------------------------------------------------------------------------------------------

DAY = dt.datetime(2026, 11, 1, 12, 30, tzinfo=dt.UTC)
VALUES: list[tuple[Any, Any, Any]] = [
    (pyarrow.timestamp("us"), DAY.replace(tzinfo=None), "2026-11-01T12:30:00"), (pyarrow.timestamp("us", "UTC"), DAY, "2026-11-01T12:30:00+00:00"),
    (pyarrow.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"), (pyarrow.date32(), DAY.date(), "2026-11-01"),
    (pyarrow.time64("us"), dt.time(1, 2, 3), "01:02:03"), (pyarrow.duration("us"), dt.timedelta(hours=1, microseconds=5), "PT3600.000005S"),
    (pyarrow.decimal128(20, 10), Decimal("1.10"), "1.1000000000"), (pyarrow.decimal256(60, 0), Decimal(10**40), "1" + "0" * 40),
    (pyarrow.binary(), "é".encode(), "é"), (pyarrow.binary(2), b"ab", "ab"), (pyarrow.large_string(), "x", "x"), (pyarrow.string_view(), "x", "x"),
    (pyarrow.float16(), 1.5, 1.5), (pyarrow.uint64(), 2**64 - 1, 2**64 - 1), (pyarrow.null(), None, None), (pyarrow.bool_(), True, True),
    (pyarrow.list_(pyarrow.int8(), 2), [1, 2], [1, 2]), (pyarrow.large_list(pyarrow.date32()), [DAY.date(), None], ["2026-11-01", None]),
    (pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "x", "x"), (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
    (pyarrow.map_(pyarrow.int8(), pyarrow.date32()), [(1, DAY.date())], {"1": "2026-11-01"}),
    (pyarrow.struct({"a": pyarrow.date32(), "b": pyarrow.string()}), {"a": DAY.date(), "b": None}, {"a": "2026-11-01"}),
    (pyarrow.struct({"list": pyarrow.list_(pyarrow.struct({"element": pyarrow.struct({"role": pyarrow.string()})}))}),
     {"list": [{"element": {"role": "user"}}]}, [{"role": "user"}]),
    (pyarrow.struct({"list": pyarrow.list_(pyarrow.struct({"item": pyarrow.string()}))}), {"list": [{"item": "a"}, None]}, ["a", None]),
    (pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.string())), [[("role", "user")]], [{"role": "user"}]), (pyarrow.uuid(), b"a" * 16, "61616161-6161-6161-6161-616161616161"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=[str(kind)[:40] for kind, _, _ in VALUES])
def test_values_of_parquet_are_values_of_json(tmp_path: Path, kind: Any, value: Any, expected: Any) -> None:
    content = table({"a.b": pyarrow.array([value, None], kind), "a": pyarrow.array([1, 2])})
    assert read(tmp_path, "a.parquet", content) == [{"a.b": expected, "a": 1}, {"a.b": None, "a": 2}]
    json.dumps(expected)


@pytest.mark.parametrize(
    ("column", "text"),
    [(pyarrow.array([b"a", b"\xff"]), 'row 2: column "x" has a value that cannot be read (found bytes that are not UTF-8 in binary)'),
     (pyarrow.array([0, 10**15]).cast(pyarrow.timestamp("s")), 'row 2: column "x"'),
     (pyarrow.array([[], [("a", 1), ("a", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int8())), "row 2: column \"x\" has a value that cannot be read (found a map with a key twice"),
     (pyarrow.array([0, 1]).cast(pyarrow.timestamp("us", "Mars/Base")), 'row 1: column "x"')],
    ids=["bytes", "far year", "map", "time zone"],
)  # fmt: skip
def test_a_value_without_json_is_refused_with_row_and_column(tmp_path: Path, column: Any, text: str) -> None:
    content = table({"x": column, "text": ["a", "b"]})
    assert text in str(refusal(tmp_path, "a.parquet", content))
    assert read(tmp_path, "a.parquet", content, ignore=["x"]) == [
        {"x": None, "text": "a"},
        {"x": None, "text": "b"},
    ]


def test_parquet_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["x", "x"])
    out = io.BytesIO()
    parquet.write_table(twice, out)
    assert "several columns have the same name" in str(refusal(tmp_path, "a.parquet", out.getvalue()))
    whole = table({"text": [f"{number}" * 50 for number in range(1000)]})
    for content in (
        whole[:-1],
        whole[:4] + whole[40:],
        b"PAR1",
        b"",
        whole[:100] + b"\xff" * 50 + whole[150:],
    ):
        assert refusal(tmp_path, "a.parquet", content).reason == "UnreadableFile"
    assert read(tmp_path, "a.parquet", table({"text": pyarrow.array([], pyarrow.string())})) == []


def test_a_dictionary_that_expands_enormously_is_decoded_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of one megabyte that a million rows have is a file of a few kilobytes."""
    monkeypatch.setattr("finetune_trainer.readers.opening.ANY_FILE", 64 * 2**20)
    indices = pyarrow.array([0] * 1_000_000, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["x" * 2**20]))
    content = table({"text": column}, dictionary_pagesize_limit=2**30, store_schema=False, compression="zstd")
    assert len(content) < 10_000
    monkeypatch.setattr("finetune_trainer.readers.parquet.BATCH_BYTES", 16 * 2**20)
    rows = rows_of(tmp_path, {"a.parquet": content})
    before = pyarrow.total_allocated_bytes()
    for _ in range(60):
        assert len(next(rows).value["text"]) == 2**20
        assert pyarrow.total_allocated_bytes() - before < 64 * 2**20
    with pytest.raises(StageError, match="bytes that become more than") as caught:
        list(rows)
    assert caught.value.code is ExitCode.BAD_DATA


def test_runs_that_expand_enormously_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetune_trainer.readers.opening.ANY_FILE", 2**20)
    values = pyarrow.array([0] * 1_000_000, pyarrow.int64())
    content = table({"x": pyarrow.ListArray.from_arrays([0, 1_000_000], values)}, compression="zstd")
    assert len(content) < 10_000
    assert "bytes that become more than" in str(refusal(tmp_path, "a.parquet", content))


# --- what people and tools write around rows --------------------------------------------------------------------------


def test_excels_line_about_the_separator_is_no_header(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfsep=;\r\nprompt; completion \r\na;b\r\n"
    assert read(tmp_path, "a.csv", content, separator=";") == [{"prompt": "a", "completion": "b"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
def test_a_table_between_tabs_is_no_text(tmp_path: Path, encoding: str) -> None:
    """Excel saves "Unicode Text" as .txt. Each way out that the refusal names is taken."""
    text = 'prompt\tcompletion\r\nCapital of Peru?\tLima\r\n\r\nOf Chile?\t"Santiago"\r\n'
    content = text.encode(encoding)
    error = refusal(tmp_path, "a.txt", content)
    assert "Excel's Unicode Text" in str(error)
    assert "Name it .tsv" in error.fix
    rows = read(tmp_path, "a.tsv", content)
    assert rows[1] == {"prompt": "Of Chile?", "completion": "Santiago"}
    separator = re.search(r"separator: (\".*\")", error.fix)
    assert separator
    lines = read(tmp_path, "a.txt", content, separator=json.loads(separator[1]))
    assert lines[0] == {"text": "prompt\tcompletion"}
    for plain in ("\tone\n\ttwo\n", "a\tb\nno tab\n", "a\tb\n"):
        assert read(tmp_path, "a.txt", plain.encode(encoding))


@pytest.mark.parametrize("content", [LINES, b"\n" + LINES, json.dumps(ROWS, indent=1).encode()])
def test_json_is_no_text(tmp_path: Path, content: bytes) -> None:
    error = refusal(tmp_path, "a.txt", content)
    assert "the lines are JSON" in str(error)
    assert "Name it .jsonl" in error.fix
    assert read(tmp_path, "a.jsonl", content) == ROWS
    assert read(tmp_path, "a.txt", content, separator="\n")
    assert read(tmp_path, "a.txt", b"[1] A list.\n{x} A set.\n")


HEADER = "question\tanswer\tnote\n"
TABLES = {
    "an empty last field": HEADER + "Who?\tAna\t\n" * 3,
    "an empty first field": HEADER + "\tAna\tx\n" * 3,
    "one other row": HEADER + "Who?\tAna\tx\n" * 5 + "Who?\n",
    "a quoted line break": HEADER + 'Who?\t"Ana\nor Bo"\tx\n' * 3,
    "long fields": HEADER + ("Who? " * 300 + "\tAna\tx\n") * 40,
    "fields longer than a buffer": HEADER + ("Who? " * 30_000 + "\tAna\tx\n") * 9,
    "CR": (HEADER + "Who?\tAna\t\n" * 3).replace("\n", "\r"),
}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_whatever_its_fields_is_no_text(tmp_path: Path, table: str, encoding: str) -> None:
    assert "fields between tabs" in str(refusal(tmp_path, "a.txt", table.encode(encoding)))


@pytest.mark.parametrize(
    "text", ["a\tb\n" + "no tab\n" * 30, "def f():\n\treturn\n\tx\n", "\tx\n\t\ty\n", 'a\tb\n"c\nd\ne\n', "a\tb\n" + "c" * 2**21]
)  # fmt: skip
def test_lines_with_some_tabs_are_text(tmp_path: Path, text: str) -> None:
    assert [row["text"] for row in read(tmp_path, "a.txt", text.encode())] == text.splitlines()


def test_lines_that_end_with_cr_are_found_without_a_list_of_them(tmp_path: Path) -> None:
    assert [row["text"] for row in read(tmp_path, "a.txt", b"a\rb\r\rc\r\nd\n\re")] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]


@pytest.mark.parametrize(
    "around", [{"system": "Be brief."}, {"label": 0}, {"system_prompt": "x", "version": 1}]
)
def test_a_value_around_rows_that_belongs_into_rows_is_refused(
    tmp_path: Path, around: dict[str, Any]
) -> None:
    content = json.dumps({**around, "data": [{"prompt": "a", "completion": "b"}]}).encode()
    with pytest.raises(StageError, match=f"has values that belong into rows.*{next(iter(around))}"):
        read(tmp_path, "a.json", content)


def test_the_status_of_an_answer_around_rows_is_no_judgment(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b"}]
    assert read(tmp_path, "a.json", json.dumps({"status": "ok", "data": rows}).encode()) == rows


@pytest.mark.parametrize("name", ["conversation", "segments", "dialogue"])
def test_a_single_row_with_one_list_is_a_row(tmp_path: Path, name: str) -> None:
    row = {name: [{"input": "a", "output": "b"}, {"input": "c", "output": "d"}]}
    assert read(tmp_path, "a.jsonl", json.dumps(row).encode()) == [row]
