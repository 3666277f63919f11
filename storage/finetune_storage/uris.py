"""URIs of files and folders: ``gs://bucket/key`` and ``file:///path``. Names stand for themselves: none is quoted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from finetune_storage.errors import InvalidUri


@dataclass(frozen=True, slots=True)
class BucketPath:
    """An object or folder in a bucket."""

    bucket: str
    key: str
    """Object name without leading or trailing slash; empty for the bucket itself."""


def parse(uri: str) -> BucketPath | Path:
    """Returns bucket and key, or an absolute local path. Trailing slashes are ignored.

    Raises InvalidUri for other schemes, for ``.`` and ``..``, and for an empty name between two slashes, below which a
    name would be an absolute path.
    """
    kind, _, rest = uri.partition("://")
    names = rest.rstrip("/").split("/")
    if kind == "gs" and names[0] and _are_plain(names):
        return BucketPath(names[0], "/".join(names[1:]))
    if kind == "file" and not names[0] and _are_plain(names[1:]):
        return Path("/", *names[1:])
    raise InvalidUri(uri)


def bucket_path(uri: str) -> BucketPath:
    """Parses a ``gs://`` URI. Raises InvalidUri for any other."""
    address = parse(uri)
    if isinstance(address, Path):
        raise InvalidUri(uri)
    return address


def file_path(uri: str) -> Path:
    """Parses a ``file://`` URI. Raises InvalidUri for any other."""
    address = parse(uri)
    if not isinstance(address, Path):
        raise InvalidUri(uri)
    return address


def is_inside(name: str) -> bool:
    """Whether a relative name from a listing or a file stays inside its folder on every kind of storage."""
    return _are_plain(name.split("/"))


def _are_plain(names: Sequence[str]) -> bool:
    return {"", ".", ".."}.isdisjoint(names) and not any("\0" in name for name in names)


def join(uri: str, *parts: str) -> str:
    """Returns ``uri`` extended by ``parts``."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])


def name_of(uri: str) -> str:
    """Returns the last component of a URI."""
    return PurePosixPath(uri).name
