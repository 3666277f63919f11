"""Locates and reads datasets: files by URI or glob pattern, and repositories of the Hugging Face Hub."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data import hub
from finetune_trainer.errors import StageError, reading_listed, replaced, require_unchanged
from finetune_trainer.readers import SUFFIXES, read_rows, require_separator, suffix_of
from finetune_trainer.readers.row_location import DataFile, Row
from finetune_trainer.storage import Entry, StorageClient, local_path, name_of, unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSource:
    """A located dataset. ``revision`` identifies its content: a commit, or a digest of names, sizes and checksums.

    Each call of ``rows`` reads all rows in order; the first call downloads the files. It raises ``StageError`` 65 for a
    row that cannot be read and for a file that has changed since ``revision``: objects in a bucket are downloaded at
    the listed generation, ``file://`` files are read in place and compared by size and time after the last row.
    """

    spec: DatasetSpec
    uri: str
    revision: str
    rows: Callable[[], Iterator[Row]]


def open_source(spec: DatasetSpec, store: StorageClient, scratch: Path) -> LocatedSource:
    """Locates the dataset without downloading its rows.

    Raises ``StageError`` 65 for files that cannot be read or have changed since preflight, 66 if there are none.
    """
    if spec.hugging_face is not None:
        split = hub.find_split(spec, scratch, suffix_of, SUFFIXES)
        rows = _reader(spec, f"{spec.path}.huggingFace", split.fetch, separator=split.separator)
        return LocatedSource(spec=spec, uri=split.uri, revision=split.commit, rows=rows)
    assert spec.uri is not None
    where = f"{spec.path}.uri"
    entries = store.glob(spec.uri)
    if not entries:
        raise StageError(
            ExitCode.INPUT_MISSING, "DatasetMissing", "no file has this name or matches this pattern", where=where,
            actual=spec.uri, expected="at least one file", fix="Upload the file or correct the address.",
        )  # fmt: skip
    _require_readable(entries, where)
    revision = _digest(entries)
    require_unchanged(spec.digest, revision, where=where, uri=spec.uri)

    def fetch() -> list[tuple[str, Path]]:
        return [(entry.uri, _local(entry, store, scratch, where)) for entry in entries]

    def require_listed() -> None:
        for entry in entries:
            if not unchanged(entry):
                raise replaced(entry.uri, where)

    rows = _reader(spec, where, fetch, after=require_listed)
    return LocatedSource(spec=spec, uri=spec.uri, revision=revision, rows=rows)


def _reader(
    spec: DatasetSpec,
    where: str,
    fetch: Callable[[], Sequence[tuple[str, Path]]],
    *,
    separator: str | None = None,
    after: Callable[[], None] = lambda: None,
) -> Callable[[], Iterator[Row]]:
    """Returns what yields the rows of the files that ``fetch`` downloads, then runs ``after``.

    ``separator`` is used if the dataset names none.
    """

    @cache
    def files() -> list[DataFile]:
        fetched = fetch()
        made = [
            DataFile(
                dataset=spec.path, where=where, uri=uri, path=path, number=number, one_of_many=len(fetched) > 1,
                separator=separator if spec.separator is None else spec.separator,
                ignored=frozenset(spec.ignore),
            )
            for number, (uri, path) in enumerate(fetched)
        ]  # fmt: skip
        require_separator(made)
        return made

    def rows() -> Iterator[Row]:
        for file in files():
            for number, value in read_rows(file):
                yield Row(place=file.place(number), value=value)
        after()

    return rows


def _require_readable(entries: Sequence[Entry], where: str) -> None:
    for entry in entries:
        if not suffix_of(entry.uri):
            raise StageError(
                ExitCode.BAD_DATA, "UnsupportedFileType", "this type of file cannot be read", where=where,
                actual=entry.uri, expected=f"a name that ends in {SUFFIXES}",
                fix="Convert the file to JSON lines, or narrow the glob.",
            )  # fmt: skip


def _local(entry: Entry, store: StorageClient, scratch: Path, where: str) -> Path:
    path = local_path(entry.uri)
    if path is not None:
        return path
    target = scratch / hashlib.sha256(entry.uri.encode()).hexdigest()[:16] / name_of(entry.uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    with reading_listed(where):
        return store.fetch_file(entry.uri, target, generation=entry.generation)


def _digest(entries: Sequence[Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{name_of(entry.uri)}\0{entry.size}\0{entry.crc32c}\n".encode())
    return digest.hexdigest()[:40]
