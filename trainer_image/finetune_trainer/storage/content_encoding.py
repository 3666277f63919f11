"""Objects that are stored compressed and declare it in their ``Content-Encoding``, as ``gcloud storage cp -Z`` does.

Size and checksum of such an object are those of the compressed bytes, so it is downloaded as it is stored and unpacked
here: the client's own unpacking compares the checksum with other bytes, and ranges of it mean nothing.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError

_GZIP = frozenset({"gzip", "x-gzip"})
#: Compressions that are not read. Any other value, such as ``utf-8``, leaves the bytes as they are.
_OTHERS = frozenset({"br", "zstd", "deflate", "compress", "x-compress", "dcb", "dcz", "exi", "pack200-gzip"})
_MAGIC = b"\x1f\x8b"
#: Most bytes that an object may unpack to: this many for each stored byte, and a fixed number in any case.
_RATIO, _FREE = 200, 64 * 2**20
_PIECE = 2**20


def compression(encoding: str | None) -> str | None:
    """Returns the compression that a ``Content-Encoding`` declares; None if it declares none."""
    parts = [part.strip().lower() for part in (encoding or "").split(",")]
    return ", ".join(part for part in parts if part in _GZIP | _OTHERS) or None


def unpacked(data: bytes, encoding: str | None, uri: str) -> bytes:
    """Returns an object's content. Raises ``StageError`` 65 if it is not gzip, is damaged, or unpacks to too much."""
    if not _is_packed(data[: len(_MAGIC)], encoding, uri):
        return data
    return b"".join(_pieces(io.BytesIO(data), len(data), uri))


def unpack(path: Path, encoding: str | None, uri: str) -> None:
    """Unpacks a downloaded object in place. Raises as ``unpacked`` does.

    A name that ends in ``.gz`` describes the content: of such an object only a second compression is removed.
    """
    with path.open("rb") as stream:
        if not _is_packed(stream.read(len(_MAGIC)), encoding, uri):
            return
    packed = path.rename(path.with_name(path.name + ".packed"))
    with packed.open("rb") as stored, path.open("wb") as target:
        for piece in _pieces(stored, packed.stat().st_size, uri):
            if uri.endswith(".gz") and target.tell() == 0 and not piece.startswith(_MAGIC):
                packed.rename(path)
                return
            target.write(piece)
    packed.unlink()


def refused(uri: str, actual: str, what: str, expected: str = "gzip, or no Content-Encoding") -> StageError:
    """Returns the error (65) for an object that cannot be read because of its ``Content-Encoding``."""
    return StageError(
        ExitCode.BAD_DATA, "ContentEncodingUnreadable", what, where=uri, actual=actual, expected=expected,
        fix="Upload the file again without compression: gcloud storage cp without -Z, -J and their like.",
    )  # fmt: skip


def _is_packed(first: bytes, encoding: str | None, uri: str) -> bool:
    """Whether the bytes are compressed with gzip, as declared. Bytes without gzip's mark are taken as they are."""
    declared = compression(encoding)
    if declared is None:
        return False
    if declared not in _GZIP:
        raise refused(
            uri, f"Content-Encoding: {declared}", "the object is stored in an encoding that is not read"
        )
    return first == _MAGIC


def _pieces(stored: IO[bytes], size: int, uri: str) -> Iterator[bytes]:
    limit, done = _FREE + _RATIO * size, 0
    try:
        with gzip.GzipFile(fileobj=stored) as content:
            while piece := content.read(_PIECE):
                done += len(piece)
                if done > limit:
                    raise refused(
                        uri, f"more than {limit:,} bytes from {size:,}", "the object unpacks to too much",
                        f"at most {_RATIO} bytes for each stored byte",
                    )  # fmt: skip
                yield piece
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        what = "the object is not what its Content-Encoding says"
        raise refused(uri, f"Content-Encoding: gzip, {error}", what, "complete gzip data") from error
