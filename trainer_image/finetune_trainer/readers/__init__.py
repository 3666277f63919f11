"""Readers of all supported kinds of data files. Each yields (row number from 1, row) in order, one row at a time.

All raise ``StageError`` 65 for a row or a file whose content does not match the file's suffix, and for a row of more
than ``MAX_ROW`` bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from finetune_trainer.readers.array_record import read_array_record
from finetune_trainer.readers.delimited import read_delimited
from finetune_trainer.readers.json_rows import read_json
from finetune_trainer.readers.parquet import read_parquet
from finetune_trainer.readers.row_location import DataFile
from finetune_trainer.readers.text import contains_separator, read_text

__all__ = ["SUFFIXES", "read_rows", "require_separator", "suffix_of"]

type _Reader = Callable[[DataFile], Iterator[tuple[int, Mapping[str, Any]]]]
_SEPARATED: Mapping[str, _Reader] = {
    ".csv": partial(read_delimited, usual=","),
    ".tsv": partial(read_delimited, usual="\t"),
    ".txt": read_text,
}
_TEXT: Mapping[str, _Reader] = {**dict.fromkeys((".jsonl", ".ndjson", ".json"), read_json), **_SEPARATED}
_BINARY: Mapping[str, _Reader] = {
    ".parquet": read_parquet,
    **dict.fromkeys((".arrayrecord", ".array_record"), read_array_record),
}
_READERS = {**_TEXT, **_BINARY}
_COMPRESSED = (".gz", ".zst", ".zstd")
#: Suffixes of files that can be read, for messages.
SUFFIXES = f"{', '.join(_TEXT)} (each also with {', '.join(_COMPRESSED)}), {', '.join(_BINARY)}"


def suffix_of(name: str) -> str:
    """Returns the supported suffix of a file name, without that of its compression; '' for any other file."""
    name = name.lower()
    plain = next((name.removesuffix(suffix) for suffix in _COMPRESSED if name.endswith(suffix)), name)
    return next((suffix for suffix in (_READERS if plain == name else _TEXT) if plain.endswith(suffix)), "")


def read_rows(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the file's rows, each with its number."""
    return _READERS[suffix_of(file.uri)](file)


def require_separator(files: Sequence[DataFile]) -> None:
    """Raises ``StageError`` 64 if the dataset's separator suits no file of its kind, or occurs in no text file."""
    separated = [file for file in files if file.separator is not None]
    for file in separated:
        if suffix_of(file.uri) not in _SEPARATED:
            fix = f"Remove {file.dataset}.separator."
            raise file.bad_separator("files of this kind have no separator", fix)
    texts = [file for file in separated if suffix_of(file.uri) == ".txt"]
    if texts and not any(contains_separator(file) for file in texts):
        fix = "Correct it, or remove it to read every line as a row."
        raise texts[0].bad_separator("it does not occur in the text", fix)
