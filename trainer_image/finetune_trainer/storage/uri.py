"""URIs of files and folders: ``gs://bucket/key`` and ``file:///path``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class GcsAddress:
    """An object or folder in a bucket."""

    bucket: str
    key: str
    """Object name without leading or trailing slash; empty for the bucket itself."""


def parse(uri: str) -> GcsAddress | Path:
    """Returns bucket and key, or an absolute local path. Trailing slashes are ignored.

    Raises ``StageError`` 64 for other schemes, for ``.`` and ``..``, and for an empty name between two slashes, below
    which a name would be an absolute path.
    """
    kind, _, rest = uri.partition("://")
    names = rest.rstrip("/").split("/")
    if kind == "gs" and names[0] and _are_plain(names):
        return GcsAddress(names[0], "/".join(names[1:]))
    if kind == "file" and not names[0] and _are_plain(names[1:]):
        return Path("/", *names[1:])
    raise StageError(
        ExitCode.BAD_REQUEST,
        "InvalidUri",
        "the trainer cannot read this URI",
        actual=repr(uri),
        expected="gs://bucket/path or file:///path, without empty names, '.' and '..'",
        fix="Correct the URI.",
    )


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


def fixed_prefix(pattern: str) -> str:
    """Returns the folders of a glob pattern before its first wildcard; the pattern's parent folder if it has none."""
    head: list[str] = []
    for part in pattern.split("/")[:-1]:
        if _MAGIC & set(part):
            break
        head.append(part)
    return "/".join(head)


def has_wildcard(uri: str) -> bool:
    """Whether a URI is a glob pattern."""
    return bool(_MAGIC & set(uri))
