"""Addresses of files and folders: ``gs://bucket/key`` and ``file:///path``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class GcsAddress:
    bucket: str
    key: str
    """Without leading or trailing slash; empty for the bucket itself."""


def parse(uri: str) -> GcsAddress | Path:
    """A bucket and key, or an absolute local path; slashes at the end mean nothing. Raises ``StageError`` 64 for
    anything else, for a way out of the folder that the text names, and for an empty name between two slashes: what lies
    below it would be an absolute path."""
    kind, _, rest = uri.partition("://")
    names = rest.rstrip("/").split("/")
    if kind == "gs" and names[0] and _are_plain(names):
        return GcsAddress(names[0], "/".join(names[1:]))
    if kind == "file" and not names[0] and _are_plain(names[1:]):
        return Path("/", *names[1:])
    raise StageError(
        ExitCode.BAD_REQUEST,
        "InvalidUri",
        "this is no address the trainer can reach",
        saw=repr(uri),
        expected="gs://bucket/path or file:///path, without empty names, '.' and '..'",
        fix="Correct the URI.",
    )


def is_inside(name: str) -> bool:
    """Whether a name below a folder, as a listing or a file gives it, stays there on any kind of storage."""
    return _are_plain(name.split("/"))


def _are_plain(names: Sequence[str]) -> bool:
    return {"", ".", ".."}.isdisjoint(names) and not any("\0" in name for name in names)


def join(uri: str, *parts: str) -> str:
    """``uri`` with ``parts`` below it."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])


def name_of(uri: str) -> str:
    return PurePosixPath(uri).name


def fixed_prefix(pattern: str) -> str:
    """The folder part of a glob before its first wildcard; the pattern's own folder when it has none."""
    head: list[str] = []
    for part in pattern.split("/")[:-1]:
        if _MAGIC & set(part):
            break
        head.append(part)
    return "/".join(head)


def has_wildcard(uri: str) -> bool:
    return bool(_MAGIC & set(uri))
