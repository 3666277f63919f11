"""Addresses of files and folders: ``gs://bucket/key`` and ``file:///path``."""

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
    """A bucket and key, or an absolute local path. Raises ``StageError`` 64 for anything else, and for a way out of the
    folder that the text names."""
    climbs = not {".", ".."}.isdisjoint(uri.split("/"))
    if uri.startswith("gs://") and not climbs:
        bucket, _, key = uri.removeprefix("gs://").partition("/")
        if bucket:
            return GcsAddress(bucket, key.strip("/"))
    elif uri.startswith("file:///") and not climbs:
        return Path(uri.removeprefix("file://"))
    raise StageError(
        ExitCode.BAD_REQUEST,
        "InvalidUri",
        "this is no address the trainer can reach",
        saw=repr(uri),
        expected="gs://bucket/path or file:///path, without '.' and '..'",
        fix="Correct the URI.",
    )


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
