"""Opens text files as streams of UTF-8: expands gzip and Zstandard, decodes UTF-16 and UTF-32, names other kinds.

Compression is recognized by the first bytes, whatever the name says. An encoding other than UTF-8 needs a byte order
mark, because a wrong guess would be trained.
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from finetune_trainer.data.files.foreign import refuse_foreign
from finetune_trainer.data.row_location import MAX_ROW, DataFile

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
        yield stream if encoding == "utf-8" else _stream(_recoded(file, stream, encoding))


def may_expand_to(size: int) -> int:
    """Returns the bytes to which a file of ``size`` bytes may expand."""
    return min(MAX_EXPANDED, max(ANY_FILE, MAX_RATIO * size))


def require_expansion(file: DataFile, expanded: int) -> None:
    """Raises ``StageError`` 65 if the file expands to more than it may."""
    size = file.path.stat().st_size
    if expanded > may_expand_to(size):
        raise file.unreadable(
            "UnreadableFile",
            "the compressed file expands to more than a data file may",
            f"{file.uri}: {size:,} bytes that become more than {may_expand_to(size):,}",
            "Remove repeated rows, or upload the file uncompressed in several parts.",
            expected=f"at most {ANY_FILE // 2**20} MiB, or {MAX_RATIO} times the file's size",
        )


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

    total = 0
    try:
        with (
            gzip.GzipFile(fileobj=raw)
            if kind == "gzip"
            else pyarrow.CompressedInputStream(str(file.path), "zstd") as stream
        ):
            while data := stream.read(CHUNK):
                total += len(data)
                require_expansion(file, total)
                yield data
    except (EOFError, zlib.error, OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise file.unreadable(
            "UnreadableFile",
            f"the file is not complete {kind} data",
            f"{file.uri}: {error}"[:300],
            "Compress and upload the file again.",
        ) from error


def _recoded(file: DataFile, stream: BinaryIO, encoding: str) -> Iterator[bytes]:
    decoder, start = codecs.getincrementaldecoder(encoding)(), 0
    while True:
        data = stream.read(CHUNK)
        try:
            yield decoder.decode(data, final=not data).encode()
        except UnicodeDecodeError as error:
            raise file.unreadable(
                "UnreadableFile",
                f"the file is not the {encoding[:6].upper()} that its byte order mark says",
                f"{file.uri}: {error.reason} near byte {start + error.start:,}",
                "Save the file as UTF-8.",
            ) from None
        if not data:
            return
        start += len(data)


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a stream with their ends: LF, CRLF or CR. One of ``MAX_ROW`` bytes may be cut there."""
    for line in iter(partial(stream.readline, MAX_ROW), b""):
        if b"\r" in line:
            yield from line.splitlines(keepends=True)
        else:
            yield line
