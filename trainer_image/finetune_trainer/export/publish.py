"""Puts a finished folder where it belongs, so that an interrupted upload never looks whole.

Order: a marker that says which job uploads, with the names of its files and of an older model's; the older model's
manifest and config removed; all files; config; manifest; what the older model had and this one has not; the marker.
Before config and before the manifest, what lies there is compared with what was uploaded. Only what a manifest or this
job's marker names is ours; other files are never touched.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.export import marker
from finetune_trainer.export.folder import write_json
from finetune_trainer.export.marker import MARKER, UploadOwner
from finetune_trainer.storage import StorageClient, join

MANIFEST = "manifest.json"
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
_PARALLEL = 8
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


def publish(folder: Path, uri: str, kind: Kind, store: StorageClient, owner: UploadOwner) -> Published:
    """Uploads ``folder`` (which has its manifest) to ``uri``; replaces a model of ours that lies there.

    Raises ``StageError`` 64 when other people's files lie there, and no model of ours, or one of them has the name of a
    file of this model; when another job uploads there; and when what lies there in the end is not what was uploaded.
    """
    manifest = (folder / MANIFEST).read_bytes()
    new = {entry["path"] for entry in json.loads(manifest)["files"]} | {MANIFEST}
    before = marker.interrupted(uri, owner, store)
    old = _ours(uri, before, store, new)
    claim = marker.Claim(uri, owner, frozenset(old | new), before, store)
    for name in (MANIFEST, *_CONFIG.values()):
        if name in old:
            store.delete(join(uri, name))
    config = _CONFIG[kind]
    store.upload_folder(folder, uri, skip=(config, MANIFEST))
    _require_uploaded(folder, uri, new - {config, MANIFEST}, store)
    for name in (each for each in (config, MANIFEST) if each in new):
        claim.require()
        store.upload_file(folder / name, join(uri, name))
        _require_uploaded(folder, uri, {name}, store)
    claim.require()
    for name in sorted(old - new):
        store.delete(join(uri, name))
    claim.release()
    return Published(
        kind=kind,
        uri=uri,
        digest=f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        size_bytes=sum(entry["size"] for entry in json.loads(manifest)["files"]),
    )


def _require_uploaded(folder: Path, uri: str, names: Iterable[str], store: StorageClient) -> None:
    """That these files lie at ``uri`` as in ``folder``, by size and CRC32C."""

    def is_there(name: str) -> bool:
        here, there = store.stat(f"file://{folder.resolve() / name}"), store.stat(join(uri, name))
        return (
            here is not None and there is not None and (here.size, here.crc32c) == (there.size, there.crc32c)
        )

    ordered = sorted(names)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        changed = [name for name, same in zip(ordered, pool.map(is_there, ordered), strict=True) if not same]
    if changed:
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationChanged", "files changed at the destination while it was uploaded to",
            where=uri, saw=f"other content of {', '.join(changed[:3])}", expected="the files as they were uploaded",
            fix="Let nothing else write there, and retry from Export.",
        )  # fmt: skip


def require_ours(uri: str, store: StorageClient, owner: UploadOwner) -> None:
    """Raises ``StageError`` 64 where ``owner`` could not export to: another job uploads there, or only others' files
    lie there."""
    _ours(uri, marker.interrupted(uri, owner, store), store)


def _ours(
    uri: str, before: marker.InterruptedUpload | None, store: StorageClient, new: Iterable[str] = ()
) -> set[str]:
    """Names of an earlier model's or unfinished upload's files that lie there. Raises ``StageError`` 64 where only
    others' files lie there, or one of them has a name of ``new``."""
    present = _names(store.entries(uri), uri)
    manifest = listed_files(store.read_or_none(join(uri, MANIFEST)) or b"") if MANIFEST in present else None
    ours = {MANIFEST, *manifest} if manifest is not None else set()
    if before is not None:
        ours |= before.names
    others = present - ours
    if manifest is not None or before is not None:
        others &= set(new)
    if others:
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationNotEmpty", "the destination holds files that are not an exported model",
            where=uri, saw=", ".join(sorted(others)[:3]), expected="an empty folder or an earlier export",
            fix="Choose another destination, or empty this one.",
        )  # fmt: skip
    return present & ours


def listed_files(manifest: bytes) -> set[str] | None:
    """Names that a manifest of ours lists; None for any other file."""
    try:
        listed = json.loads(manifest)
        return {str(entry["path"]) for entry in listed["files"]} if listed.get("format") == _FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _names(entries: Iterable[object], uri: str) -> set[str]:
    prefix = uri.rstrip("/") + "/"
    names = {str(getattr(entry, "uri", "")).removeprefix(prefix) for entry in entries}
    return {name for name in names if name != MARKER and not name.startswith(PROBE)}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
