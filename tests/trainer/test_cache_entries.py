"""A cached converted model is used only if its files are unchanged, even if other clients write to the cache."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import CacheLayout, ConvertManifest, ExitCode, StageRequest
from finetune_contract.failure import CONVERTED_MODEL_DAMAGED
from finetune_contract.layout import file_list
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.conversion.fingerprint import Fingerprint
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, cache_entry, open_store
from finetune_trainer.storage.cache_entry import CacheMiss
from tests.trainer import requests

INPUTS = {"model": "1", "engine": "maxtext 1"}
PRINTS = Fingerprint(value="0123456789abcdef0123456789abcdef", inputs=INPUTS)
FILES = {"0/items/ocdbt/d/1": b"weights", "0/items/_METADATA": b"{}", "0/commit_success.txt": b""}


@pytest.fixture
def store() -> StorageClient:
    return open_store()


@pytest.fixture
def asked(root: str, tmp_path: Path) -> Callable[..., StageRequest]:
    def request(**changes: Any) -> StageRequest:
        return requests.request(tmp_path, "Convert", cache=root, **changes)

    return request


def convert(store: StorageClient, made: StageRequest, run: str = "a", **changes: Any) -> ConvertManifest:
    """Returns the manifest as the Convert stage does, with files of a few bytes."""
    found = conversion_cache.find(made, PRINTS, store)
    if not isinstance(found, CacheMiss):
        return found
    entry = CacheLayout(made.cache).convert_output(PRINTS.value, made.job.uid, made.attempt, 0, run)
    for name, content in FILES.items():
        store.write(f"{entry}/{name}", content)
    fields: dict[str, Any] = {
        "fingerprint": PRINTS.value, "inputs": INPUTS, "items": f"{entry}/0/items", "size_bytes": 9, "seconds": 1.0,
        "export_proven": made.export_proof, "created": "2026-01-01T00:00:00Z",
        "files_digest": cache_entry.write_file_list(store, entry), **changes,
    }  # fmt: skip
    manifest = ConvertManifest.model_validate(fields)
    conversion_cache.keep(made, manifest, found, store)
    return manifest


def why(found: object) -> str:
    assert isinstance(found, CacheMiss), found
    return " ".join(found.because)


def entry_of(manifest: ConvertManifest) -> str:
    return manifest.items.removesuffix("/0/items")


type Poison = Callable[[StorageClient, ConvertManifest], None]


def rewrite(change: Callable[[dict[str, Any], str], object]) -> Poison:
    """Returns a function that replaces the manifest at its address."""

    def poison(store: StorageClient, manifest: ConvertManifest) -> None:
        address = f"{entry_of(manifest).rpartition('/')[0]}/manifest.json"
        fields = json.loads(store.read(address))
        change(fields, entry_of(manifest).rpartition("/")[0])
        store.write(address, json.dumps(fields))

    return poison


def raw(content: bytes) -> Poison:
    return lambda store, manifest: store.write(
        f"{entry_of(manifest).rpartition('/')[0]}/manifest.json", content
    )


def elsewhere(fields: dict[str, Any], folder: str) -> None:
    fields["items"] = f"{folder.rpartition('/')[0]}/ffff/0b5e-1/0/items"


POISONS: dict[str, tuple[Poison, str]] = {
    "a byte of a weight file": (
        lambda s, m: s.write(f"{m.items}/ocdbt/d/1", b"weightz"), "0/items/ocdbt/d/1 has other content"),
    "a longer file": (lambda s, m: s.write(f"{m.items}/_METADATA", b"{ }"), "0/items/_METADATA has 3 bytes, 2 were saved"),
    "a file that is gone": (lambda s, m: s.delete(f"{m.items}/_METADATA"), "0/items/_METADATA is missing"),
    "a file that was added": (lambda s, m: s.write(f"{m.items}/zarr.json", b"{}"), "0/items/zarr.json was added"),
    "many files that were added": (
        lambda s, m: [s.write(f"{m.items}/a{n}", b"") for n in range(20)] and None, "0/items/a0 was added"),
    "all files gone": (lambda s, m: s.delete_folder(entry_of(m)), "is missing"),
    "the list is gone": (lambda s, m: s.delete(file_list(entry_of(m))), "the list of its files is missing"),
    "another list": (lambda s, m: s.write(file_list(entry_of(m)), b'{"files": {}}'), "the list of its files has changed"),
    "no digest of the list": (rewrite(lambda f, _: f.pop("files_digest")), "its manifest cannot be read"),
    "items of another fingerprint": (rewrite(elsewhere), "a folder outside of its own"),
    "items in another bucket": (
        rewrite(lambda f, _: f.update(items="gs://attacker/backdoored/items")), "a folder outside of its own"),
    "items through dots": (
        rewrite(lambda f, folder: f.update(items=f"{folder}/../../other/0/items")), "a folder outside of its own"),
    "items with an empty segment": (
        rewrite(lambda f, folder: f.update(items=f"{folder}//0/items")), "a folder outside of its own"),
    "items that are the folder itself": (
        rewrite(lambda f, folder: f.update(items=f"{folder}/")), "a folder outside of its own"),
    "items that are empty": (
        rewrite(lambda f, folder: f.update(items=f["items"].replace("/0/", "/1/"))), "a folder that is empty"),
    "of another fingerprint": (rewrite(lambda f, _: f.update(fingerprint="f" * 32)), "has another fingerprint"),
    "no JSON": (raw(b"\xff{"), "its manifest cannot be read"),
    "an export's manifest": (raw(b'{"files": [{"path": "model.safetensors"}]}'), "its manifest cannot be read"),
    "a huge manifest": (raw(b" " * ((1 << 20) + 1)), "its manifest has more than 1048576 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("poison", "told"), POISONS.values(), ids=POISONS)
def test_a_conversion_that_is_not_what_was_written_is_a_miss_with_the_reason_and_is_made_again(
    store: StorageClient, asked: Callable[..., StageRequest], poison: Poison, told: str
) -> None:
    first = convert(store, asked())
    assert conversion_cache.find(asked(), PRINTS, store) == first
    poison(store, first)
    found = conversion_cache.find(asked(), PRINTS, store)
    assert told in why(found)
    assert conversion_cache.use_of(found).result == "Miss"  # type: ignore[arg-type]
    second = convert(store, asked(), "b")
    assert entry_of(second) != entry_of(first)
    assert conversion_cache.find(asked(), PRINTS, store) == second


def test_a_hit_is_reported_with_what_pins_it(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    made = convert(store, asked())
    found = conversion_cache.find(asked(), PRINTS, store)
    assert not isinstance(found, CacheMiss)
    use = conversion_cache.use_of(found)
    assert (use.result, use.uri, use.files_digest, use.size_bytes) == (
        "Hit",
        made.items,
        made.files_digest,
        9,
    )


def test_what_was_written_again_with_the_same_content_is_another_object(
    server: str, store: StorageClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    made = requests.request(tmp_path, "Convert", cache=f"gs://bucket/{tmp_path.name}")
    manifest = convert(store, made)
    store.write(f"{manifest.items}/_METADATA", b"{}")
    assert "0/items/_METADATA was written again" in why(conversion_cache.find(made, PRINTS, store))


def test_a_miss_names_the_input_that_differs_from_the_models_last_conversion(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    assert why(conversion_cache.find(asked(), PRINTS, store)) == ""
    convert(store, asked())
    other = Fingerprint(value="f" * 32, inputs={**INPUTS, "engine": "maxtext 2"})
    assert why(conversion_cache.find(asked(), other, store)) == "engine: maxtext 1 -> maxtext 2"
    another = asked(model={"uri": "gs://models/another"})
    assert why(conversion_cache.find(another, other, store)) == ""


def test_an_entry_that_was_removed_from_the_cache_is_said_to_be(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    manifest = convert(store, asked())
    store.delete(CacheLayout(asked().cache).convert_manifest(PRINTS.value))
    store.delete_folder(entry_of(manifest))
    assert why(conversion_cache.find(asked(), PRINTS, store)) == "the last entry is no longer in the cache"


def test_a_conversion_without_the_proof_gives_way_to_one_that_is_proven(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    unproven = convert(store, asked(export_proof=False))
    assert conversion_cache.find(asked(export_proof=False), PRINTS, store) == unproven
    assert "without the export proof" in why(conversion_cache.find(asked(), PRINTS, store))
    proven = convert(store, asked(), "b")
    assert conversion_cache.find(asked(), PRINTS, store) == proven
    assert conversion_cache.find(asked(export_proof=False), PRINTS, store) == proven


@pytest.mark.parametrize("setting", ["Refresh", "Off"])
def test_a_cache_that_is_not_to_be_used_is_not_looked_into(
    store: StorageClient, asked: Callable[..., StageRequest], setting: str
) -> None:
    first = convert(store, asked())
    assert why(conversion_cache.find(asked(use_cache=setting), PRINTS, store)) == f"spec.cache is {setting}"
    second = convert(store, asked(use_cache=setting), "b")
    kept = conversion_cache.find(asked(), PRINTS, store)
    assert kept == (second if setting == "Refresh" else first)


def test_of_two_that_convert_at_once_the_first_manifest_stays_and_both_entries_are_whole(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    missed = conversion_cache.find(asked(), PRINTS, store)
    assert isinstance(missed, CacheMiss)
    first = convert(store, asked())
    second = convert(store, asked(use_cache="Off"), "b")
    conversion_cache.keep(asked(), second, missed, store)
    assert conversion_cache.find(asked(), PRINTS, store) == first
    for each in (first, second):
        assert cache_entry.verify_entry(store, entry_of(each), each.files_digest)


def test_of_two_that_replace_the_same_damage_the_first_wins(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    damaged = convert(store, asked())
    store.delete(f"{damaged.items}/_METADATA")
    missed = conversion_cache.find(asked(), PRINTS, store)
    assert isinstance(missed, CacheMiss)
    first = convert(store, asked(), "b")
    second = convert(store, asked(use_cache="Off"), "c")
    conversion_cache.keep(asked(), second, missed, store)
    assert conversion_cache.find(asked(), PRINTS, store) == first


def test_the_list_of_a_large_conversion_leaves_its_manifest_small(
    store: StorageClient, asked: Callable[..., StageRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of thousands of files takes megabytes; the manifest, which the operator reads, stays below 2 KiB."""
    many = {f"0/items/params.layers.{n}.kernel/c/{n}": b"" for n in range(300)}
    monkeypatch.setitem(globals(), "FILES", many)
    manifest = convert(store, asked())
    address = CacheLayout(asked().cache).convert_manifest(PRINTS.value)
    assert len(store.read(address)) < 2048
    listed = store.read(file_list(entry_of(manifest)))
    assert hashlib.sha256(listed).hexdigest() == manifest.files_digest
    assert json.loads(listed)["files"].keys() == many.keys()


