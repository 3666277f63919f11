"""Uploads a finished folder to its destination, so that an interrupted upload never looks complete.

Steps, in this order:

1. Write a marker that names the job, its files and those of an older model at the destination.
2. Delete the older model's manifest and config.
3. Upload all files except config and manifest, then the config, then the manifest. Compare each group with its source
   before continuing with the next.
4. Delete the older model's remaining files, then the marker.

Only files that a manifest or this job's marker names belong to an export; other files are never modified.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints.folder import write_json
from finetune_trainer.errors import StageError
from finetune_trainer.export import marker
from finetune_trainer.export.marker import MARKER, UploadOwner
from finetune_trainer.process.stage_progress import ignore
from finetune_trainer.storage import StorageClient, join

MANIFEST = "manifest.json"
#: Name prefix of the short-lived files with which preflight tests whether Export can write.
PROBE = ".finetune-probe-"
Content = Literal["Merged", "Adapter", "Both"]
Kind = Literal["HuggingFace", "Adapter", "OrbaxParams"]
#: The file that every program needs to load a folder of this kind.
_CONFIG = {
    "HuggingFace": "config.json",
    "Adapter": "adapter_config.json",
    "OrbaxParams": "items/_METADATA",
}
_PARALLEL = 8
_FORMAT = "tpu-finetune.dev/model-manifest/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A folder that was uploaded to a destination. ``size_bytes`` is the size of all files except the manifest."""

    kind: Kind
    uri: str
    digest: str
    """``sha256:`` digest of the manifest, which contains every file's digest."""
    size_bytes: int


def folder_names(content: Content, *, orbax: bool) -> tuple[str, ...]:
    """Returns the names of the folders that an export writes, the most important first."""
    names = {"Merged": ("model",), "Adapter": ("adapter",), "Both": ("model", "adapter")}[content]
    return (*names, "orbax") if orbax else names


def places(names: Sequence[str]) -> Mapping[str, str]:
    """Returns each folder's prefix at a destination: empty for the first, ``name/`` for the others."""
    return {name: f"{name}/" if i else "" for i, name in enumerate(names)}


def write_manifest(folder: Path, kind: Kind) -> None:
    """Writes ``manifest.json`` with path, size and SHA-256 of every other file. Deterministic for the same files."""
    files = [
        {"path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    ]
    write_json(folder / MANIFEST, {"format": _FORMAT, "kind": kind, "files": files})
    (folder / MANIFEST).chmod(0o644)


def publish(  # noqa: PLR0917
    folder: Path,
    uri: str,
    kind: Kind,
    store: StorageClient,
    owner: UploadOwner,
    uploaded: Callable[[int], None] = ignore,
) -> Published:
    """Uploads ``folder``, which contains its manifest, to ``uri`` and replaces an earlier export there.

    ``uploaded`` is called with the size of each file in bytes.

    Raises ``StageError`` 64 if the destination contains unrelated files but no earlier export, or an unrelated file
    with the name of one of this model's; if another job uploads there; and if the files at the destination differ from
    the uploaded ones.
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
    store.upload_folder(folder, uri, skip=(config, MANIFEST), uploaded=uploaded)
    _require_uploaded(folder, uri, new - {config, MANIFEST}, store)
    for name in (each for each in (config, MANIFEST) if each in new):
        claim.require()
        store.upload_file(folder / name, join(uri, name))
        _require_uploaded(folder, uri, {name}, store)
        uploaded((folder / name).stat().st_size)
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
    """Raises ``StageError`` 64 if size or CRC32C of these files at ``uri`` differ from those in ``folder``."""

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
            ExitCode.BAD_REQUEST, "DestinationChanged", "files at the destination changed during the upload",
            where=uri, actual=f"other content of {', '.join(changed[:3])}", expected="the files as they were uploaded",
            fix="Make sure that nothing else writes there, and retry from Export.",
        )  # fmt: skip


def require_ours(uri: str, store: StorageClient, owner: UploadOwner) -> None:
    """Raises ``StageError`` 64 if ``owner`` could not export to ``uri``.

    That is the case if another job uploads there, or if there are only unrelated files.
    """
    _ours(uri, marker.interrupted(uri, owner, store), store)


def _ours(
    uri: str, before: marker.InterruptedUpload | None, store: StorageClient, new: Iterable[str] = ()
) -> set[str]:
    """Returns the names of an earlier export's or unfinished upload's files at ``uri``.

    Raises ``StageError`` 64 if there are only unrelated files, or if one of them has a name in ``new``.
    """
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
            ExitCode.BAD_REQUEST, "DestinationNotEmpty",
            "the destination contains files that are not an exported model",
            where=uri, actual=", ".join(sorted(others)[:3]), expected="an empty folder or an earlier export",
            fix="Choose another destination, or empty this one.",
        )  # fmt: skip
    return present & ours


def listed_files(manifest: bytes) -> set[str] | None:
    """Returns the names in an export's manifest; None if the file is not one."""
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
