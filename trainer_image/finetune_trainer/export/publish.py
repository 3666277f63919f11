"""Puts a finished folder where it belongs, so that an interrupted upload never looks whole.

Order: a marker that says an upload is under way; an older model's manifest and config removed; all files; config;
manifest; what the older model had and this one has not; the marker. Files that are not ours are never touched.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.export.folder import write_json
from finetune_trainer.storage import Store, join

MANIFEST = "manifest.json"
MARKER = ".upload-in-progress.json"
#: How the files begin that preflight writes to see whether Export can; each lives for a moment.
PROBE = ".finetune-probe-"
Content = Literal["Merged", "Adapter", "Both"]
Kind = Literal["HuggingFace", "Adapter", "OrbaxParams"]
#: The file without which nothing loads the folder.
_CONFIG = {
    "HuggingFace": "config.json",
    "Adapter": "adapter_config.json",
    "OrbaxParams": "items/_METADATA",
}
_FORMAT = "tpu-finetune.dev/model-manifest/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    kind: Kind
    uri: str
    digest: str
    """``sha256:`` of the manifest, which holds every file's."""
    size_bytes: int


def folder_names(content: Content, *, orbax: bool) -> tuple[str, ...]:
    """What an export makes, by name; the most important first."""
    names = {"Merged": ("model",), "Adapter": ("adapter",), "Both": ("model", "adapter")}[content]
    return (*names, "orbax") if orbax else names


def places(names: Sequence[str]) -> Mapping[str, str]:
    """Where each lies at a destination: the first there itself, the others below it, with a slash."""
    return {name: f"{name}/" if i else "" for i, name in enumerate(names)}


def write_manifest(folder: Path, kind: Kind) -> None:
    """``manifest.json`` with path, size and SHA-256 of every other file; the same files give the same bytes."""
    files = [
        {"path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    ]
    write_json(folder / MANIFEST, {"format": _FORMAT, "kind": kind, "files": files})
    (folder / MANIFEST).chmod(0o644)


def publish(folder: Path, uri: str, kind: Kind, store: Store) -> Published:
    """Uploads ``folder`` (which has its manifest) to ``uri``; replaces a model of ours that lies there.

    Raises ``StageError`` 64 when other people's files lie there.
    """
    manifest = (folder / MANIFEST).read_bytes()
    old = require_ours(uri, store)
    store.write(join(uri, MARKER), json.dumps({"format": _FORMAT}))
    config = _CONFIG[kind]
    for name in (MANIFEST, *_CONFIG.values()):
        store.delete(join(uri, name))
    store.upload_folder(folder, uri, last=(config, MANIFEST))
    new = {entry["path"] for entry in json.loads(manifest)["files"]} | {MANIFEST}
    for name in sorted(old - new - {MARKER}):
        store.delete(join(uri, name))
    store.delete(join(uri, MARKER))
    return Published(
        kind=kind,
        uri=uri,
        digest=f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        size_bytes=sum(entry["size"] for entry in json.loads(manifest)["files"]),
    )


def require_ours(uri: str, store: Store) -> set[str]:
    """Names of an earlier model's or unfinished upload's files. Raises ``StageError`` 64 for a folder with others."""
    present = _names(store.entries(uri), uri)
    if not present or MARKER in present:
        return present
    ours = listed_files(store.read_or_none(join(uri, MANIFEST)) or b"{}")
    if ours is None:
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationNotEmpty", "the destination holds files that are not an exported model",
            where=uri, saw=", ".join(sorted(present)[:3]), expected="an empty folder or an earlier export",
            fix="Choose another destination, or empty this one.",
        )  # fmt: skip
    return ours


def listed_files(manifest: bytes) -> set[str] | None:
    """Names that a manifest of ours lists; None for any other file."""
    try:
        listed = json.loads(manifest)
        return {entry["path"] for entry in listed["files"]} if listed.get("format") == _FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _names(entries: Iterable[object], uri: str) -> set[str]:
    prefix = uri.rstrip("/") + "/"
    names = {str(getattr(entry, "uri", "")).removeprefix(prefix) for entry in entries}
    return {name for name in names if not name.startswith(PROBE)}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
