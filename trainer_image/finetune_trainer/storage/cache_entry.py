"""Entries of the cache: listed when complete, verified before use, replaced when damaged.

Every run of an attempt writes its own entry, so two writers never mix their files, and no writer changes or deletes
what another has written. The list beside an entry names every file with size, CRC32C and generation; the manifest holds
the sha256 of that list. The manifest alone decides which entry counts. It is created where there is none. An unusable
one is replaced, on the condition that it has not changed since it was read: of two writers that find the same damage
the first wins, and the entry of the other is complete as well, only not referenced.

This detects lost or changed files, and manifests that point elsewhere. It does not detect a forged entry that is
complete, with its list and its manifest: all users of a cache trust everyone who may write to it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from finetune_contract.base import Record
from finetune_contract.layout import file_list
from finetune_trainer.storage import StorageClient
from finetune_trainer.storage.contents import Held, first_added, first_changed, folder_contents

#: Largest size in bytes of a manifest, and of a list of files (some 300,000 of them).
_MOST_BYTES, _MOST_LIST_BYTES = 1 << 20, 64 << 20
#: Most characters of a value in a reason.
_SHOWN = 60


class DamagedEntryError(Exception):
    """The entry is not the one that its manifest describes; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """The cache has no usable entry."""

    because: list[str]
    """What differs, or what is wrong; empty if the source was never cached before."""
    found: str | None = None
    """Version of the unusable manifest; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLookup[Kind: BaseModel]:
    """The result of reading a manifest."""

    record: Kind | None
    """None if there is no manifest, or it cannot be read."""
    version: str | None
    """None if there is no manifest."""
    fault: str = ""
    """Why the manifest cannot be read; empty if it can."""


class _Files(Record):
    files: dict[str, tuple[int, str] | tuple[int, str, str]]


def write_file_list(store: StorageClient, entry: str) -> str:
    """Writes the list of a complete entry's files. Returns its sha256."""
    listed = _Files.model_validate({"files": folder_contents(store, entry)}).to_json().encode()
    store.write(file_list(entry), listed)
    return hashlib.sha256(listed).hexdigest()


def verify_entry(store: StorageClient, entry: str, files_digest: str) -> Held:
    """Returns the files of the folder ``entry``, verified against the list beside it. Downloads only the list.

    ``files_digest`` is the sha256 of the list that the manifest holds. Raises ``DamagedEntryError`` if list or files
    differ.
    """
    current = store.read_current(file_list(entry), limit=_MOST_LIST_BYTES)
    if current is None:
        raise DamagedEntryError("the list of its files is missing")
    if current.content is None or hashlib.sha256(current.content).hexdigest() != files_digest:
        raise DamagedEntryError("the list of its files has changed")
    try:
        recorded = _Files.model_validate_json(current.content).files
    except ValidationError as error:
        raise DamagedEntryError("the list of its files cannot be read") from error
    # One more than recorded is enough to find an added file, however many there are.
    found = folder_contents(store, entry, most=len(recorded) + 1)
    difference = first_added(recorded, found) or first_changed(recorded, found)
    if difference is not None:
        raise DamagedEntryError(difference)
    return found


def manifest_at[Kind: BaseModel](store: StorageClient, uri: str, kind: type[Kind]) -> ManifestLookup[Kind]:
    """Reads a manifest.

    Anything but a readable manifest of at most 1 MiB is a fault in the result, not an error: anyone who may write to
    the cache may have left it.
    """
    current = store.read_current(uri, limit=_MOST_BYTES)
    if current is None:
        return ManifestLookup(record=None, version=None)
    if current.content is None:
        return ManifestLookup(
            record=None, version=current.version, fault=f"its manifest has more than {_MOST_BYTES} bytes"
        )
    try:
        return ManifestLookup(record=kind.model_validate_json(current.content), version=current.version)
    except ValidationError:
        return ManifestLookup(record=None, version=current.version, fault="its manifest cannot be read")


def publish(store: StorageClient, uri: str, manifest: str, found: str | None) -> bool:
    """Writes the manifest if there is none, or in place of the version ``found``.

    Returns False if another writer was first; its manifest stays.
    """
    if found is None:
        return store.create(uri, manifest)
    return store.replace(uri, manifest, version=found)


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The inputs that differ from those of the newest entry of the same source."""
    return [
        f"{name}: {_short(before.get(name, ''))} -> {_short(value)}"
        for name, value in sorted(now.items())
        if before.get(name) != value
    ] or ["the last entry is no longer in the cache"]


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