# --- in the stages


def pinned(made: StageRequest, manifest: ConvertManifest, **changes: Any) -> StageRequest:
    told = {
        "converted": manifest.items,
        "converted_files_digest": manifest.files_digest,
        "fingerprint": PRINTS.value,
    }
    return made.model_copy(update={**told, **changes})


def test_a_conversion_that_was_damaged_since_is_a_fault_of_the_infrastructure_that_names_it(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    manifest = convert(store, asked())
    conversion_cache.require_whole(pinned(asked(), manifest), store)
    store.write(f"{manifest.items}/ocdbt/d/1", b"weightz")
    with pytest.raises(StageError) as caught:
        conversion_cache.require_whole(pinned(asked(), manifest), store)
    failure = caught.value.failure()
    assert (failure.code, failure.reason) == (ExitCode.UNAVAILABLE, CONVERTED_MODEL_DAMAGED)
    assert failure.failure_class == "Infrastructure"
    assert failure.where == manifest.items
    assert "0/items/ocdbt/d/1" in failure.actual


def test_a_list_that_was_written_after_the_poisoning_does_not_help_it(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    manifest = convert(store, asked())
    store.write(f"{manifest.items}/ocdbt/d/1", b"weightz")
    cache_entry.write_file_list(store, entry_of(manifest))
    with pytest.raises(StageError, match="the list of its files has changed"):
        conversion_cache.require_whole(pinned(asked(), manifest), store)


def test_a_converted_model_outside_of_its_folder_is_not_loaded(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    manifest = convert(store, asked())
    elsewhere = pinned(asked(), manifest, converted="gs://attacker/0/items")
    with pytest.raises(StageError, match="outside of its folder"):
        conversion_cache.require_whole(elsewhere, store)


def test_the_users_own_checkpoint_lies_where_the_user_says(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    items = "gs://models/0/items"
    own = asked(model={"orbax": items, "uri": None, "tokenizer": {"uri": "gs://models/t"}})
    conversion_cache.require_whole(own.model_copy(update={"converted": items, "fingerprint": "f1"}), store)


def test_a_model_that_vanishes_between_comparison_and_loading_is_damaged_not_the_users_fault(
    store: StorageClient, asked: Callable[..., StageRequest]
) -> None:
    manifest = convert(store, asked())
    unreadable = StageError(ExitCode.INPUT_MISSING, conversion_cache.UNREADABLE, "gone", actual="NOT_FOUND")
    with pytest.raises(StageError) as caught, conversion_cache.loading(pinned(asked(), manifest)):
        raise unreadable
    assert (caught.value.reason, caught.value.where) == (CONVERTED_MODEL_DAMAGED, manifest.items)
    users = asked(model={"orbax": "gs://models/0/items", "uri": None, "tokenizer": {"uri": "gs://models/t"}})
    with pytest.raises(StageError) as caught, conversion_cache.loading(users):
        raise unreadable
    assert caught.value.reason == conversion_cache.UNREADABLE
