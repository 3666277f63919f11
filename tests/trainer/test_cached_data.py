"""Prepared data in the cache is used only if its files are unchanged, even if other clients write to the cache."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import CacheLayout, DataManifest
from finetune_trainer.data.cache import CachedSource, DataCache, DataCacheKey
from finetune_trainer.storage import StorageClient, cache_entry, open_store
from finetune_trainer.storage.cache_entry import CacheMiss

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = DataCacheKey(inputs={"data": "1"}, source="0" * 32)
TOKENS, INDEX = b"tokens" * 100, b"index"


@pytest.fixture
def store() -> StorageClient:
    return open_store()


def why(found: object) -> str:
    assert isinstance(found, CacheMiss), found
    return " ".join(found.because)


@pytest.fixture
def cached(store: StorageClient, root: str, tmp_path: Path) -> Callable[..., DataCache]:
    def cache(run: str = "a", **changes: Any) -> DataCache:
        fields: dict[str, Any] = {
            "store": store, "layout": CacheLayout(root), "scratch": tmp_path / f"scratch-{run}", "reads": True,
            "writes": True, "replaces": False, "uid": "0123456789", "attempt": 1, "restart": 0, "run": run, **changes,
        }  # fmt: skip
        return DataCache(**fields)

    return cache


def prepare(cache: DataCache, folder: Path) -> DataManifest:
    missed = cache.find(KEY)
    assert isinstance(missed, CacheMiss)
    (folder / "t").write_bytes(TOKENS)
    (folder / "i").write_bytes(INDEX)
    kept = cache.keep(
        KEY, folder / "t", folder / "i", missed=missed, form="Text", digest="d", seconds=1.0, now=NOW
    )
    assert kept is not None
    return kept


def data_entry(manifest: DataManifest) -> str:
    return manifest.tokens.removesuffix("/tokens.bin")


def rewrite_data(**changes: str) -> Callable[[StorageClient, DataManifest], None]:
    def poison(store: StorageClient, manifest: DataManifest) -> None:
        folder = data_entry(manifest).rpartition("/")[0]
        told = {name: value.format(folder=folder) for name, value in changes.items()}
        store.write(f"{folder}/manifest.json", manifest.model_copy(update=told).to_json())

    return poison


DATA_POISONS: dict[str, tuple[Callable[[StorageClient, DataManifest], None], str]] = {
    "a byte of the tokens": (lambda s, m: s.write(m.tokens, b"Tokens" * 100), "tokens.bin has other content"),
    "a byte of the index": (lambda s, m: s.write(m.index, b"indey"), "index.npz has other content"),
    "shorter tokens": (lambda s, m: s.write(m.tokens, TOKENS[:-1]), "tokens.bin has 599 bytes, 600 were saved"),
    "no index": (lambda s, m: s.delete(m.index), "index.npz is missing"),
    "one file more": (lambda s, m: s.write(f"{data_entry(m)}/x", b""), "x was added"),
    "tokens elsewhere": (
        rewrite_data(tokens="gs://attacker/tokens.bin", index="gs://attacker/index.npz"), "outside of its folder"),
    "tokens of another fingerprint": (
        rewrite_data(tokens="{folder}x/e/tokens.bin", index="{folder}x/e/index.npz"), "outside of its folder"),
    "an index elsewhere": (rewrite_data(index="{folder}/another/index.npz"), "outside of its folder"),
    "dots": (rewrite_data(tokens="{folder}/../x/tokens.bin", index="{folder}/../x/index.npz"), "outside of its folder"),
    "of another fingerprint": (rewrite_data(fingerprint="f" * 32), "has another fingerprint"),
}  # fmt: skip


@pytest.mark.parametrize(("poison", "told"), DATA_POISONS.values(), ids=DATA_POISONS)
def test_prepared_data_that_is_not_what_was_written_is_a_miss_with_the_reason_and_is_made_again(
    store: StorageClient,
    cached: Callable[..., DataCache],
    tmp_path: Path,
    poison: Callable[[StorageClient, DataManifest], None],
    told: str,
) -> None:
    first = prepare(cached(), tmp_path)
    hit = cached("read").find(KEY)
    assert isinstance(hit, CachedSource)
    assert (hit.tokens.read_bytes(), hit.index.read_bytes()) == (TOKENS, INDEX)
    poison(store, first)
    assert told in why(cached("b").find(KEY))
    second = prepare(cached("b"), tmp_path)
    assert data_entry(second) != data_entry(first)
    again = cached("c").find(KEY)
    assert isinstance(again, CachedSource)
    assert again.manifest == second
    assert again.tokens.read_bytes() == TOKENS


def test_prepared_data_that_is_replaced_while_it_is_fetched_is_a_miss(
    server: str,
    store: StorageClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    layout = CacheLayout(f"gs://bucket/{tmp_path.name}")
    cache = DataCache(
        store=store, layout=layout, scratch=tmp_path / "scratch", reads=True, writes=True, replaces=False,
        uid="0123456789", attempt=1, restart=0,
    )  # fmt: skip
    kept = prepare(cache, tmp_path)
    real = cache_entry.verify_entry

    def poisoned_after(*arguments: Any) -> Any:
        held = real(*arguments)
        store.write(kept.tokens, b"Tokens" * 100)
        return held

    monkeypatch.setattr(cache_entry, "verify_entry", poisoned_after)
    assert "tokens.bin was replaced or deleted" in why(cache.find(KEY))
