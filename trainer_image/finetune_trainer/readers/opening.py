"""Opens text files as streams of UTF-8: expands gzip and Zstandard, decodes UTF-16 and UTF-32, names other kinds.

Compression is recognized by the first bytes, whatever the name says. An encoding other than UTF-8 needs a byte order
mark, because a wrong guess would be trained.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

import google_crc32c

from finetune_trainer.readers.row_location import MAX_ROW, DataFile, shown

type _Decoder = codecs.IncrementalDecoder | io.IncrementalNewlineDecoder
#: Bytes to which a file may expand: any file to the first, larger ones by the factor, none beyond the last.
ANY_FILE, MAX_RATIO, MAX_EXPANDED = 256 * 2**20, 200, 2**40
#: Bytes that are read at a time.
CHUNK = 2**20
_GZIP, _ZSTD = b"\x1f\x8b\x08", (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")
#: Byte order marks, a longer one before its own beginning.
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe\x00\x00", "utf-32-le"), (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"),
)  # fmt: skip

_CONVERT = "Convert it to JSON lines or Parquet."
_PARQUET = "Write it as Parquet (in pandas: to_parquet)."
_SHEET = "Save the sheet as CSV."
_EXPAND = "Expand it, or compress a text file once, with gzip or Zstandard."
#: First bytes, what they belong to, and what to do about it.
_FOREIGN = (
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


@contextmanager
def opened(file: DataFile, *, markup: bool = False) -> Iterator[io.BufferedReader]:
    """Opens a file as a stream of its text in UTF-8, expanded and without byte order mark.

    ``markup``: whether the text may be HTML. Raises ``StageError`` 65 for a file of another kind, and while it is read,
    for one that is damaged or expands beyond the bounds above.
    """
    with file.path.open("rb") as raw:
        stream: io.BufferedReader = raw
        begin = raw.peek(4)[:4]
        if begin.startswith((_GZIP, *_ZSTD)):
            stream = _stream(_expanded(file, raw, "gzip" if begin.startswith(_GZIP) else "Zstandard"))
        begin = stream.peek(CHUNK)[:CHUNK]
        mark, encoding = next((entry for entry in _MARKS if begin.startswith(entry[0])), (b"", "utf-8"))
        refuse_foreign(file, begin[len(mark) :], text=encoding == "utf-8", markup=markup)
        stream.read(len(mark))
        if encoding != "utf-8":
            decoder = codecs.getincrementaldecoder(encoding)()
            kind = f"the {encoding[:6].upper()} that its byte order mark says"
            stream = _stream(text.encode() for text in decoded(file, stream, decoder, kind))
        yield stream


def refuse_foreign(file: DataFile, begin: bytes, *, text: bool, markup: bool = False) -> None:
    """Raises ``StageError`` 65 if a file that begins with these bytes is of a kind that cannot be read under its name.

    ``text``: whether the file has to be UTF-8; if so, a NUL byte is refused. ``markup``: whether it may be HTML.
    """
    for pattern, name, fix in _FOREIGN if markup else (*_FOREIGN, _MARKUP):
        if re.match(pattern, begin, re.DOTALL):
            raise file.unreadable(f"the file is {name}", fix)
    if _is_tf_record(begin):
        raise file.unreadable("the file is a TFRecord file", "Convert it to ArrayRecord or JSON lines.")
    if text and b"\0" in begin:
        what = "the file is binary: it contains NUL bytes, as does UTF-16 without a byte order mark"
        raise file.unreadable(what, "Save the file as UTF-8.")


def _is_tf_record(begin: bytes) -> bool:
    """Whether the bytes begin with a TFRecord's length and its masked checksum."""
    checksum = google_crc32c.value(begin[:8])
    masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return len(begin) > 12 and begin[8:12] == masked.to_bytes(4, "little")


def decoded(file: DataFile, stream: BinaryIO, decoder: _Decoder, kind: str) -> Iterator[str]:
    """Yields the stream's text in chunks. Raises ``StageError`` 65 if it is not of the ``kind`` that is decoded."""
    start, data = 0, b" "
    while data:
        data = stream.read(CHUNK)
        try:
            yield decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            actual = f"byte {error.object[error.start]:#04x} near byte {start + error.start:,}"
            raise file.unreadable(
                f"the file is not {kind}", "Save the file as UTF-8.", actual=actual
            ) from None
        start += len(data)


@contextmanager
def complete(file: DataFile, kind: str, *faults: type[Exception]) -> Iterator[None]:
    """Raises ``StageError`` 65 for a fault that a library finds in the file, but not for one of the disk."""
    try:
        yield
    except faults as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = f"the file is not complete {kind} data, or of a kind that cannot be read"
        actual = shown(str(error), 300)
        raise file.unreadable(what, "Write and upload the file again.", actual=actual) from error


def require_expansion(file: DataFile, expanded: int) -> None:
    """Raises ``StageError`` 65 if the file expands to more than it may."""
    size = file.path.stat().st_size
    allowed = min(MAX_EXPANDED, max(ANY_FILE, MAX_RATIO * size))
    if expanded > allowed:
        raise file.unreadable(
            "the compressed file expands to more than a data file may",
            "Remove repeated rows, or upload the file uncompressed in several parts.",
            actual=f"{size:,} bytes that become more than {allowed:,}",
            expected=f"at most {ANY_FILE // 2**20} MiB, or {MAX_RATIO} times the file's size",
        )


_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a stream with their ends: LF, CRLF or CR. One of ``MAX_ROW`` bytes may be cut there."""
    for line in iter(partial(stream.readline, MAX_ROW), b""):
        if b"\r" in line:
            # One at a time: a list of them would take many times the memory.
            yield from (match[0] for match in _LINE.finditer(line))
        else:
            yield line


class _Chunks(io.RawIOBase):
    """The bytes of an iterator as a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            data = next(self._chunks, None)
            if data is None:
                return 0
            self._rest = memoryview(data)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _stream(chunks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Chunks(chunks), CHUNK)


def _expanded(file: DataFile, raw: BinaryIO, kind: str) -> Iterator[bytes]:
    import pyarrow

    zstd = partial(pyarrow.CompressedInputStream, str(file.path), "zstd")
    total = 0
    with (
        complete(file, kind, EOFError, zlib.error, OSError, pyarrow.ArrowException),
        gzip.GzipFile(fileobj=raw) if kind == "gzip" else zstd() as stream,
    ):
        while data := stream.read(CHUNK):
            total += len(data)
            require_expansion(file, total)
            yield data
