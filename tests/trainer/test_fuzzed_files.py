"""Generated data files of all kinds, whole, damaged and of random bytes: rows are read, or the file is refused by name.

300 files in the ordinary tests, 10,000 in the thorough ones.
"""

import csv
import datetime as dt
import gzip
import io
import json
import random
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow import parquet

from finetune_contract import ExitCode
from finetune_trainer.data.sources import open_source
from finetune_trainer.errors import StageError
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import data_check
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

USERS = (ExitCode.BAD_REQUEST, ExitCode.BAD_DATA, ExitCode.INPUT_MISSING)
TEXTS = (
    "", " ", "hello", "é😀", "\u2028", "a\r\nb", "\x00", "\x1b[2J", '"', "'", ",;|\t", "null", "NA", "007", "{", "[{", "<|im_end|>",
    "[1, 2]", '{"a": 1}', "x" * 3000, "\ufeff", "\ufffd", "\u202e", "{{ 1 }}",
)  # fmt: skip
KEYS = (
    "messages", "role", "content", "prompt", "completion", "question", "answer", "text", "tools", "chosen", "rejected", "system", "input",
    "weight", "tool_calls", "function", "arguments", "name", "", "data", "train", "from", "value", "a.b", "list", "element", "é", "label",
)  # fmt: skip
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252")
NAMES = (
    "a.jsonl", "a.json", "a.ndjson", "a.csv", "a.tsv", "a.txt", "a.JSONL.GZ", "a.json.zst", "a.csv.gz", "a.txt.zstd", "a.parquet",
    "a.arrayrecord",
)  # fmt: skip


