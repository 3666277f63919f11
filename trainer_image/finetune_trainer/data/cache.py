"""Cache of tokenized sources, keyed by everything that determines the tokens."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from finetune_contract import CacheLayout, DataCacheUse, DataManifest, DatasetSpec, ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, cache_entry, local_path
from finetune_trainer.storage.cache_entry import CacheMiss, DamagedEntryError
from finetune_trainer.storage.contents import Held

_LOG = logging.getLogger(__name__)
#: Version of the preparation. Incremented when the same rows yield other tokens or the file format changes.
_PREPARER = "7"
_TOKENS, _INDEX = "tokens.bin", "index.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCacheKey:
    """Everything that determines a source's tokens, by name."""

    inputs: Mapping[str, str]
    source: str
    """Digest of the source's address alone."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()[:32]


def key_of(spec: DatasetSpec, revision: str, preparer: Mapping[str, str]) -> DataCacheKey:
    """Returns the key of a source. ``preparer`` is what determines how a row becomes an example, by name."""
    hub = spec.hugging_face
    address = [hub.repo, spec.config, spec.split] if hub else [spec.uri]
    inputs = {
        "data": revision,
        "split": f"{spec.config or ''}/{spec.split}" if hub else "",
        "format": spec.format,
        "columns": json.dumps(spec.columns, sort_keys=True),
        "ignore": json.dumps(sorted(spec.ignore)),
        "separator": spec.separator or "",
        "roleMap": json.dumps(spec.role_map, sort_keys=True),
        "maxExamples": str(spec.max_examples or "all"),
        "preparer": _PREPARER,
        **preparer,
    }
    return DataCacheKey(inputs=inputs, source=hashlib.sha256(json.dumps(address).encode()).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSource:
    manifest: DataManifest
    tokens: Path
    index: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCache:
    """The cache as used by one attempt. ``writes`` is true for the one process that stores its results."""

    store: StorageClient
    layout: CacheLayout
    scratch: Path
    reads: bool
    writes: bool
    replaces: bool
    """Whether new results replace an existing entry."""
    uid: str
    attempt: int
    restart: int
    run: str | None = None
    """Distinguishes this run of the attempt from others."""

    def find(self, key: DataCacheKey) -> CachedSource | CacheMiss:
        """Returns the cached source, or the reasons of a miss. A source with changed files counts as a miss."""
        if not self.reads:
            return CacheMiss(because=["spec.cache is Refresh"])
        found = cache_entry.manifest_at(self.store, self.layout.data_manifest(key.fingerprint), DataManifest)
        if found.version is None:
            return CacheMiss(because=self._differing(key))
        try:
            if found.record is None:
                raise DamagedEntryError(found.fault)
            return self._fetched(found.record, key)
        except DamagedEntryError as damage:
            _LOG.warning(
                "the prepared data at %s is not used and is prepared again: %s",
                self.layout.data(key.fingerprint), damage,
            )  # fmt: skip
            return CacheMiss(because=[f"the entry in the cache is damaged: {damage}"], found=found.version)

    def keep(
        self,
        key: DataCacheKey,
        tokens: Path,
        index: Path,
        *,
        missed: CacheMiss,
        form: str,
        digest: str,
        seconds: float,
        now: datetime,
    ) -> DataManifest | None:
        """Uploads a prepared source, the manifest last, and returns the manifest; None if this process does not write.

        ``missed`` is the result of ``find``. A manifest that another writer has stored since is kept, unless
        ``replaces`` is set.
        """
        if not self.writes:
            return None
        folder = self.layout.data_output(key.fingerprint, self.uid, self.attempt, self.restart, self.run)
        uris = {name: f"{folder}/{name}" for name in (_TOKENS, _INDEX)}
        self.store.upload_file(tokens, uris[_TOKENS])
        self.store.upload_file(index, uris[_INDEX])
        manifest = DataManifest(
            fingerprint=key.fingerprint,
            inputs=dict(key.inputs),
            tokens=uris[_TOKENS],
            index=uris[_INDEX],
            format=form,
            digest=digest,
            size_bytes=tokens.stat().st_size + index.stat().st_size,
            seconds=round(seconds, 3),
            created=now,
            files_digest=cache_entry.write_file_list(self.store, folder),
        )
        address = self.layout.data_manifest(key.fingerprint)
        if self.replaces:
            self.store.write(address, manifest.to_json())
        else:
            cache_entry.publish(self.store, address, manifest.to_json(), missed.found)
        self.store.write(self.layout.data_latest(key.source), manifest.to_json())
        return manifest

    def _differing(self, key: DataCacheKey) -> list[str]:
        latest = cache_entry.manifest_at(self.store, self.layout.data_latest(key.source), DataManifest).record
        return [] if latest is None else cache_entry.changed_inputs(latest.inputs, key.inputs)

    def _fetched(self, manifest: DataManifest, key: DataCacheKey) -> CachedSource:
        """Returns the entry's files. Raises ``DamagedEntryError`` if they do not match the manifest."""
        entry = self.layout.data_entry(key.fingerprint, manifest.tokens)
        if manifest.fingerprint != key.fingerprint:
            raise DamagedEntryError("its manifest has another fingerprint")
        if entry is None or (manifest.tokens, manifest.index) != (f"{entry}/{_TOKENS}", f"{entry}/{_INDEX}"):
            raise DamagedEntryError("its manifest names files outside of its folder")
        held = cache_entry.verify_entry(self.store, entry, manifest.files_digest)
        if held.keys() != {_TOKENS, _INDEX}:
            raise DamagedEntryError("it contains other files than tokens and index")
        return CachedSource(
            manifest=manifest,
            tokens=self._local(entry, _TOKENS, held),
            index=self._local(entry, _INDEX, held),
        )

    def _local(self, entry: str, name: str, held: Held) -> Path:
        """Returns the local file, downloaded at the listed generation if the cache is in a bucket."""
        uri = f"{entry}/{name}"
        path = local_path(uri)
        if path is not None:
            return path
        target = self.scratch / hashlib.sha256(uri.encode()).hexdigest()[:16] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self.store.fetch_file(uri, target, generation=str(held[name][2]))
        except StageError as error:
            if error.code is ExitCode.INPUT_MISSING:
                raise DamagedEntryError(f"{name} was replaced or deleted while it was read") from error
            raise


def use_of(
    spec: DatasetSpec, key: DataCacheKey, manifest: DataManifest | None, missed: CacheMiss | None = None
) -> DataCacheUse:
    """Returns the report of the cache's use: a miss, or a hit if ``missed`` is None.

    ``manifest`` is that of the entry; None if none was stored.
    """
    return DataCacheUse(
        path=spec.path,
        result="Miss" if missed else "Hit",
        fingerprint=key.fingerprint,
        uri=manifest.tokens if manifest else None,
        size_bytes=manifest.size_bytes if manifest else 0,
        saved_seconds=manifest.seconds if manifest and not missed else 0.0,
        miss_because=missed.because if missed else [],
    )
