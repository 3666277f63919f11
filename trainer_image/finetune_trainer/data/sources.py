"""Rows of a dataset, with the place each came from: files by URI (globs too) and repositories of the hub."""

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSource, ExitCode
from finetune_trainer.data import hub
from finetune_trainer.errors import StageError, require_unchanged
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
class _File:
    """One file on this machine, and what to call it. ``where`` is the field of the spec that names it."""

    dataset: str
    where: str
    uri: str
    path: Path
    one_of_many: bool

    def place(self, row: int) -> Place:
        return Place(path=self.dataset, file=self.uri, row=row, one_of_many=self.one_of_many)

    def unreadable(self, reason: str, what: str, saw: str, fix: str, *, expected: str = "") -> StageError:
        """The file as a whole is not what its name says."""
        return StageError(
            ExitCode.BAD_DATA, reason, what, where=self.where, saw=saw, expected=expected, fix=fix
        )


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
    """Finds the dataset and brings its files to this machine (a ``file://`` one stays where it is).

    Raises ``StageError`` 65 for files that cannot be read or have changed since preflight, 66 where there are none.
    """
    if spec.hugging_face is not None:
        split = hub.fetch_split(spec, scratch, SUFFIXES)
        found = [(file.uri, file.path) for file in split.files]
        return _open(spec, split.uri, split.commit, found, f"{spec.path}.huggingFace")
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
    revision = _digest(entries)
    require_unchanged(spec.digest, revision, where=f"{spec.path}.uri", uri=spec.uri)
    found = [(entry.uri, _local(entry.uri, store, scratch)) for entry in entries]
    return _open(spec, spec.uri, revision, found, f"{spec.path}.uri")


def _open(
    spec: DatasetSource, uri: str, revision: str, found: Sequence[tuple[str, Path]], where: str
) -> OpenSource:
    files = [
        _File(dataset=spec.path, where=where, uri=uri, path=path, one_of_many=len(found) > 1)
        for uri, path in found
    ]

    def rows() -> Iterator[Row]:
        for file in files:
            for number, value in _READERS[_suffix(file.uri)](file):
                yield Row(place=file.place(number), value=value)

    return OpenSource(spec=spec, uri=uri, revision=revision, rows=rows)


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


# --- readers: file -> (row number, row) -----------------------------------------------------------------------------

type Rows = Iterator[tuple[int, Mapping[str, Any]]]


def _json_lines(file: _File) -> Rows:
    with gzip.open(file.path, "rb") if file.uri.endswith(".gz") else file.path.open("rb") as stream:
        try:
            yield from _lines(stream, file)
        except (gzip.BadGzipFile, EOFError) as error:
            raise file.unreadable(
                "UnreadableFile",
                "the file is not whole gzip data",
                f"{file.uri}: {error}",
                "Compress and upload the file again.",
            ) from error


def _lines(stream: Any, file: _File) -> Rows:
    for number, line in enumerate(stream, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        place = file.place(number)
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
                fix=f"Mend or remove this line. File: {file.uri}",
            ) from None
        yield number, _object(value, place)


def _json_document(file: _File) -> Rows:
    """A JSON array of rows; a file of JSON lines under this name is read as such."""
    data = file.path.read_bytes()
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from _lines(io.BytesIO(data), file)
        return
    try:
        values = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise file.unreadable(
            "DatasetNotJson",
            f"the file is not JSON: {error}",
            file.uri,
            "Mend the file.",
            expected="an array of objects",
        ) from None
    for number, value in enumerate(values, start=1):
        yield number, _object(value, file.place(number))


def _parquet(file: _File) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file.path)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                number += 1
                yield number, value
    except pyarrow.ArrowException as error:
        raise file.unreadable(
            "UnreadableFile",
            "the file is not whole Parquet data",
            f"{file.uri}: {error}"[:300],
            "Write and upload the file again.",
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