class Generator:
    """Generates the file of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one[T](self, *options: T) -> T:
        return self.random.choice(options)

    def value(self, depth: int = 0) -> Any:
        """A JSON value, in half of the cases shaped like a part of a conversation."""
        many = range(self.random.randrange(4))
        match self.random.randrange(11 if depth < 5 else 6):
            case 0:
                return self.one(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 2**70, "")
            case 1 | 2 | 3 | 4 | 5:
                return self.one(*TEXTS)
            case 6 | 7:
                return {self.one(*KEYS): self.value(depth + 1) for _ in many}
            case 8:
                return [self.value(depth + 1) for _ in many]
            case 9:
                return [
                    {"role": self.one("user", "assistant", "tool", 1, None), "content": self.value(depth + 1)}
                    for _ in many
                ]
            case _:
                return [
                    {"role": "user", "content": self.one(*TEXTS)},
                    {"role": "assistant", "content": self.one(*TEXTS)},
                ]

    def row(self) -> dict[str, Any]:
        """A row of a known shape, in half of the cases with one more column or key."""
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": self.one(*TEXTS)},
            {"role": "assistant", "content": self.one("fine", *TEXTS)},
        ]
        if not self.random.randrange(3):
            self.one(*turns)[self.one(*KEYS)] = self.value(3)
        row = self.one(
            {"messages": turns}, {"prompt": self.one(*TEXTS), "completion": "fine"}, {"prompt": turns[:1], "completion": turns[1:]},
            {"question": "why", "answer": self.one(*TEXTS)}, {"text": self.one("fine", *TEXTS)},
        )  # fmt: skip
        return row | self.one({}, {self.one(*KEYS): self.value(2)})

    def rows(self) -> list[Any]:
        match self.random.randrange(5):
            case 0:
                return [self.value() for _ in range(self.random.randrange(4))]
            case 1:
                names = self.random.sample(KEYS, self.random.randrange(1, 4))
                return [{name: self.value() for name in names} for _ in range(self.random.randrange(1, 6))]
            case _:
                row = self.row()
                return [*[row] * self.random.randrange(1, 4), *[self.row()] * self.random.randrange(2)]

    # --- text ---------------------------------------------------------------------------------------------------------

    def json(self) -> str:
        rows, options = (
            self.rows(),
            {"ensure_ascii": self.one(True, False), "indent": self.one(None, None, 1)},
        )
        text = self.one(
            lambda: self.one("\n", "\r\n", "\r", "", "\n\n", ",").join(
                json.dumps(row, **options) for row in rows
            ),
            lambda: json.dumps(rows, **options),
            lambda: json.dumps(
                {self.one(*KEYS): rows, **self.one({}, {"version": 1}, {self.one(*KEYS): rows})}, **options
            ),
            lambda: json.dumps(dict.fromkeys(self.random.sample(KEYS, 2), rows), **options),
            lambda: (
                '{"messages": ' * (depth := self.one(1, 90, 200, 10_000)) + "1" + self.one("", "}" * depth)
            ),
            lambda: '{"text": ' + "[" * (depth := self.one(90, 200, 10_000)) + "]" * depth + "}",
            lambda: r'{"text": "' + self.one(r"\ud83d", r"\ud83d\ude00", r"\uDFFF", r"\u0000", r"\x") + '"}',
            lambda: (
                '{"text": ' + self.one("9" * 5000, "NaN", "-Infinity", "1e999", "tru", "'a'", "1,", "") + "}"
            ),
        )()
        return text.replace("messages", "mess", 1) if not self.random.randrange(20) else text

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, delimiter=self.one(",", ",", "\t", ";", "|"), lineterminator=self.one("\n", "\r\n", "\r"),
                            quoting=self.one(csv.QUOTE_MINIMAL, csv.QUOTE_ALL))  # fmt: skip
        width = self.random.randrange(1, 5)
        for _ in range(self.random.randrange(6)):
            writer.writerow([self.one(*TEXTS, *KEYS) for _ in range(width + (not self.random.randrange(15)))])
        return self.one("", "prompt,completion\n", "text\n", "question\tanswer\n") + out.getvalue()

    def text(self) -> str:
        return self.one("\n", "\r\n", "\n\n", "\n---\n").join(
            self.one(*TEXTS) for _ in range(self.random.randrange(9))
        )

    # --- binary -------------------------------------------------------------------------------------------------------

    def kind(self, depth: int = 0) -> Any:
        """An Arrow type that Parquet can contain."""
        simple = (
            pyarrow.string(), pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.binary(4), pyarrow.bool_(),
            pyarrow.int8(), pyarrow.uint64(), pyarrow.float16(), pyarrow.float64(), pyarrow.null(), pyarrow.date32(), pyarrow.date64(),
            pyarrow.timestamp(self.one("s", "ms", "us", "ns"), self.one(None, "UTC", "America/New_York", "+05:30", "No/Where")),
            pyarrow.time32("ms"), pyarrow.time64("ns"), pyarrow.duration(self.one("s", "ns")), pyarrow.decimal128(20, 5), pyarrow.decimal256(50, 3),
            pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), pyarrow.uuid(), pyarrow.bool8(),
        )  # fmt: skip
        if depth > 3 or self.random.random() < 0.5:
            return self.one(*simple)
        inner = self.kind(depth + 1)
        return self.one(
            lambda: pyarrow.list_(inner), lambda: pyarrow.large_list(inner), lambda: pyarrow.list_(inner, 2), lambda: pyarrow.list_view(inner),
            lambda: pyarrow.map_(self.one(pyarrow.string(), pyarrow.int32(), pyarrow.date32()), inner),
            lambda: pyarrow.struct([(name, self.kind(depth + 1)) for name in self.random.sample(KEYS, 2)]),
            lambda: pyarrow.struct([("list", pyarrow.list_(pyarrow.struct([(self.one("element", "item", "x"), inner)])))]),
        )()  # fmt: skip

    def array(self, kind: Any, rows: int) -> Any:
        """Values of an Arrow type, with nulls and extremes."""
        types = pyarrow.types
        if isinstance(kind, pyarrow.BaseExtensionType):
            return pyarrow.ExtensionArray.from_storage(kind, self.array(kind.storage_type, rows))
        if types.is_dictionary(kind):
            return self.array(kind.value_type, rows).dictionary_encode()
        if types.is_struct(kind):
            return pyarrow.StructArray.from_arrays(
                [self.array(field.type, rows) for field in kind], fields=list(kind)
            )
        if types.is_map(kind):
            return pyarrow.MapArray.from_arrays(range(rows + 1), self.array(kind.key_type, rows).fill_null("k" if types.is_string(kind.key_type) else 0)
                                                if not types.is_date(kind.key_type) else self.array(kind.key_type, rows).fill_null(dt.date(2026, 1, 1)),
                                                self.array(kind.item_type, rows))  # fmt: skip
        if types.is_fixed_size_list(kind):
            return pyarrow.FixedSizeListArray.from_arrays(self.array(kind.value_type, 2 * rows), type=kind)
        if types.is_list_view(kind):
            return pyarrow.ListViewArray.from_arrays(
                range(rows), [1] * rows, self.array(kind.value_type, rows), type=kind
            )
        if types.is_list(kind) or types.is_large_list(kind):
            factory = pyarrow.ListArray if types.is_list(kind) else pyarrow.LargeListArray
            return factory.from_arrays(range(rows + 1), self.array(kind.value_type, rows), type=kind)
        return pyarrow.array([self.leaf(kind) for _ in range(rows)], kind)

    def leaf(self, kind: Any) -> Any:
        types = pyarrow.types
        if types.is_null(kind) or not self.random.randrange(6):
            return None
        for matches, make in (
            (lambda kind: types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind), lambda: self.one(*TEXTS)),
            (types.is_fixed_size_binary, lambda: self.random.randbytes(kind.byte_width)), (types.is_binary, lambda: self.one(b"", b"a", b"\xff", b"{}")),
            (types.is_boolean, lambda: self.one(True, False)), (types.is_decimal, lambda: Decimal(self.one("0", "-1000", "5000"))),
            (types.is_float16, lambda: numpy.float16(self.one(0.5, float("nan"), float("inf")))), (types.is_floating, lambda: self.one(0.5, float("nan"))),
            (types.is_uint64, lambda: self.one(0, 2**64 - 1)), (types.is_integer, lambda: self.one(-128, 0, 127)),
            (types.is_date64, lambda: 86_400_000 * self.one(0, 20_000, 10**9)), (types.is_date32, lambda: self.one(0, 20_000, 10**9, -(10**9))),
            (types.is_time, lambda: self.one(0, 5, 80_000)), (types.is_temporal, lambda: self.one(0, -1, 10**9, 2**62, -(2**62))),
        ):  # fmt: skip
            if matches(kind):
                return make()
        raise AssertionError(kind)

    def parquet(self) -> bytes:
        if not self.random.randrange(3):
            return self.of_rows()
        rows, names = self.random.randrange(5), [self.one(*KEYS) for _ in range(self.random.randrange(1, 4))]
        columns = [self.array(self.kind(), rows) for _ in names]
        out = io.BytesIO()
        parquet.write_table(
            pyarrow.Table.from_arrays(columns, names), out, compression=self.one("snappy", "zstd", "none"), row_group_size=self.one(1, 100),
            use_dictionary=self.one(True, False), store_schema=self.one(True, False), data_page_version=self.one("1.0", "2.0"),
        )  # fmt: skip
        return out.getvalue()

    def of_rows(self) -> bytes:
        out = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist([self.row()] * 3), out)
        return out.getvalue()

    def array_record(self, folder: Path) -> bytes:
        from array_record.python.array_record_module import ArrayRecordWriter

        path = folder / "made.arrayrecord"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for row in self.rows():
            writer.write(self.one(json.dumps(row).encode(), self.random.randbytes(20), b"{", b""))
        writer.close()
        return path.read_bytes()

    def file(self, folder: Path) -> tuple[str, bytes, Mapping[str, Any]]:
        """Returns a name, the content and fields of the dataset that reads it."""
        name = self.one(*NAMES)
        binary = {".parquet": self.parquet, ".arrayrecord": lambda: self.array_record(folder)}
        texts: Mapping[str, Callable[[], str]] = {"csv": self.csv, "tsv": self.csv, "txt": self.text}
        if Path(name).suffix in binary:
            try:
                content = binary[Path(name).suffix]()
            except (pyarrow.ArrowException, OSError, OverflowError):
                content = b"PAR1"  # Parquet has no such type
        else:
            text = texts.get(name.split(".")[1], self.json)()
            content = text.encode(self.one(*ENCODINGS), errors="replace")
            content = self.one(
                lambda data: data,
                lambda data: data,
                gzip.compress,
                lambda data: pyarrow.Codec("zstd").compress(data, asbytes=True),
            )(content)
        match self.random.randrange(10):
            case 0:
                content = content[: self.random.randrange(len(content) + 1)]
            case 1:
                at = self.random.randrange(len(content) + 1)
                content = (
                    content[:at]
                    + self.random.randbytes(self.random.randrange(1, 9))
                    + content[at + self.random.randrange(9) :]
                )
            case 2:
                content = content[:8] + self.random.randbytes(self.random.randrange(300))
        fields = self.one(
            {},
            {},
            {},
            {"separator": self.one(";", "\t", "\n\n", "\n---\n", "|", "--")},
            {"ignore": [self.one(*KEYS)]},
        )
        return name, content, fields


class Reader:
    """Reads generated files as datasets of a tiny model, first their rows alone, then as preflight does."""

    def __init__(self, root: Path) -> None:
        write_model(root / "models/qwen3", TinyModelSpec())
        self._root = root
        self._tokenizer = self._context({"uri": "file:///none"}).tokenizer

    def _context(self, source: Mapping[str, Any]) -> StageContext:
        train = [{"path": "spec.datasets.train[0]", "name": "train-0", **source}]
        return StageContext(
            request=request(self._root, "Preflight", data={"train": train, "validation": []}, use_cache="Off"),
            store=open_store(), processes=Processes(count=1, index=0), stopper=ImmediateStop(), scratch=self._root,
        )  # fmt: skip

    def outcome(self, seed: int) -> str:
        """Reads the file of a seed. Returns "data" or "rows" where all or the first step succeeds, or the reason why
        the file is refused; raises for all else.
        """
        folder = self._root / str(seed)
        folder.mkdir()
        name, content, fields = Generator(seed).file(folder)
        (folder / name).write_bytes(content)
        context = self._context({"uri": f"file://{folder}/{name}", **fields})
        vars(context)["tokenizer"] = self._tokenizer
        [spec] = context.request.data.train
        try:
            for row in open_source(spec, context.store, folder).rows():
                # A row is a JSON value: no class but those of JSON, and all texts can be encoded.
                assert isinstance(row.value, dict)
                json.dumps(row.value, ensure_ascii=False).encode()
        except StageError as error:
            assert name in str(error)
            assert str(error).isprintable(), str(error)
            assert len(str(error)) < 1500
            return self._checked(error)
        try:
            data_check.check(context)
        except StageError as error:
            self._checked(error)
            return "rows"
        return "data"

    def _checked(self, error: StageError) -> str:
        assert error.code in USERS
        assert error.fix
        return error.reason

    def outcomes(self, seeds: range) -> dict[str, int]:
        """Returns how often each outcome occurs. Fails with the seed of a file that is neither read nor refused."""
        counts: dict[str, int] = {}
        for seed in seeds:
            try:
                found = self.outcome(seed)
            except Exception as error:
                raise AssertionError(f"the file of seed {seed}: {type(error).__name__}: {error}") from error
            counts[found] = counts.get(found, 0) + 1
        return counts


def test_files_are_read_or_refused_by_name(tmp_path: Path) -> None:
    counts = Reader(tmp_path).outcomes(range(300))
    assert counts["data"] > 20
    assert {"DatasetNotJson", "UnreadableFile", "DatasetSchemaMismatch", "UnknownSeparator"} <= counts.keys()


@pytest.mark.thorough
def test_ten_thousand_files_are_read_or_refused_by_name(tmp_path: Path) -> None:
    counts = Reader(tmp_path).outcomes(range(300, 10_300))
    sys.stderr.write(f"outcomes: {counts}\n")
    assert counts["data"] > 900
