"""Entries of the cache: listed when complete, compared before they are used, replaced where they are damaged.

Every run of an attempt writes an entry of its own, so two writers never mix their files, and no writer changes or
deletes what another has written. The list beside an entry names every file with size, CRC32C and generation; the
manifest holds the sha256 of that list. The manifest alone decides which entry counts. It is created where there is
none, and replaced where the one that was found is not usable, on the condition that it still is the one that was found:
of two writers that find the same damage the first wins, and the entry of the other is whole as well, only not named.

This finds what was lost or changed, and manifests that point elsewhere. It does not find a false entry that is
complete, with its list and its manifest: whoever may write to a cache is trusted by all that use it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from finetune_contract.base import Record
from finetune_contract.layout import file_list
from finetune_trainer.storage import StorageClient
from finetune_trainer.storage.contents import Held, first_added, first_changed, folder_contents

#: Of a manifest; of a list of files, some 300,000 of them.
_MOST_BYTES, _MOST_LIST_BYTES = 1 << 20, 64 << 20
#: Of a value in a reason.
_SHOWN = 60


class DamagedEntryError(Exception):
    """The entry is not what its manifest was written for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """Nothing in the cache can be used."""

    because: list[str]
    """What differs, or what is wrong; nothing for what was never made before."""
    found: str | None = None
    """The version of the manifest that is not usable; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLookup[Kind: BaseModel]:
    """What lies at a manifest's address."""

    record: Kind | None
    """None: there is none, or it cannot be read."""
    version: str | None
    """None: there is none."""
    fault: str = ""
    """Why it cannot be read."""


class _Files(Record):
    files: dict[str, tuple[int, str] | tuple[int, str, str]]


def write_file_list(store: StorageClient, entry: str) -> str:
    """Writes the list of the files of a complete entry. Returns its sha256."""
    listed = _Files.model_validate({"files": folder_contents(store, entry)}).to_json().encode()
    store.write(file_list(entry), listed)
    return hashlib.sha256(listed).hexdigest()


def verify_entry(store: StorageClient, entry: str, files_digest: str | None) -> Held:
    """What the entry holds, file by file as when it was listed. Raises ``DamagedEntryError``."""
    if files_digest is None:
        raise DamagedEntryError("it has no list of its files, as those of earlier releases")
    current = store.read_current(file_list(entry), limit=_MOST_LIST_BYTES)
    if current is None:
        raise DamagedEntryError("the list of its files is missing")
    if current.content is None or hashlib.sha256(current.content).hexdigest() != files_digest:
        raise DamagedEntryError("the list of its files has changed")
    try:
        recorded = _Files.model_validate_json(current.content).files
    except ValidationError as error:
        raise DamagedEntryError("the list of its files cannot be read") from error
    found = folder_contents(store, entry, most=len(recorded) + 1)
    difference = first_added(recorded, found) or first_changed(recorded, found)
    if difference is not None:
        raise DamagedEntryError(difference)
    return found


def manifest_at[Kind: BaseModel](store: StorageClient, uri: str, kind: type[Kind]) -> ManifestLookup[Kind]:
    """Anything but a readable manifest of at most 1 MiB is a fault, not an error: whoever may write to the cache may
    have left it."""
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
    """Writes the manifest where there is none, or in place of the version that was ``found``. False: another writer was
    first, and its manifest stays."""
    if found is None:
        return store.create(uri, manifest)
    return store.replace(uri, manifest, version=found)


def changed_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The inputs that differ from those of the newest entry of the same source."""
    return [
        f"{name}: {_short(before.get(name, ''))} -> {_short(value)}"
        for name, value in sorted(now.items())
        if before.get(name) != value
    ] or ["the last entry is not in the cache any more"]


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
