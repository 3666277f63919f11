"""Rows of a dataset, with the place each came from: files by URI (globs too) and repositories of the hub."""

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSource, ExitCode
from finetune_trainer.data import hub
from finetune_trainer.errors import StageError
from finetune_trainer.storage import Entry, Store, has_wildcard, local_path, name_of

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row stands: the dataset's path in the spec, the file, and the row (a line of the file, from 1)."""

    path: str
    file: str
    row: int
    one_of_many: bool = False
    """Whether the dataset has several files, so that a row number alone says nothing."""

    def __str__(self) -> str:
        return (
            f"{self.path}, {name_of(self.file)} row {self.row}"
            if self.one_of_many
            else f"{self.path}, row {self.row}"
        )

    def mismatch(self, what: str, fix: str, *, saw: str = "", expected: str = "") -> StageError:
        """A row that is not what a dataset may hold."""
        return StageError(
            ExitCode.BAD_DATA,
            "DatasetSchemaMismatch",
            what,
            where=str(self),
            saw=saw,
            expected=expected,
            fix=f"{fix} File: {self.file}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    place: Place
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """A dataset that was found. ``revision`` names its content: a commit, or a digest of names, sizes and checksums.

    ``rows`` reads all rows in order, anew at every call; it raises ``StageError`` 65 for one that cannot be read.
    """

    spec: DatasetSource
    uri: str
    revision: str
    rows: Callable[[], Iterator[Row]]


def open_source(spec: DatasetSource, store: Store, scratch: Path) -> OpenSource:
    """Finds the dataset and brings its files to this machine (a ``file://`` one stays where it is)."""
    return _open_hub(spec, scratch) if spec.hugging_face is not None else _open_uri(spec, store, scratch)


def _open_hub(spec: DatasetSource, scratch: Path) -> OpenSource:
    found = hub.load(spec, scratch)

    def rows() -> Iterator[Row]:
        for number, value in enumerate(found.rows, start=1):
            yield Row(place=Place(path=spec.path, file=found.uri, row=number), value=value)

    return OpenSource(spec=spec, uri=found.uri, revision=found.commit, rows=rows)


def _open_uri(spec: DatasetSource, store: Store, scratch: Path) -> OpenSource:
    assert spec.uri is not None
    entries = store.glob(spec.uri)
    if not entries:
        raise _not_found(spec.path, spec.uri)
    unknown = [entry.uri for entry in entries if _suffix(entry.uri) not in _READERS]
    if unknown:
        raise StageError(
            ExitCode.BAD_DATA,
            "UnsupportedFileType",
            "this kind of file cannot be read",
            where=f"{spec.path}.uri",
            saw=unknown[0],
            expected=f"a name that ends in {', '.join(SUFFIXES)}",
            fix="Convert the file to JSON lines, or narrow the glob.",
        )
    files = [(entry.uri, _local(entry.uri, store, scratch)) for entry in entries]

    def rows() -> Iterator[Row]:
        for uri, path in files:
            for number, value in _READERS[_suffix(uri)](path, spec.path, uri, len(files) > 1):
                place = Place(path=spec.path, file=uri, row=number, one_of_many=len(files) > 1)
                yield Row(place=place, value=value)

    return OpenSource(spec=spec, uri=spec.uri, revision=_digest(entries), rows=rows)


def _not_found(path: str, uri: str) -> StageError:
    glob = has_wildcard(uri)
    return StageError(
        ExitCode.INPUT_MISSING,
        "DatasetMissing",
        "no file matches this pattern" if glob else "there is no such file",
        where=f"{path}.uri",
        saw=uri,
        expected="at least one matching file" if glob else "an existing file",
        fix="Upload the file or correct the address.",
    )


def _local(uri: str, store: Store, scratch: Path) -> Path:
    path = local_path(uri)
    if path is not None:
        return path
    target = scratch / hashlib.sha256(uri.encode()).hexdigest()[:16] / name_of(uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    return store.fetch_file(uri, target)


def _digest(entries: list[Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{name_of(entry.uri)}\0{entry.size}\0{entry.crc32c}\n".encode())
    return digest.hexdigest()[:40]


def _suffix(name: str) -> str:
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


# --- readers: (path, spec path, uri, one of many) -> (row number, row) ----------------------------------------------


def _json_lines(path: Path, spec: str, uri: str, many: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with gzip.open(path, "rb") if uri.endswith(".gz") else path.open("rb") as stream:
        try:
            yield from _lines(stream, spec, uri, many)
        except (gzip.BadGzipFile, EOFError) as error:
            raise StageError(
                ExitCode.BAD_DATA,
                "UnreadableFile",
                "the file is not whole gzip data",
                where=f"{spec}.uri",
                saw=f"{uri}: {error}",
                fix="Compress and upload the file again.",
            ) from error


def _lines(stream: Any, spec: str, uri: str, many: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        place = Place(path=spec, file=uri, row=number, one_of_many=many)
        try:
            value = json.loads(text)
        except UnicodeDecodeError as error:
            raise place.mismatch(
                "the line is not UTF-8",
                "Save the file as UTF-8.",
                saw=f"byte {error.object[error.start]:#04x}",
            ) from None
        except json.JSONDecodeError as error:
            raise StageError(
                ExitCode.BAD_DATA,
                "DatasetNotJson",
                f"the line is not JSON: {error.msg} at column {error.colno}",
                where=str(place),
                saw=_excerpt(error.doc, error.pos),
                expected="one JSON object per line",
                fix=f"Mend or remove this line. File: {uri}",
            ) from None
        yield number, _object(value, place)


def _json_document(path: Path, spec: str, uri: str, many: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A JSON array of rows; a file of JSON lines under this name is read as such."""
    data = path.read_bytes()
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from _lines(io.BytesIO(data), spec, uri, many)
        return
    try:
        values = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StageError(
            ExitCode.BAD_DATA,
            "DatasetNotJson",
            f"the file is not JSON: {error}",
            where=f"{spec}.uri",
            saw=uri,
            expected="an array of objects",
            fix="Mend the file.",
        ) from None
    for number, value in enumerate(values, start=1):
        yield number, _object(value, Place(path=spec, file=uri, row=number, one_of_many=many))


def _parquet(path: Path, spec: str, uri: str, _: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                number += 1
                yield number, value
    except pyarrow.ArrowException as error:
        raise StageError(
            ExitCode.BAD_DATA,
            "UnreadableFile",
            "the file is not whole Parquet data",
            where=f"{spec}.uri",
            saw=f"{uri}: {error}"[:300],
            fix="Write and upload the file again.",
        ) from error


def _object(value: object, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.mismatch(
            "the row is no object",
            "Write every row as an object with named columns.",
            saw=type(value).__name__,
            expected="a JSON object",
        )
    return value


def _excerpt(text: str, position: int) -> str:
    start = max(0, position - 30)
    return ("…" if start else "") + text[start : position + 30].strip()


_READERS = {".jsonl": _json_lines, ".jsonl.gz": _json_lines, ".json": _json_document, ".parquet": _parquet}
