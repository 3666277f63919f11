import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune_operator.artifacts.file_store import FileStore
from finetune_operator.artifacts.port import StorageDenied, StorageError, StorageUnavailable
from finetune_operator.artifacts.stores import UniversalStore


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for folder in tmp_path.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)


async def test_what_was_written_is_read_and_listed(root: Path) -> None:
    store = UniversalStore()
    await store.write(f"file://{root}/attempts/train-1/result.json", b"{}")
    await store.write(f"file://{root}/attempts/train-1/failure.json", b"{}")
    assert await store.read(f"file://{root}/attempts/train-1/result.json") == b"{}"
    assert await store.list(f"file://{root}/attempts") == ["train-1/failure.json", "train-1/result.json"]


async def test_what_is_not_there_is_none_and_empty(root: Path) -> None:
    store = FileStore()
    (root / "a-file").write_text("x")
    assert await store.read(f"file://{root}/nothing") is None
    assert await store.read(f"file://{root}") is None
    assert await store.read(f"file://{root}/a-file/below") is None
    assert await store.list(f"file://{root}/nothing") == []


async def test_a_file_that_is_being_written_is_not_listed(root: Path) -> None:
    (root / ".writing-abc").write_text("half")
    assert await FileStore().list(f"file://{root}") == []


async def test_a_write_replaces_whole_and_leaves_nothing_behind(root: Path) -> None:
    uri = f"file://{root}/progress.json"
    for content in (b"long long long", b"short"):
        await FileStore().write(uri, content)
    assert await FileStore().read(uri) == b"short"
    assert await FileStore().list(f"file://{root}") == ["progress.json"]


async def test_names_with_blanks_are_unquoted(root: Path) -> None:
    (root / "a b").write_text("x")
    assert await FileStore().read(f"file://{root}/a%20b") == b"x"


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
async def test_no_permission_is_denied_and_not_absence(root: Path) -> None:
    (root / "closed").mkdir(mode=0)
    with pytest.raises(StorageDenied):
        await FileStore().list(f"file://{root}/closed")


async def test_a_fault_of_the_disk_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StorageUnavailable, match="Input/output error"):
        await FileStore().read("file:///x")


@pytest.mark.parametrize("uri", ["file://relative/path", "s3://bucket/x", "no-uri"])
async def test_other_uris_are_refused_by_name(uri: str) -> None:
    with pytest.raises(StorageError, match=uri):
        await UniversalStore().read(uri)
