"""Recognizes files of other kinds by their first bytes, so that an error names what the file is instead."""

import re

import google_crc32c

from finetune_trainer.data.row_location import DataFile

_CONVERT = "Convert it to JSON lines or Parquet."
_PARQUET = "Write it as Parquet (in pandas: to_parquet)."
_SHEET = "Save the sheet as CSV."
_EXPAND = "Expand it, or compress a text file once, with gzip or Zstandard."
#: First bytes, what they belong to, and what to do about it.
_KINDS = (
    (rb"version https://git-lfs", "a Git LFS pointer instead of the file", "Run git lfs pull and upload the file."),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive or an Excel workbook", f"Unpack the archive. {_SHEET}"),
    (rb"\xd0\xcf\x11\xe0", "an old Excel or Word document", _SHEET),
    (rb"(\x1f\x8b\x08|\x28\xb5\x2f\xfd)", "compressed, perhaps twice", _EXPAND),
    (rb"(BZh\d1AY|\xfd7zXZ|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!\x1a)", "compressed in a way that cannot be read", _EXPAND),
    (rb".{257}ustar", "a tar archive", "Unpack the archive and upload its files."),
    (rb"PAR[1E][^\t\n\r -~]", "Parquet", "Give the file a name that ends in .parquet."),
    (rb"(ARROW1\0|FEA1[\0-\x08]|\xff\xff\xff\xff.{2}\0\0)", "Arrow IPC or Feather", _PARQUET),
    (rb"ORC[^\t\n\r -~]", "ORC", _PARQUET),
    (rb"Obj\x01", "Avro", _PARQUET),
    (rb"SQLite format 3\0", "an SQLite database", "Export the table as CSV or JSON lines."),
    (rb"\x89HDF\r\n", "HDF5", _CONVERT),
    (rb"\x93NUMPY", "a NumPy array", _CONVERT),
    (rb"\x80[\x02-\x05][(\[\]})Nc\x8a\x8c\x95]", "a Python pickle, which is never loaded", _CONVERT),
    (rb"%PDF-", "a PDF document", "Extract its text."),
    (rb"\{\\rtf", "a rich text document", "Save it as plain text."),
)  # fmt: skip
#: The same for what may be the text of a text file.
_MARKUP = (
    rb"(?i)\s*(<!doctype html|<html|<\?xml)",
    "HTML or XML, such as an error page that was saved in place of the file",
    "Download the file again, or convert it to JSON lines.",
)


def refuse_foreign(file: DataFile, begin: bytes, *, text: bool, markup: bool = False) -> None:
    """Raises ``StageError`` 65 if a file that begins with these bytes is of a kind that cannot be read under its name.

    ``text``: whether the file has to be UTF-8; if so, a NUL byte is refused. ``markup``: whether it may be HTML.
    """
    for pattern, name, fix in _KINDS if markup else (*_KINDS, _MARKUP):
        if re.match(pattern, begin, re.DOTALL):
            raise _foreign(file, name, fix)
    if _is_tf_record(begin):
        raise _foreign(file, "a TFRecord file", "Convert it to ArrayRecord or JSON lines.")
    if text and b"\0" in begin:
        raise _foreign(
            file,
            "binary: it contains NUL bytes, as does UTF-16 without a byte order mark",
            "Save the file as UTF-8.",
        )


def _is_tf_record(begin: bytes) -> bool:
    """Whether the bytes begin with a TFRecord's length and its masked checksum."""
    checksum = google_crc32c.value(begin[:8])
    masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return len(begin) > 12 and begin[8:12] == masked.to_bytes(4, "little")


def _foreign(file: DataFile, name: str, fix: str) -> Exception:
    return file.unreadable("UnreadableFile", f"the file is {name}", file.uri, fix)
