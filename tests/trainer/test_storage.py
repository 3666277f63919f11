"""The guarantees of storage, which are the same for ``file://`` and ``gs://``."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.api_core import exceptions

from finetune_contract import ExitCode
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.errors import StageError
from finetune_trainer.storage import RETRIES, StorageClient, join, local_path, open_store
from tests.trainer.stores import BUCKET


@pytest.fixture
def store() -> StorageClient:
    return open_store()


def names(store: StorageClient, root: str) -> list[str]:
    return [entry.uri.removeprefix(root + "/") for entry in store.entries(root)]


def test_what_is_written_is_read_and_replaced_as_a_whole(store: StorageClient, root: str) -> None:
    store.write(f"{root}/a/b.json", "one")
    store.write(f"{root}/a/b.json", b"two")
    assert store.read(f"{root}/a/b.json") == b"two"
    assert names(store, root) == ["a/b.json"]


def test_only_the_first_creation_wins(store: StorageClient, root: str) -> None:
    assert store.create(f"{root}/manifest.json", "mine")
    assert not store.create(f"{root}/manifest.json", "theirs")
    assert store.read(f"{root}/manifest.json") == b"mine"


def test_what_is_not_there_is_missing_not_empty(store: StorageClient, root: str) -> None:
    assert store.read_or_none(f"{root}/none") is None
    assert not store.exists(f"{root}/none")
    assert names(store, root) == []
    store.delete(f"{root}/none")
    for call in (lambda: store.read(f"{root}/none"), lambda: store.fetch_folder(root, Path("/nonexistent"))):
        with pytest.raises(StageError) as caught:
            call()
        assert caught.value.code is ExitCode.INPUT_MISSING
        assert root in caught.value.where


def test_a_folder_goes_up_and_comes_back_the_same(store: StorageClient, root: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for name in ("b.bin", "deep/c.bin", "a.json"):
        (source / name).write_bytes(name.encode() * 1000)
    store.upload_folder(source, root, skip=("a.json",))
    assert names(store, root) == ["b.bin", "deep/c.bin"]
    store.upload_folder(source, root)
    back = store.fetch_folder(root, tmp_path / "back")
    assert {p.relative_to(back).as_posix(): p.read_bytes() for p in back.rglob("*") if p.is_file()} == {
        p.relative_to(source).as_posix(): p.read_bytes() for p in source.rglob("*") if p.is_file()
    }
    assert {e.crc32c for e in store.entries(root)} == {e.crc32c for e in store.entries(f"file://{source}")}


def test_a_bucket_gives_only_what_is_asked_for(store: StorageClient, root: str, tmp_path: Path) -> None:
    store.write(f"{root}/config.json", "{}")
    store.write(f"{root}/model.safetensors", "weights")
    folder = store.fetch_folder(root, tmp_path / "scratch", include=("*.json",))
    if local_path(root) is None:
        assert [p.name for p in folder.iterdir()] == ["config.json"]
    else:
        assert folder == local_path(root)


def test_globs_stop_at_slashes(store: StorageClient, root: str) -> None:
    for name in ("a/1.jsonl", "a/2.jsonl", "a/3.json", "a/deep/4.jsonl", "b/5.jsonl"):
        store.write(f"{root}/{name}", name)

    def matches(pattern: str) -> list[str]:
        return [entry.uri.removeprefix(root + "/") for entry in store.glob(f"{root}/{pattern}")]

    assert matches("a/*.jsonl") == ["a/1.jsonl", "a/2.jsonl"]
    assert matches("*/?.jsonl") == ["a/1.jsonl", "a/2.jsonl", "b/5.jsonl"]
    assert matches("a/3.json") == ["a/3.json"]
    assert matches("a/none.json") == []


def test_deleting_a_folder_takes_its_manifest_first(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []
    for backend in (FileStore, GoogleStore):
        real = backend.delete
        monkeypatch.setattr(
            backend, "delete", lambda self, uri, real=real: (deleted.append(uri), real(self, uri))[1]
        )
    store = open_store()
    for name in ("a", "manifest.json", "z/b"):
        store.write(f"{root}/{name}", name)
    store.delete_folder(root, first=("manifest.json",))
    assert deleted[0] == f"{root}/manifest.json"
    assert names(store, root) == []


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/k", "/tmp/x", "file://relative/x", "gs:///k", "", "gs://", "gs://b//k", "gs://b/k//x", "file:////x",
        "file:///a//x", "gs://b/../k", "file:///a/./x", "gs://b/k\0",
    ],
)  # fmt: skip
def test_an_address_of_another_kind_is_refused(store: StorageClient, uri: str) -> None:
    with pytest.raises(StageError) as caught:
        store.read(uri)
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert repr(uri) in str(caught.value)


def test_slashes_at_the_end_of_an_address_mean_nothing(store: StorageClient, root: str) -> None:
    store.write(f"{root}/a", "1")
    assert [entry.uri for entry in store.entries(f"{root}//")] == [f"{root}/a"]


@pytest.mark.parametrize("name", ["/abs/x", "a//b", "../x", "a/../../x"])
def test_no_file_is_fetched_out_of_its_folder(
    store: StorageClient, root: str, tmp_path: Path, name: str
) -> None:
    store.write(f"{root}/a", "1")
    outside = tmp_path / "outside"
    (entry,) = store.entries(root)
    for listed in (name, name.replace("/abs", str(outside))):
        with pytest.raises(StageError, match="points outside of its folder") as caught:
            store.fetch_listed({listed: entry}, tmp_path / "scratch" / "deep")
        assert (caught.value.code, caught.value.where) == (ExitCode.BAD_REQUEST, f"{root}/a")
    assert {path.name for path in tmp_path.iterdir()} <= {"store"}


def test_files_being_written_are_not_listed(store: StorageClient, tmp_path: Path) -> None:
    (tmp_path / ".partial-x").write_text("half")
    assert names(store, f"file://{tmp_path}") == []


def test_local_files_are_readable_by_others(store: StorageClient, tmp_path: Path) -> None:
    store.write(f"file://{tmp_path}/x", "1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


class Refusing:
    """A client of which every request raises the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def bucket(self, name: str) -> "Refusing":
        return self

    def blob(self, name: str) -> "Refusing":
        return self

    def download_to_file(self, *_: object, **__: object) -> bytes:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.Forbidden("no role"), ExitCode.PERMISSION_DENIED),
        (exceptions.Unauthorized("no token"), ExitCode.PERMISSION_DENIED),
        (exceptions.NotFound("no object"), ExitCode.INPUT_MISSING),
        (exceptions.ServiceUnavailable("later"), ExitCode.UNAVAILABLE),
        (exceptions.RetryError("gave up", None), ExitCode.UNAVAILABLE),
        (ConnectionResetError("reset"), ExitCode.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_of_a_bucket_become_the_contracts_codes(
    store: StorageClient, error: Exception, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GoogleStore, "client", Refusing(error))
    with pytest.raises(StageError) as caught:
        store.read("gs://b/k")
    assert caught.value.code is code
    assert caught.value.where == "gs://b/k"


def test_no_client_is_made_before_a_bucket_is_named(
    store: StorageClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(self: GoogleStore) -> None:
        raise AssertionError("a client was created")

    monkeypatch.setattr(GoogleStore, "_connect", connect)
    store.write(f"file://{tmp_path}/x", "1")


def test_an_answer_that_was_lost_does_not_lose_the_creation(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write succeeded but its response was lost, so the retry finds the file that the first try has created."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    backend = GoogleStore(RETRIES)
    uri = join(f"gs://{BUCKET}", "lost", "manifest.json")
    backend.write(uri, b"mine")
    assert backend.create(uri, b"mine")


def test_a_file_is_replaced_only_as_long_as_it_is_the_one_that_was_read(
    store: StorageClient, root: str
) -> None:
    uri = f"{root}/manifest.json"
    assert store.read_current(uri, limit=10) is None
    assert not store.replace(uri, "none", version="1")
    store.write(uri, "one")
    first = store.read_current(uri, limit=10)
    assert first is not None
    assert first.content == b"one"
    assert store.replace(uri, "two", version=first.version)
    assert not store.replace(uri, "three", version=first.version)
    second = store.read_current(uri, limit=10)
    assert second is not None
    assert (second.content, second.version != first.version) == (b"two", True)
    store.delete(uri)
    assert not store.replace(uri, "four", version=second.version)
    assert not store.exists(uri)


def test_of_many_writers_that_saw_the_same_version_one_wins(store: StorageClient, root: str) -> None:
    uri = f"{root}/manifest.json"
    store.write(uri, "damaged")
    seen = store.read_current(uri, limit=10)
    assert seen is not None
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.replace(uri, f"writer {n}", version=seen.version), range(8)))
    assert won.count(True) == 1
    assert store.read(uri) == f"writer {won.index(True)}".encode()


def test_a_file_larger_than_the_limit_is_not_read_but_can_be_replaced(
    store: StorageClient, root: str
) -> None:
    uri = f"{root}/manifest.json"
    store.write(uri, b"x" * 11)
    found = store.read_current(uri, limit=10)
    assert found is not None
    assert found.content is None
    assert store.replace(uri, "small", version=found.version)


def test_a_listing_shows_a_new_write_of_the_same_content_in_a_bucket(store: StorageClient, root: str) -> None:
    uri = f"{root}/a"
    store.write(uri, "same")
    (before,) = store.entries(root)
    store.write(uri, "same")
    (after,) = store.entries(root)
    assert (before.size, before.crc32c) == (after.size, after.crc32c)
    if local_path(root) is None:
        assert None not in (before.generation, after.generation)
        assert before.generation != after.generation
    else:
        assert (before.generation, after.generation) == (None, None)


def test_the_object_that_was_listed_is_fetched_or_none(
    server: str, store: StorageClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    root = f"gs://{BUCKET}/{tmp_path.name}"
    uri = f"{root}/a"
    store.write(uri, "listed")
    (listed,) = store.entries(root)
    assert store.fetch_file(uri, tmp_path / "a", generation=listed.generation).read_text() == "listed"
    store.write(uri, "another")
    with pytest.raises(StageError) as caught:
        store.fetch_file(uri, tmp_path / "b", generation=listed.generation)
    assert caught.value.code is ExitCode.INPUT_MISSING


def test_a_file_that_goes_while_it_is_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing the file first and reading it afterwards would raise an error."""
    uri = f"file://{tmp_path}/a"
    real = FileStore.read

    def deleted_before(self: FileStore, uri: str) -> bytes | None:
        self.delete(uri)
        return real(self, uri)

    store = open_store()
    store.write(uri, "here")
    monkeypatch.setattr(FileStore, "read", deleted_before)
    assert store.read_or_none(uri) is None


@pytest.mark.parametrize("uri", ["gs://b/team-a/../team-b/m", "file:///data/team-a/../team-b", "gs://b/./m"])
def test_a_way_out_of_a_folder_is_no_address(uri: str, store: StorageClient) -> None:
    with pytest.raises(StageError) as caught:
        store.read(uri)
    assert caught.value.reason == "InvalidUri"
