"""Readers of all supported kinds of data files. Each yields (row number from 1, row) in order, one row at a time.

All raise ``StageError`` 65 for a row or a file whose content does not match the file's suffix, and for a row of more
than ``MAX_ROW`` bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from finetune_trainer.data.files.array_record import read_array_record
from finetune_trainer.data.files.delimited import read_delimited
from finetune_trainer.data.files.json_rows import read_json
from finetune_trainer.data.files.parquet import read_parquet
from finetune_trainer.data.files.text import contains_separator, read_text
from finetune_trainer.data.row_location import DataFile

__all__ = ["SUFFIXES", "read_rows", "require_separator", "suffix_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of file. ``text``: whether it may be compressed. ``separated``: whether it has a separator."""

    read: Callable[[DataFile], Iterator[tuple[int, Mapping[str, Any]]]]
    text: bool = True
    separated: bool = False


_JSON = _Kind(read=read_json)
_ARRAY_RECORD = _Kind(read=read_array_record, text=False)
_KINDS = {
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".json": _JSON,
    ".csv": _Kind(read=partial(read_delimited, usual=","), separated=True),
    ".tsv": _Kind(read=partial(read_delimited, usual="\t"), separated=True),
    ".txt": _Kind(read=read_text, separated=True),
    ".parquet": _Kind(read=read_parquet, text=False),
    ".arrayrecord": _ARRAY_RECORD,
    ".array_record": _ARRAY_RECORD,
}
_COMPRESSED = (".gz", ".zst", ".zstd")
#: Suffixes of files that can be read, for messages.
SUFFIXES = (
    f"{', '.join(suffix for suffix, kind in _KINDS.items() if kind.text)} (each also with {', '.join(_COMPRESSED)}), "
    f"{', '.join(suffix for suffix, kind in _KINDS.items() if not kind.text)}"
)


def suffix_of(name: str) -> str:
    """Returns the supported suffix of a file name, without that of its compression; '' for any other file."""
    name = name.lower()
    plain = next((name.removesuffix(suffix) for suffix in _COMPRESSED if name.endswith(suffix)), name)
    suffix = next((suffix for suffix in _KINDS if plain.endswith(suffix)), "")
    return suffix if plain == name or (suffix and _KINDS[suffix].text) else ""


def read_rows(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the file's rows, each with its number."""
    return _KINDS[suffix_of(file.uri)].read(file)


def require_separator(files: Iterable[DataFile]) -> None:
    """Raises ``StageError`` 64 if the dataset's separator suits no file of its kind, or occurs in no text file."""
    text = []
    for file in files:
        if file.separator is None:
            return
        if not _KINDS[suffix_of(file.uri)].separated:
            raise file.bad_separator(
                "files of this kind have no separator", f"Remove {file.dataset}.separator."
            )
        if suffix_of(file.uri) == ".txt":
            text.append(file)
    if text and not any(contains_separator(file) for file in text):
        raise text[0].bad_separator(
            "it does not occur in the text", "Correct it, or remove it to read every line as a row."
        )
