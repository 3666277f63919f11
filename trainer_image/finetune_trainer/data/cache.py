"""Sources that were read and tokenized before, by everything that decides the result."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from finetune_contract import CacheLayout, DataCacheUse, DataManifest, DatasetSource
from finetune_trainer.storage import Store, local_path, name_of

_LOG = logging.getLogger(__name__)
#: Raised when the same rows become other tokens, or the files another form.
_PREPARER = "1"
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What decides a source's tokens."""

    inputs: Mapping[str, str]
    source: str
    """A digest of its address, whatever is done with it."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()[:32]


def key_of(spec: DatasetSource, revision: str, preparer: Mapping[str, str]) -> Key:
    """``preparer``: what decides how a row becomes an example, by name."""
    hub = spec.hugging_face
    address = [hub.repo, spec.config, spec.split] if hub else [spec.uri]
    inputs = {
        "data": revision,
        "split": f"{spec.config or ''}/{spec.split}" if hub else "",
        "format": spec.format,
        "columns": json.dumps(spec.columns, sort_keys=True),
        "roleMap": json.dumps(spec.role_map, sort_keys=True),
        "maxExamples": str(spec.max_examples or "all"),
        "preparer": _PREPARER,
        **preparer,
    }
    return Key(inputs=inputs, source=hashlib.sha256(json.dumps(address).encode()).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A source's files, brought to this machine."""

    manifest: DataManifest
    tokens: Path
    index: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCache:
    """The cache as one attempt uses it. ``writes``: whether this process is the one that keeps what it has made."""

    store: Store
    layout: CacheLayout
    scratch: Path
    reads: bool
    writes: bool
    replaces: bool
    """Whether what is there gives way to what is made now."""
    uid: str
    attempt: int
    restart: int

    def find(self, key: Key) -> Stored | None:
        """What was prepared before, if it is whole."""
        if not self.reads:
            return None
        manifest = self._manifest(self.layout.data_manifest(key.fingerprint))
        if manifest is None or manifest.fingerprint != key.fingerprint:
            return None
        files = [self._whole(uri) for uri in (manifest.tokens, manifest.index)]
        if any(file is None for file in files) or self._size(manifest) != manifest.size_bytes:
            _LOG.warning("prepared data at %s is not whole and is made again", manifest.tokens)
            return None
        tokens, index = files
        assert tokens is not None
        assert index is not None
        return Stored(manifest=manifest, tokens=tokens, index=index)

    def why_missed(self, key: Key) -> list[str]:
        """Which inputs differ from those of the newest preparation of the same source; nothing for the first."""
        if not self.reads:
            return ["spec.cache is Refresh"]
        latest = self._manifest(self.layout.data_latest(key.source))
        if latest is None:
            return []
        return [
            f"{name}: {_short(latest.inputs.get(name, ''))} -> {_short(value)}"
            for name, value in sorted(key.inputs.items())
            if latest.inputs.get(name) != value
        ]

    def keep(
        self, key: Key, tokens: Path, index: Path, *, form: str, digest: str, seconds: float, now: datetime
    ) -> DataManifest | None:
        """Uploads what was prepared, the manifest last; None where this process does not."""
        if not self.writes:
            return None
        folder = self.layout.data_output(key.fingerprint, self.uid, self.attempt, self.restart)
        manifest = DataManifest(
            fingerprint=key.fingerprint,
            inputs=dict(key.inputs),
            tokens=f"{folder}/tokens.bin",
            index=f"{folder}/index.npz",
            format=form,
            digest=digest,
            size_bytes=tokens.stat().st_size + index.stat().st_size,
            seconds=round(seconds, 3),
            created=now,
        )
        self.store.upload_file(tokens, manifest.tokens)
        self.store.upload_file(index, manifest.index)
        address = self.layout.data_manifest(key.fingerprint)
        if self.replaces:
            self.store.write(address, manifest.to_json())
        elif not self.store.create(address, manifest.to_json()) and self.find(key) is None:
            self.store.write(address, manifest.to_json())  # what is there is not whole
        self.store.write(self.layout.data_latest(key.source), manifest.to_json())
        return manifest

    def _manifest(self, uri: str) -> DataManifest | None:
        found = self.store.read_or_none(uri)
        try:
            return None if found is None else DataManifest.model_validate_json(found)
        except ValidationError:
            return None  # of another version

    def _whole(self, uri: str) -> Path | None:
        """The file on this machine."""
        path = local_path(uri)
        if path is not None:
            return path if path.is_file() else None
        if not self.store.exists(uri):
            return None
        target = self.scratch / hashlib.sha256(uri.encode()).hexdigest()[:16] / name_of(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        return self.store.fetch_file(uri, target)

    def _size(self, manifest: DataManifest) -> int:
        found = [self.store.stat(uri) for uri in (manifest.tokens, manifest.index)]
        return sum(entry.size for entry in found if entry is not None)


def miss_of(spec: DatasetSource, key: Key, reasons: list[str], kept: DataManifest | None) -> DataCacheUse:
    """A miss, as it is told."""
    return DataCacheUse(
        path=spec.path,
        result="Miss",
        fingerprint=key.fingerprint,
        uri=kept.tokens if kept else None,
        size_bytes=kept.size_bytes if kept else 0,
        miss_because=reasons,
    )


def hit_of(spec: DatasetSource, stored: Stored) -> DataCacheUse:
    """A hit, as it is told."""
    manifest = stored.manifest
    return DataCacheUse(
        path=spec.path,
        result="Hit",
        fingerprint=manifest.fingerprint,
        uri=manifest.tokens,
        size_bytes=manifest.size_bytes,
        saved_seconds=manifest.seconds,
    )


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
