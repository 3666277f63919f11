"""Converted models in the cache: found, published, and verified again before they are loaded.

Preflight verifies the entry against storage and pins it by the digest of its list of files; the operator uses that
entry and no other. Train and Evaluate verify it again, because days may pass in between. Damage that they find fails
their attempt as an infrastructure fault (nothing that the user wrote is wrong). They repair nothing themselves: they
hold a slice, and their account may only read the cache. The failure names the converted model. The operator never gives
that one to a stage again, and runs Convert anew with ``use_cache`` Refresh, which writes another entry and another
manifest. Each round is charged to ``maxInfrastructureRetries``, which limits the rounds.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from finetune_contract import CacheLayout, ConversionCacheUse, ConvertManifest, ExitCode, StageRequest
from finetune_contract.failure import CONVERTED_MODEL_DAMAGED
from finetune_trainer.conversion.fingerprint import Fingerprint
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, cache_entry
from finetune_trainer.storage.cache_entry import CacheMiss, DamagedEntryError

_LOG = logging.getLogger(__name__)
#: Reason of the failure for a model that Orbax cannot read.
UNREADABLE = "ConvertedModelUnreadable"


def find(request: StageRequest, prints: Fingerprint, store: StorageClient) -> ConvertManifest | CacheMiss:
    """A conversion of the same fingerprint, complete, and proven if the request requires the proof."""
    if request.use_cache != "Use":
        return CacheMiss(because=[f"spec.cache is {request.use_cache}"])
    layout = CacheLayout(request.cache)
    found = cache_entry.manifest_at(store, layout.convert_manifest(prints.value), ConvertManifest)
    if found.version is None:
        latest = cache_entry.manifest_at(
            store, layout.convert_latest(_source(request)), ConvertManifest
        ).record
        return CacheMiss(
            because=[] if latest is None else cache_entry.changed_inputs(latest.inputs, prints.inputs)
        )
    try:
        if found.record is None:
            raise DamagedEntryError(found.fault)
        _verify(found.record, prints.value, layout, store)
    except DamagedEntryError as damage:
        _LOG.warning("the converted model at %s is not used: %s", layout.convert(prints.value), damage)
        return CacheMiss(because=[f"the entry in the cache is damaged: {damage}"], found=found.version)
    if request.export_proof and not found.record.export_proven:
        because = ["the entry in the cache was created without the export proof"]
        return CacheMiss(because=because, found=found.version)
    return found.record


def use_of(found: ConvertManifest | CacheMiss) -> ConversionCacheUse:
    """The lookup's result as preflight reports it."""
    if isinstance(found, CacheMiss):
        return ConversionCacheUse(result="Miss", miss_because=found.because)
    return ConversionCacheUse(
        result="Hit", uri=found.items, files_digest=found.files_digest, size_bytes=found.size_bytes
    )


def keep(request: StageRequest, manifest: ConvertManifest, missed: CacheMiss, store: StorageClient) -> None:
    """Publishes a complete conversion.

    ``missed`` is what ``find`` returned before it was made. A manifest that another writer has published since stays:
    this job uses its own conversion in any case.
    """
    if request.use_cache == "Off":
        return
    layout = CacheLayout(request.cache)
    address = layout.convert_manifest(manifest.fingerprint)
    if request.use_cache == "Refresh":
        store.write(address, manifest.to_json())
    else:
        cache_entry.publish(store, address, manifest.to_json(), missed.found)
    store.write(layout.convert_latest(_source(request)), manifest.to_json())


def require_whole(request: StageRequest, store: StorageClient) -> None:
    """Verifies the converted model that the request names against the list that it pins.

    Raises ``StageError`` 69, ConvertedModelDamaged, also if it is not an entry of the cache: the record that names it
    may be written by the job's own account. Neither the user's own checkpoint nor a request without a preflight pins a
    list.
    """
    if request.converted_files_digest is None or request.fingerprint is None:
        return
    items = str(request.converted)
    entry = CacheLayout(request.cache).convert_entry(request.fingerprint, items)
    try:
        if entry is None:
            raise DamagedEntryError("it is outside of its folder in the cache")
        cache_entry.verify_entry(store, entry, request.converted_files_digest)
    except DamagedEntryError as damage:
        raise _damaged(items, str(damage)) from damage


@contextmanager
def loading(request: StageRequest) -> Iterator[None]:
    """Context for loading the converted model, after it was verified.

    If it cannot be read all the same, it was lost meanwhile: raises the error of a damaged model.
    """
    try:
        yield
    except StageError as error:
        if error.reason != UNREADABLE or request.converted_files_digest is None:
            raise
        raise _damaged(str(request.converted), error.actual) from error


def _verify(manifest: ConvertManifest, fingerprint: str, layout: CacheLayout, store: StorageClient) -> None:
    entry = layout.convert_entry(fingerprint, manifest.items)
    if manifest.fingerprint != fingerprint:
        raise DamagedEntryError("its manifest has another fingerprint")
    if entry is None:
        raise DamagedEntryError("its manifest names a folder outside of its own")
    held = cache_entry.verify_entry(store, entry, manifest.files_digest)
    inside = manifest.items.removeprefix(f"{entry}/")
    if not any(name.startswith(f"{inside}/") for name in held):
        raise DamagedEntryError("its manifest names a folder that is empty")


def _source(request: StageRequest) -> str:
    return hashlib.sha256(json.dumps([request.model.address]).encode()).hexdigest()[:32]


def _damaged(items: str, actual: str) -> StageError:
    return StageError(
        ExitCode.UNAVAILABLE,
        CONVERTED_MODEL_DAMAGED,
        "the converted model is not what the Convert stage wrote",
        where=items,
        actual=actual[:300],
        expected="the files that were listed when it was complete",
        fix="No action is needed: the operator converts the model again.",
    )
